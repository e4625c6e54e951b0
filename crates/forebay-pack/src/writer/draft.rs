//! Samples as given by the caller, and their validation against the schema.

use super::options::WriterOptions;
use crate::write::examine;
use forebay_formats::images::Refusal;
use forebay_image::{Decoder, Limits, SampleFormat};
use forebay_shard::{Column, ColumnType, ColumnValue, ExampleError, MAX_RECORD_BYTES, some_of};

/// Maximum total size of a sample's values in bytes: that of a record, minus space for names and seek points.
const MAX_VALUE_BYTES: u64 = MAX_RECORD_BYTES - (1 << 20);
/// Memory of a sample in bytes, in addition to its values.
const SAMPLE_BYTES: u64 = 256;

/// A sample to write: its split, its key, and a value for each column.
#[derive(Debug, Clone)]
pub struct RecordDraft {
    pub(super) split: String,
    pub(super) key: Option<Vec<u8>>,
    pub(super) values: Vec<(String, Option<DraftValue>)>,
}

/// The value of a column in a sample. Labels count from 0.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum DraftValue {
    /// An encoded image or mask, text, JSON, or bytes.
    Bytes(Vec<u8>),
    /// Texts, or the segmentation of each object.
    List(Vec<Vec<u8>>),
    /// An image or a mask to encode.
    Pixels(DraftPixels),
    /// A label or an integer.
    Int(i64),
    /// A float.
    Float(f32),
    /// Labels, or a vector of integers.
    Ints(Vec<i64>),
    /// A vector of floats.
    Floats(Vec<f32>),
    /// A tensor.
    Tensor {
        /// Its dimensions.
        shape: Vec<u64>,
        /// Its numbers, little-endian, in row-major order.
        bytes: Vec<u8>,
    },
    /// Boxes.
    Boxes {
        /// Each as (xmin, ymin, xmax, ymax), from 0 to 1.
        boxes: Vec<[f32; 4]>,
        /// The label of each.
        labels: Vec<i64>,
    },
    /// Keypoints.
    Keypoints {
        /// Each as (x, y), from 0 to 1.
        points: Vec<[f32; 2]>,
        /// 0 for a point that is not labeled, 1 for one that is hidden, 2 for a visible one.
        visibility: Vec<i64>,
    },
}

/// Decoded pixels, in row-major order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftPixels {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) format: SampleFormat,
    pub(super) data: Vec<u8>,
}

impl RecordDraft {
    /// Creates a sample of a split. Without a key, it gets its number in the split as its key.
    pub fn new(split: impl Into<String>) -> Self {
        Self {
            split: split.into(),
            key: None,
            values: Vec::new(),
        }
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the value of a column.
    #[must_use]
    pub fn value(mut self, column: impl Into<String>, value: impl Into<DraftValue>) -> Self {
        self.values.push((column.into(), Some(value.into())));
        self
    }

    /// Declares that the sample has no value for a column.
    #[must_use]
    pub fn without(mut self, column: impl Into<String>) -> Self {
        self.values.push((column.into(), None));
        self
    }
}

impl DraftPixels {
    /// Creates the pixels of an image; `data` contains them in row-major order without gaps.
    ///
    /// # Errors
    /// The problem: a side with no or too many pixels, or data of the wrong length.
    pub fn new(
        width: u32,
        height: u32,
        format: SampleFormat,
        data: Vec<u8>,
    ) -> Result<Self, String> {
        let limits = Limits::default();
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 || width.max(height) > limits.max_side || pixels > limits.max_pixels {
            return Err(format!(
                "an image has 1 to {} pixels a side and {} in all, found {width}x{height}",
                limits.max_side, limits.max_pixels
            ));
        }
        let expected = pixels * format.pixel_bytes() as u64;
        if data.len() as u64 != expected {
            let found = data.len();
            return Err(format!(
                "expected {expected} bytes of {width}x{height} pixels, found {found}"
            ));
        }
        Ok(Self {
            width,
            height,
            format,
            data,
        })
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident $(($convert:expr))?,)*) => {$(
        impl From<$from> for DraftValue {
            fn from(value: $from) -> Self {
                Self::$variant($($convert)?(value))
            }
        }
    )*};
}

from! {
    Vec<u8> => Bytes(std::convert::identity),
    String => Bytes(String::into_bytes),
    &str => Bytes(Vec::from),
    DraftPixels => Pixels(std::convert::identity),
    i64 => Int(std::convert::identity),
    f32 => Float(std::convert::identity),
    Vec<i64> => Ints(std::convert::identity),
    Vec<f32> => Floats(std::convert::identity),
}

