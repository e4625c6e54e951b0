//! Pictures of records: decoded, transformed and encoded again here, so that a browser never gets bytes of the dataset.

use forebay_image::geometry::Tracking;
use forebay_image::ops::{Resize, ResizeTo};
use forebay_image::{
    Compose, Decoder, Dtype, Encoded, Layout, Limits, Op, Output, RgbImage, SampleSeed, Shrink,
    Transform, decode_mask, draw_boxes, encode_jpeg, encode_png, probe, tint,
};
use forebay_loader::Options;
use forebay_options::{LoaderOptions, ShuffleSpec};
use forebay_shard::{ColumnType, ColumnValue, ExampleView, ImageRecord};
use serde::Deserialize;

use super::record::Record;
use super::source::{ViewSource, text};

/// Maximum long side of a thumbnail, in pixels.
const MAX_THUMBNAIL: u32 = 512;
/// Maximum long side of a whole image, in pixels.
const MAX_IMAGE: u32 = 1600;
/// Quality of JPEGs.
const QUALITY: u8 = 90;
/// Maximum number of values of a transformed image.
const MAX_VALUES: usize = 3 * 2048 * 2048;

/// The encoded bytes of a picture, and their media type.
pub(super) type Picture = (Vec<u8>, &'static str);

/// Boxes in pixels of a picture, and their labels.
type Boxes = (Vec<[f32; 4]>, Vec<i64>);

/// A picture of a record.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// The image, reduced.
    Thumbnail,
    /// The image as large as a screen shows it.
    Image,
    /// The sample that a loader makes of it.
    Trained,
}

/// Parameters of a picture.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    number: u64,
    /// Maximum long side of a thumbnail, in pixels.
    side: u32,
    epoch: u64,
    seed: u64,
    /// The options of a loader as JSON.
    options: String,
    /// Whether masks, and the boxes of a sample, are drawn.
    objects: bool,
}

/// Makes a picture. The sample of a loader is the one that it makes in this epoch with this seed; normalized values are shown as
/// the colors that they stand for, and transforms of whole batches are left out.
pub(super) fn make(source: &ViewSource, kind: Kind, asked: &Asked) -> Result<Picture, String> {
    let mut options = match kind {
        Kind::Trained => loader_options(&asked.options)?,
        // Replaced once the size of the image is known.
        _ => Options::new(1, Transform::KeepEncoded),
    };
    let mut record = Record::default();
    source.read(asked.number, &mut record)?;
    let image = image_of(source, &record)?.image;
    if let Transform::KeepEncoded = options.transform {
        let found = probe(image, &Limits::default()).map_err(text)?;
        let long = Some(match kind {
            Kind::Thumbnail => asked.side.clamp(1, MAX_THUMBNAIL),
            _ => MAX_IMAGE,
        });
        let size = Shrink { short: None, long }.size(found.width, found.height);
        let (width, height) = size.unwrap_or((found.width, found.height));
        let size = ResizeTo::Exact((height, width));
        let resize = Compose::new(vec![Op::Resize(Resize { size })]).map_err(text)?;
        options.transform = Transform::List(resize);
        options.decode.scaled = matches!(kind, Kind::Thumbnail);
    }
    options.output.layout = Layout::Nhwc;
    options.output.dtype = match options.output.normalize {
        Some(_) => Dtype::Float32,
        None => Dtype::Uint8,
    };
    let seed = SampleSeed {
        seed: asked.seed,
        epoch: asked.epoch,
        sample: source.split_of(asked.number).1,
        occurrence: 0,
    };
    let (mut image, (boxes, labels)) = draw(source, &record, &options, seed, asked.objects)?;
    if !matches!(kind, Kind::Trained) {
        // The page draws the boxes of a whole image itself, with their names.
        let bytes = encode_jpeg(&image, QUALITY, false).map_err(text)?;
        return Ok((bytes, "image/jpeg"));
    }
    if asked.objects {
        draw_boxes(&mut image.data, image.width, &boxes, &labels);
    }
    let png = encode_png(&image.data, image.width, image.height);
    Ok((png, "image/png"))
}

