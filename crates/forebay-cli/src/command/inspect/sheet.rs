//! `inspect --contact-sheet`: one image file with chosen or evenly spaced samples of the dataset, with their boxes and masks.

use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use forebay_image::geometry::{SpatialMap, Tracking};
use forebay_image::{
    Decoder, EvalTransform, Layout, Limits, Output, SampleSeed, Transform, contact_sheet,
    decode_mask, draw_boxes, tint,
};
use forebay_shard::{ColumnType, ColumnValue, ExampleView, Schema, Shard, escape_key};
use forebay_store::{Durability, write_file};

use crate::console::Console;
use crate::contents::{Contents, SplitShards};
use crate::failure::Failure;
use crate::input::show;

/// Maximum number of images on a sheet of evenly spaced samples, and of listed ones.
const IMAGES: u64 = 64;
const LISTED_IMAGES: u64 = 256;
/// Side of an image on the sheet, in pixels.
const SIDE: u32 = 224;

#[derive(Debug, ClapArgs)]
pub(super) struct SheetArgs {
    /// Write a PNG with images from all over the dataset, each with its key, class and number
    #[arg(long, value_name = "FILE")]
    pub(super) contact_sheet: Option<PathBuf>,

    /// With --contact-sheet: only this split
    #[arg(long, value_name = "NAME", requires = "contact_sheet")]
    split: Option<String>,

    /// With --contact-sheet: only these classes, by name or label
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        requires = "contact_sheet"
    )]
    class: Vec<String>,

    /// With --contact-sheet: only these records, in this order: numbers in the split and ranges such as 3,20-29, or files
    /// of them, such as `forebay view` exports
    #[arg(
        long,
        value_name = "N,...|FILE",
        value_delimiter = ',',
        requires = "contact_sheet"
    )]
    indices: Vec<String>,
}

impl SheetArgs {
    /// Writes the sheet as a PNG.
    pub(super) fn write(&self, contents: &Contents, console: &Console) -> Result<(), Failure> {
        let Some(path) = &self.contact_sheet else {
            return Ok(());
        };
        let place = path.display();
        let mut begin = Vec::new();
        let there = File::open(path).and_then(|file| file.take(4).read_to_end(&mut begin));
        if path.is_file() && there.is_ok() && begin != b"\x89PNG" {
            let why = format!("{place} is there, and is no PNG: it is not replaced");
            return Err(Failure::new(why).hint("name another file"));
        }
        let splits = contents.shards_of(self.split.as_deref(), !self.indices.is_empty())?;
        let records = splits.iter().flat_map(|(_, shards)| shards);
        let records: u64 = records.map(Shard::len).sum();
        let chosen = self.chosen(contents, &splits, records)?;
        let total = chosen.as_ref().map_or(records, |list| list.len() as u64);
        let is_listed = !self.indices.is_empty();
        let count = total.min(if is_listed { LISTED_IMAGES } else { IMAGES });
        let numbers = (0..count).map(|at| at * total / count);
        let numbers = numbers.map(|at| chosen.as_ref().map_or(at, |list| list[at as usize]));
        draw(path, contents, &splits, numbers)?;
        let path = show(path);
        console.note(format!("Contact sheet: {path}, {count} of {total} images"));
        Ok(())
    }

    /// Returns the chosen records, by number through all splits; `None` for all.
    fn chosen(
        &self,
        contents: &Contents,
        splits: &[SplitShards],
        records: u64,
    ) -> Result<Option<Vec<u64>>, Failure> {
        let mut list = Vec::new();
        for given in &self.indices {
            add_numbers(given, records, &mut list)?;
        }
        if !self.class.is_empty() {
            let labels = self.class.iter().map(|name| contents.class_label(name));
            let labels = labels.collect::<Result<Vec<i64>, _>>()?;
            let shards = splits.iter().flat_map(|(_, shards)| shards);
            let all = shards.flat_map(|shard| (0..shard.len()).map(|at| shard.label(at)));
            let has = |label: Option<i64>| label.is_some_and(|label| labels.contains(&label));
            let wanted = (0..).zip(all).filter(|(_, label)| has(*label));
            let wanted: BTreeSet<u64> = wanted.map(|(number, _)| number).collect();
            match self.indices.is_empty() {
                true => list.extend(wanted),
                false => list.retain(|number| wanted.contains(number)),
            }
        } else if self.indices.is_empty() {
            return Ok(None);
        }
        match list.is_empty() {
            true if self.class.is_empty() => Err(Failure::usage("--indices: there is no number")),
            true => Err(Failure::new(format!(
                "none of the chosen records of {} has the class {}",
                show(&contents.path()),
                self.class.join(" or ")
            ))),
            false => Ok(Some(list)),
        }
    }
}

