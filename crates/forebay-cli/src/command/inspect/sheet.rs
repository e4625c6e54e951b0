//! `inspect --contact-sheet`: one image file with evenly spaced samples of the dataset, with their boxes and masks.

use std::path::Path;

use forebay_image::geometry::{SpatialMap, Tracking};
use forebay_image::{
    Decoder, EvalTransform, Layout, Limits, Output, SampleSeed, Transform, contact_sheet,
    decode_mask, draw_boxes, tint,
};
use forebay_shard::{ColumnType, ColumnValue, ExampleView, Schema, Shard};
use forebay_store::{Durability, write_file};

use crate::console::Console;
use crate::contents::{Contents, SplitShards};
use crate::failure::Failure;
use crate::input::show;

/// Maximum number of images on a sheet.
const IMAGES: u64 = 64;
/// Side of an image on the sheet, in pixels.
const SIDE: u32 = 160;

/// Writes the sheet as a PNG. Images that cannot be decoded are left out.
pub(super) fn write(
    path: &Path,
    contents: &Contents,
    splits: &[SplitShards],
    console: &Console,
) -> Result<(), Failure> {
    let shards: Vec<&Shard> = splits.iter().flat_map(|(_, shards)| shards).collect();
    let total: u64 = shards.iter().map(|shard| shard.len()).sum();
    let count = total.min(IMAGES);
    let transform = Transform::Eval(EvalTransform::new(SIDE, SIDE));
    let mut decoder = Decoder::new(Limits::default());
    let schema = match contents {
        Contents::Dataset(dataset) => dataset.manifest().schema(),
        Contents::Shard(_) => Schema::default(),
    };
    let (mut pixels, mut captions) = (Vec::new(), Vec::new());
    let mut image = vec![0; transform.output_values()];
    let mut bytes = Vec::new();
    for at in 0..count {
        let (shard, record) = located(&shards, at * total / count);
        shard.read(record, &mut bytes)?;
        let Ok(found) = contents.record_features().image_record(&bytes) else {
            continue;
        };
        let output = Output::from(Layout::Nhwc);
        let mut tracking = Tracking::default();
        let drawn = transform.apply_tracked(
            &mut decoder,
            found.image,
            SampleSeed::default(),
            &output,
            &mut image,
            &mut tracking,
        );
        if drawn.is_ok() {
            overlay(&schema, &bytes, &tracking.map, &mut image);
            pixels.extend_from_slice(&image);
            let class = found.label.map(|label| contents.class_title(label));
            captions.push(class.unwrap_or_default());
        }
    }
    if captions.is_empty() {
        return Err(Failure::new("no image of the dataset can be decoded"));
    }
    save(path, &pixels, SIDE, &captions)?;
    console.note(format!("Contact sheet: {}", show(path)));
    Ok(())
}

/// Draws the first boxes column and the first mask column of a record over its image. Values that cannot be read are left
/// out; `verify --deep` reports them.
fn overlay(schema: &Schema, record: &[u8], map: &SpatialMap, image: &mut [u8]) {
    let Ok(example) = ExampleView::parse(record) else {
        return;
    };
    let value = |column_type: ColumnType| {
        let mut columns = schema.columns().iter();
        let column = columns.find(|column| column.column_type == column_type)?;
        column.read(example).ok().flatten()
    };
    if let Some(ColumnValue::Bytes(encoded)) = value(ColumnType::Mask)
        && let Ok(mask) = decode_mask(encoded, &Limits::default())
        && let Ok(mask) = map.mask(&mask)
    {
        tint(image, &mask);
    }
    if let Some(ColumnValue::Boxes { boxes, labels }) = value(ColumnType::Boxes) {
        let placed = map.boxes(&boxes, false).into_iter();
        let (placed, labels): (Vec<_>, Vec<_>) = placed
            .map(|(index, placed)| (placed, labels[index]))
            .unzip();
        draw_boxes(image, SIDE, &placed, &labels);
    }
}

/// Writes a sheet of square images with a side of `side` pixels, each with its caption.
pub(crate) fn save(
    path: &Path,
    pixels: &[u8],
    side: u32,
    captions: &[String],
) -> Result<(), Failure> {
    let png = contact_sheet(pixels, side, columns(captions.len()), captions);
    Ok(write_file(path, &png, Durability::Cached)?)
}

/// Returns the shard that holds a record, and the number of the record in that shard. `record` counts through all shards.
fn located<'a>(shards: &[&'a Shard], mut record: u64) -> (&'a Shard, u64) {
    for shard in shards {
        if record < shard.len() {
            return (shard, record);
        }
        record -= shard.len();
    }
    unreachable!("the caller counts the records of these shards")
}

/// Returns the number of columns: the square root of the count, or up to twice as many if this fills the last row.
fn columns(samples: usize) -> usize {
    let square = (samples as f64).sqrt().ceil().max(1.0) as usize;
    let full = (square..=square * 2).find(|columns| samples.is_multiple_of(*columns));
    full.unwrap_or(square)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_sheets_have_full_rows_if_possible() {
        for (samples, expected) in [(1, 1), (2, 2), (7, 3), (12, 4), (13, 4), (16, 4), (64, 8)] {
            assert_eq!(columns(samples), expected, "{samples}");
        }
    }
}