impl DraftValue {
    /// Returns the value as stored in a record; `None` for pixels, which are encoded first.
    pub(super) fn as_column(&self) -> Option<ColumnValue<'_>> {
        Some(match self {
            Self::Bytes(bytes) => ColumnValue::Bytes(bytes),
            Self::List(values) => ColumnValue::List(values.iter().map(Vec::as_slice).collect()),
            Self::Pixels(_) => return None,
            Self::Int(value) => ColumnValue::Int(*value),
            Self::Float(value) => ColumnValue::Float(*value),
            Self::Ints(values) => ColumnValue::Ints(values.clone()),
            Self::Floats(values) => ColumnValue::Floats(values.clone()),
            Self::Tensor { shape, bytes } => ColumnValue::Tensor {
                shape: shape.clone(),
                bytes,
            },
            Self::Boxes { boxes, labels } => ColumnValue::Boxes {
                boxes: boxes.clone(),
                labels: labels.clone(),
            },
            Self::Keypoints { points, visibility } => ColumnValue::Keypoints {
                points: points.clone(),
                visibility: visibility.clone(),
            },
        })
    }

    /// Returns its size in bytes.
    fn bytes(&self) -> u64 {
        (match self {
            Self::Bytes(bytes) | Self::Tensor { bytes, .. } => bytes.len(),
            Self::List(values) => values.iter().map(|value| value.len() + 8).sum(),
            Self::Pixels(pixels) => pixels.data.len(),
            Self::Int(_) | Self::Float(_) => 8,
            Self::Ints(values) => 8 * values.len(),
            Self::Floats(values) => 4 * values.len(),
            Self::Boxes { boxes, labels } => 16 * boxes.len() + 8 * labels.len(),
            Self::Keypoints { points, visibility } => 8 * points.len() + 8 * visibility.len(),
        }) as u64
    }

    fn in_words(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "bytes or text",
            Self::List(_) => "a list of texts",
            Self::Pixels(_) => "pixels",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Ints(_) => "integers",
            Self::Floats(_) => "floats",
            Self::Tensor { .. } => "a tensor",
            Self::Boxes { .. } => "boxes",
            Self::Keypoints { .. } => "keypoints",
        }
    }

    /// Converts labels to those that are stored.
    fn rebase(&mut self, column_type: &ColumnType, base: i64) {
        let stored = |label: &mut i64| {
            if *label >= 0 {
                *label += base;
            }
        };
        match (column_type, self) {
            (ColumnType::Label, Self::Int(label)) => stored(label),
            (ColumnType::Labels, Self::Ints(labels))
            | (ColumnType::Boxes, Self::Boxes { labels, .. }) => labels.iter_mut().for_each(stored),
            _ => {}
        }
    }
}

/// The values of a sample in the order of the columns, its label as stored, and the size of all values in bytes.
type CheckedValues = (Vec<Option<DraftValue>>, Option<i64>, u64);
/// The column, if the problem concerns one, and the problem.
type Problem = (Option<String>, String);

/// Validates the values of a sample, and sorts them into the order of the columns.
pub(super) fn check(
    options: &WriterOptions,
    decoder: &mut Decoder,
    given: Vec<(String, Option<DraftValue>)>,
) -> Result<CheckedValues, Problem> {
    let columns = options.schema.columns();
    let mut found: Vec<Option<Option<DraftValue>>> = columns.iter().map(|_| None).collect();
    for (name, value) in given {
        let Some(at) = columns.iter().position(|column| column.name == name) else {
            let known = some_of(columns.iter().map(|column| &column.name));
            let what = format!("the schema has no such column: it has {known}");
            return Err((Some(name), what));
        };
        if found[at].replace(value).is_some() {
            return Err((Some(name), "given twice".into()));
        }
    }
    let (mut values, mut label, mut bytes) =
        (Vec::with_capacity(columns.len()), None, SAMPLE_BYTES);
    for (column, value) in columns.iter().zip(found) {
        let problem = |what: String| (Some(column.name.clone()), what);
        let Some(value) = value else {
            let what = format!(
                "expected {}, found nothing; None says that there is no value",
                column.column_type
            );
            return Err(problem(what));
        };
        let mut value = match (value, &column.column_type) {
            (None, ColumnType::Label) => Some(DraftValue::Int(-1)),
            (None, ColumnType::Image) if column.name == forebay_shard::schema::IMAGE => {
                return Err(problem("every sample has an image".into()));
            }
            (value, _) => value,
        };
        if let Some(value) = &mut value {
            check_value(options, decoder, column, value).map_err(problem)?;
            value.rebase(&column.column_type, i64::from(options.label_base));
            if let (forebay_shard::schema::LABEL, DraftValue::Int(stored), ColumnType::Label) =
                (column.name.as_str(), &*value, &column.column_type)
            {
                label = Some(*stored);
            }
            bytes = bytes.saturating_add(value.bytes());
        }
        values.push(value);
    }
    if bytes > MAX_VALUE_BYTES {
        let what = format!("its values have {bytes} bytes, at most {MAX_VALUE_BYTES} fit a record");
        return Err((None, what));
    }
    Ok((values, label, bytes))
}