/// Adds the numbers that a text names: a number, a range, or a file with these or with a list in JSON.
fn add_numbers(given: &str, records: u64, list: &mut Vec<u64>) -> Result<(), Failure> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        first.parse::<u64>().ok().zip(last.parse::<u64>().ok())
    };
    let mut add = |text: &str| {
        let wrong = match range(text).filter(|(first, last)| first <= last) {
            Some((first, last)) if last < records => {
                list.extend(first..=last);
                return Ok(());
            }
            Some(_) => format!("there are {records} records, numbered from 0"),
            None => "expected a number, a range such as 20-29, or a file of them".to_owned(),
        };
        Err(Failure::usage(format!("--indices {text}: {wrong}")))
    };
    match fs::read_to_string(given) {
        Ok(text) if range(given).is_none() => {
            let words = text.split(|c: char| c.is_whitespace() || "[],".contains(c));
            words.filter(|word| !word.is_empty()).try_for_each(add)
        }
        _ => add(given),
    }
}

/// Draws records, given by number through all splits.
fn draw(
    path: &Path,
    contents: &Contents,
    splits: &[SplitShards],
    numbers: impl Iterator<Item = u64>,
) -> Result<(), Failure> {
    let transform = Transform::Eval(EvalTransform::new(SIDE, SIDE));
    let mut decoder = Decoder::new(Limits::default());
    let schema = match contents {
        Contents::Dataset(dataset) => dataset.manifest().schema(),
        Contents::Shard(_) => Schema::default(),
    };
    let (mut pixels, mut captions) = (Vec::new(), Vec::new());
    let mut image = vec![0; transform.output_values()];
    let mut bytes = Vec::new();
    for number in numbers {
        let (split, index, shard, record) = located(splits, number);
        shard.read(record, &mut bytes)?;
        let mut lines = vec![escape_key(&shard.key(record)?).to_string()];
        let (seed, output) = (SampleSeed::default(), Output::from(Layout::Nhwc));
        let mut tracking = Tracking::default();
        let found = contents.record_features().image_record(&bytes).ok();
        let found = found.filter(|found| {
            let (image, encoded) = (&mut image[..], found.image);
            let drawn =
                transform.apply_tracked(&mut decoder, encoded, seed, &output, image, &mut tracking);
            drawn.is_ok()
        });
        if let Some(found) = found {
            overlay(&schema, &bytes, &tracking.map, &mut image);
            let label = found.label.filter(|label| *label >= 0);
            lines.extend(label.map(|label| contents.class_title(label)));
        } else {
            image.fill(0);
            lines.push("not an image".to_owned());
        }
        pixels.extend_from_slice(&image);
        let split = split.filter(|_| splits.len() > 1).unwrap_or_default();
        lines.push(format!("{split} {index}").trim_start().to_owned());
        lines.retain(|line| !line.is_empty());
        captions.push(lines.join("\n"));
    }
    match captions.is_empty() {
        true => Err(Failure::new("there is no record to draw")),
        false => save(path, &pixels, SIDE, &captions),
    }
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

/// Returns the split of a record and its number there, its shard and its number there. `number` counts through all splits.
fn located(splits: &[SplitShards], mut number: u64) -> (Option<&str>, u64, &Shard, u64) {
    for (split, shards) in splits {
        let mut start = 0;
        for shard in shards {
            if number < start + shard.len() {
                return (split.as_deref(), number, shard, number - start);
            }
            start += shard.len();
        }
        number -= start;
    }
    unreachable!("the caller counts the records of these splits")
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