/// Reads the options of a loader, as in a configuration file, for [`Kind::Trained`].
fn loader_options(json: &str) -> Result<Options, String> {
    let mut given: LoaderOptions = forebay_shard::json::from_str(json).map_err(text)?;
    // Only a list of transforms without a random one needs it, and the order of samples does not matter here.
    given.shuffle = given.shuffle.or(Some(ShuffleSpec::from(false)));
    let options = Options::from_schema(&given).map_err(text)?;
    options.transform.validate().map_err(text)?;
    match options.transform.output_values() {
        0 => Err("images stay encoded with these options: choose a transform".to_owned()),
        values if values > MAX_VALUES => Err(format!(
            "the transform makes {values} values, and {MAX_VALUES} are shown at most"
        )),
        _ => Ok(options),
    }
}

/// Returns the pixels that a loader makes of a record, tinted by the first mask if asked for, and where the boxes are.
fn draw(
    source: &ViewSource,
    record: &Record,
    options: &Options,
    seed: SampleSeed,
    mask: bool,
) -> Result<(RgbImage, Boxes), String> {
    let found = image_of(source, record)?;
    let encoded = Encoded {
        bytes: found.image,
        seek_points: found.seek_points.into(),
    };
    let example = ExampleView::parse(&record.bytes).map_err(text)?;
    let value = |column_type: ColumnType| {
        let mut columns = source.schema.columns().iter();
        let column = columns.find(|column| column.column_type == column_type)?;
        column.read(example).ok().flatten()
    };
    let (boxes, labels) = match value(ColumnType::Boxes) {
        Some(ColumnValue::Boxes { boxes, labels }) => (boxes, labels),
        _ => Boxes::default(),
    };
    let (transform, output) = (&options.transform, &options.output);
    let mut out = vec![0; transform.output_values() * output.dtype.bytes()];
    let mut decoder = Decoder::with_options(options.decode);
    let mut tracking = Tracking {
        boxes: Some(&boxes),
        ..Tracking::default()
    };
    // Transforms that cannot move objects work without them.
    let moves = transform.check_objects().is_ok();
    let (decoder, tracked) = (&mut decoder, &mut tracking);
    let applied = match moves {
        true => transform.apply_tracked(decoder, encoded, seed, output, &mut out, tracked),
        false => transform.apply(decoder, encoded, seed, output, &mut out),
    };
    applied.map_err(text)?;
    let (height, width) = transform.output_size();
    let mut image = RgbImage {
        width,
        height,
        data: as_bytes(out, output),
    };
    if !moves {
        return Ok((image, Boxes::default()));
    }
    if mask
        && let Some(ColumnValue::Bytes(encoded)) = value(ColumnType::Mask)
        && let Ok(mask) = decode_mask(encoded, &options.decode.limits)
        && let Ok(mask) = tracking.map.mask(&mask)
    {
        tint(&mut image.data, &mask);
    }
    let placed = tracking.map.boxes(&boxes, false).into_iter();
    let label = |index: usize| labels.get(index).copied().unwrap_or(-1);
    let placed = placed.map(|(index, sides)| (sides, label(index)));
    Ok((image, placed.unzip()))
}

/// Returns pixels as bytes: normalized values become the colors that they were computed from.
fn as_bytes(values: Vec<u8>, output: &Output) -> Vec<u8> {
    let Some(normalize) = output.normalize else {
        return values;
    };
    let numbers = values.chunks_exact(4);
    let numbers = numbers.map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    let color = |(at, value): (usize, f32)| {
        let (mean, std) = (normalize.mean[at % 3], normalize.std[at % 3]);
        ((value * std + mean) * 255.0).round().clamp(0.0, 255.0) as u8
    };
    numbers.enumerate().map(color).collect()
}

fn image_of<'r>(source: &ViewSource, record: &'r Record) -> Result<ImageRecord<'r>, String> {
    let found = source.features.image_record(&record.bytes);
    found.map_err(text)
}