fn check_value(
    options: &WriterOptions,
    decoder: &mut Decoder,
    column: &Column,
    value: &DraftValue,
) -> Result<(), String> {
    let of_type = match value.as_column() {
        Some(value) => column.check(&value).map_err(|error| match error {
            ExampleError::Column { problem, .. } => problem,
            error => error.to_string(),
        }),
        None => match column.column_type {
            ColumnType::Image | ColumnType::Mask => Ok(()),
            _ => Err(format!("expected {}", column.column_type)),
        },
    };
    of_type.map_err(|problem| {
        match problem.contains("found") || !problem.starts_with("expected") {
            true => problem,
            false => format!("{problem}, found {}", value.in_words()),
        }
    })?;
    let classes = match options.has_classes(column) {
        true => options.classes.len(),
        false => 0,
    };
    match (&column.column_type, value) {
        (ColumnType::Image, DraftValue::Bytes(bytes)) => check_image(decoder, bytes),
        (ColumnType::Image, DraftValue::Pixels(pixels)) => match pixels.format {
            SampleFormat::Gray8 | SampleFormat::Rgb8 => Ok(()),
            SampleFormat::Gray16 => Err("expected pixels of 8 bits, found 16".into()),
        },
        (ColumnType::Mask, DraftValue::Bytes(bytes)) => {
            let checked = forebay_image::check_mask(bytes, &Limits::default());
            checked.map(drop).map_err(|error| error.to_string())
        }
        (ColumnType::Mask, DraftValue::Pixels(pixels)) => match pixels.format {
            SampleFormat::Gray8 | SampleFormat::Gray16 => Ok(()),
            SampleFormat::Rgb8 => Err("expected a mask of one channel, found three".into()),
        },
        (ColumnType::Label, DraftValue::Int(label)) => check_label(*label, classes),
        (ColumnType::Labels, DraftValue::Ints(labels)) => labels
            .iter()
            .try_for_each(|label| check_label(*label, classes)),
        (ColumnType::Boxes, DraftValue::Boxes { boxes, labels }) => {
            boxes
                .iter()
                .enumerate()
                .try_for_each(|(at, sides)| check_box(at, sides))?;
            labels
                .iter()
                .try_for_each(|label| check_label(*label, classes))
        }
        (ColumnType::Keypoints, DraftValue::Keypoints { points, visibility }) => {
            if let Some(at) = points.iter().position(|point| !point.iter().all(is_share)) {
                let [x, y] = points[at];
                return Err(format!(
                    "point {at}: expected x and y from 0 to 1, found ({x}, {y})"
                ));
            }
            match visibility.iter().find(|flag| !(0..=2).contains(*flag)) {
                Some(flag) => Err(format!("expected a visibility of 0, 1 or 2, found {flag}")),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn is_share(value: &f32) -> bool {
    (0.0..=1.0).contains(value)
}

fn check_box(at: usize, sides: &[f32; 4]) -> Result<(), String> {
    let [xmin, ymin, xmax, ymax] = sides;
    if sides.iter().all(is_share) && xmin <= xmax && ymin <= ymax {
        return Ok(());
    }
    Err(format!(
        "box {at}: expected xmin <= xmax and ymin <= ymax from 0 to 1, as parts of the image's sides, found ({xmin}, {ymin}, {xmax}, {ymax})"
    ))
}

/// Checks a label: labels count from 0, and -1 means none. The highest value is reserved for adding the label base.
fn check_label(label: i64, classes: usize) -> Result<(), String> {
    let last = match classes {
        0 => i64::MAX - 1,
        classes => classes as i64 - 1,
    };
    match (-1..=last).contains(&label) {
        true => Ok(()),
        false => Err(format!(
            "expected a label from 0 to {last}, or -1 for none, found {label}"
        )),
    }
}

/// Checks that decoders can read the bytes as an image. Pixels are decoded only if the header and the end leave doubts.
fn check_image(decoder: &mut Decoder, bytes: &[u8]) -> Result<(), String> {
    let refused = |(reason, detail): Refusal| match detail.is_empty() {
        true => reason.text().to_owned(),
        false => format!("{}: {detail}", reason.text()),
    };
    let examined = examine(bytes, b"", decoder.limits()).map_err(refused)?;
    if examined.is_doubtful {
        decoder.decode(bytes).map_err(|error| error.to_string())?;
    }
    Ok(())
}
