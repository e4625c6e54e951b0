//! Writes samples to tars. The output is deterministic.

use super::super::key_names::sample_name;
use super::super::npy::NpyHeader;
use super::columns::Placement;
use super::names::{JSON_EXTENSION, LABEL_EXTENSION};
use crate::error::Result;
use crate::option_names::{CODEC, DROP_FEATURE, PROGRESSIVE};
use crate::records::label_value::from_zero;
use crate::records::sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError, SinkOptions};
use crate::records::{SourceFacts, SourceRecord};
use forebay_image::Format;
use forebay_shard::example::{
    FeatureKind, FeatureView, IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS, RecordFeatures,
};
use forebay_shard::schema::{Column, ColumnType, ColumnValue};
use forebay_shard::{BlockCompression, ExampleView};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::sync::Arc;

const BLOCK: usize = 512;
/// Tars end with two empty blocks and are padded to a multiple of this size.
const RECORD: u64 = 20 * BLOCK as u64;
/// Longer names are stored in an extra member before the header.
const NAME_MAX_BYTES: usize = 100;
const LONG_NAME: &[u8] = b"././@LongLink";

/// Locations of features in a sample.
#[derive(Debug)]
struct Layout {
    targets: BTreeMap<String, FeatureTarget>,
    features: RecordFeatures,
    label_base: i64,
    json_is_column: bool,
}

#[derive(Debug)]
enum FeatureTarget {
    Image,
    Label,
    Member(String, Box<Column>),
    ImageMember(String),
    /// Not stored: readers derive it from another member or from the name.
    Derived,
}

/// Writes WebDataset tars.
#[derive(Debug)]
pub(super) struct Sink(Arc<Layout>);

impl Sink {
    pub(super) fn new(
        facts: &SourceFacts,
        options: &SinkOptions,
    ) -> std::result::Result<Self, String> {
        if options.compression != BlockCompression::NONE {
            return Err(format!(
                "WebDatasets are written as plain tars, whose samples can be read at their places: leave {CODEC} out"
            ));
        }
        let mut targets = BTreeMap::new();
        let mut extensions: BTreeMap<String, String> = BTreeMap::new();
        for column in facts.columns().columns() {
            let (extension, target) = match Placement::of(column, &facts.record_features) {
                Placement::Image => (None, FeatureTarget::Image),
                Placement::Label => (None, FeatureTarget::Label),
                Placement::Member(extension) => (
                    Some(extension.clone()),
                    FeatureTarget::Member(extension, Box::new(column.clone())),
                ),
                Placement::ImageMember(name) => {
                    (Some(name.clone()), FeatureTarget::ImageMember(name))
                }
                Placement::Json => continue,
            };
            if let Some(extension) = extension
                && let Some(other) = extensions.insert(extension.clone(), column.name.clone())
            {
                return Err(format!(
                    "features {other:?} and {:?} would both be members {extension:?}: {DROP_FEATURE} leaves one of them out",
                    column.feature
                ));
            }
            for feature in column.features() {
                targets.insert(feature.name, FeatureTarget::Derived);
            }
            targets.insert(column.feature.clone(), target);
        }
        // Loaders recompute seek points, and other readers do not use them.
        targets.insert(IMAGE_SEEK_POINTS.to_owned(), FeatureTarget::Derived);
        Ok(Self(Arc::new(Layout {
            targets,
            features: facts.record_features.clone(),
            label_base: facts.label_base,
            json_is_column: extensions.contains_key(JSON_EXTENSION),
        })))
    }
}

impl RecordSink for Sink {
    fn file_name(&self, split: &str, number: u32, _count: u32) -> String {
        format!("{split}-{number:06}.tar")
    }

    fn begin(&self, first: u64, _scratch: Scratch<'_>) -> Result<Box<dyn RecordWriter>> {
        Ok(Box::new(Writer {
            layout: Arc::clone(&self.0),
            number: first,
            names: HashSet::new(),
            written: 0,
        }))
    }
}

/// Writes one tar.
struct Writer {
    layout: Arc<Layout>,
    /// The number of the next record in its split.
    number: u64,
    /// Names of the samples that were written.
    names: HashSet<String>,
    written: u64,
}

impl RecordWriter for Writer {
    fn append(
        &mut self,
        record: &SourceRecord<'_>,
        out: &mut dyn Write,
    ) -> std::result::Result<Appended, SinkError> {
        let layout = Arc::clone(&self.layout);
        let members = layout.members(record).map_err(SinkError::Record)?;
        let (image, format) = match &members.image {
            Some(image) => (Some(image), forebay_image::sniff(image)),
            None => (None, None),
        };
        let (stem, extension) = stem(record.key);
        // An image keeps the extension of its key.
        let own = extension.filter(|_| image.is_some());
        let name = self.unique(stem, record.key);
        let extension = own.map_or_else(|| extension_of(format).to_owned(), str::to_owned);
        let key = match image {
            Some(_) => format!("{name}.{extension}"),
            None => name.clone(),
        };
        if let Some(image) = image {
            self.member(&key, image, out)?;
        }
        for (extension, bytes) in &members.others {
            self.member(&format!("{name}.{extension}"), bytes, out)?;
        }
        self.number += 1;
        Ok(Appended {
            new_key: (key.as_bytes() != record.key).then_some(key),
        })
    }

    fn finish(
        &mut self,
        _name: &str,
        out: &mut dyn Write,
    ) -> std::result::Result<Value, SinkError> {
        let end = (self.written + 2 * BLOCK as u64).next_multiple_of(RECORD);
        io::copy(&mut io::Read::take(io::repeat(0), end - self.written), out)?;
        Ok(Value::Null)
    }
}

impl Writer {
    /// Returns a unique name for a sample. If the name is taken, the extension is kept in it, or the number of the record is
    /// appended.
    fn unique(&mut self, stem: &[u8], key: &[u8]) -> String {
        let number = self.number;
        let candidates = [
            (!stem.is_empty()).then(|| sample_name(stem)),
            (!key.is_empty()).then(|| sample_name(key)),
            Some(format!("{}%23{number:08}", sample_name(stem))),
        ];
        let mut candidates = candidates.into_iter().flatten();
        let found = candidates.find(|name| !self.names.contains(name));
        let name = found.unwrap_or_else(|| format!("%23{number:08}"));
        self.names.insert(name.clone());
        name
    }

    fn member(&mut self, name: &str, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        if name.len() > NAME_MAX_BYTES {
            let long = [name.as_bytes(), b"\0"].concat();
            out.write_all(&header(LONG_NAME, long.len(), b'L'))?;
            self.data(&long, out)?;
        }
        let short = &name.as_bytes()[..name.len().min(NAME_MAX_BYTES)];
        out.write_all(&header(short, bytes.len(), b'0'))?;
        self.data(bytes, out)
    }

    fn data(&mut self, bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
        out.write_all(bytes)?;
        let padded = bytes.len().next_multiple_of(BLOCK);
        out.write_all(&[0; BLOCK][..padded - bytes.len()])?;
        self.written += (BLOCK + padded) as u64;
        Ok(())
    }
}

/// Returns a GNU tar header of a regular file that everybody may read, without time and owner.
fn header(name: &[u8], size: usize, kind: u8) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar  \0");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Returns a key without an image extension, and that extension.
fn stem(key: &[u8]) -> (&[u8], Option<&str>) {
    let dot = key.iter().rposition(|byte| *byte == b'.');
    let taken = dot.and_then(|dot| {
        let extension = std::str::from_utf8(key.get(dot + 1..)?).ok()?;
        let lower = extension.to_ascii_lowercase();
        let is_image = Format::from_extension(lower.as_bytes()).is_some();
        let begins_part = dot == 0 || key.get(dot - 1) == Some(&b'/');
        (is_image && !begins_part).then_some((key.get(..dot)?, extension))
    });
    taken.map_or((key, None), |(stem, extension)| (stem, Some(extension)))
}

/// Returns the extension for an image whose key has none; `img` for an unknown format.
fn extension_of(format: Option<Format>) -> &'static str {
    format.map_or("img", Format::extension)
}

/// The content of a sample.
struct Members<'a> {
    image: Option<&'a [u8]>,
    /// Extensions and content: the label first, then the rest sorted by name.
    others: Vec<(String, Cow<'a, [u8]>)>,
}

impl Layout {
    fn members<'a>(&self, record: &SourceRecord<'a>) -> std::result::Result<Members<'a>, String> {
        let example = ExampleView::parse(record.bytes)
            .map_err(|error| format!("it is no tensorflow.Example: {error}"))?;
        let image = self
            .features
            .image(example)
            .map_err(|error| error.to_string())?;
        let mut label = Vec::new();
        if let Some(stored) = record.label {
            let text = from_zero(stored, self.label_base)?.to_string().into_bytes();
            label.push((LABEL_EXTENSION.to_owned(), Cow::Owned(text)));
        }
        let (mut json, mut others) = (Map::new(), Vec::new());
        for feature in example.iter() {
            let name = feature.name();
            let refused = |what: String| {
                format!(
                    "feature {name:?} cannot be a member of a tar: {what}; {DROP_FEATURE} {name} leaves it out"
                )
            };
            match self.targets.get(name) {
                Some(FeatureTarget::Image | FeatureTarget::Label | FeatureTarget::Derived) => {}
                Some(FeatureTarget::Member(extension, column)) => {
                    if let Some(bytes) = member(column, example).map_err(refused)? {
                        others.push((extension.clone(), bytes));
                    }
                }
                Some(FeatureTarget::ImageMember(extension)) => {
                    let bytes = example.bytes(name).map_err(|e| refused(e.to_string()))?;
                    if let Some(bytes) = bytes {
                        let end = extension_of(forebay_image::sniff(bytes));
                        others.push((format!("{extension}.{end}"), bytes.into()));
                    }
                }
                None if name == IMAGE_PROGRESSIVE => {
                    return Err(format!(
                        "its image was made from a progressive JPEG, which only Forebay can make of it again: {PROGRESSIVE} original writes that, {DROP_FEATURE} {name} the image as it is"
                    ));
                }
                None => {
                    if self.json_is_column {
                        return Err(refused(
                            "it would go to the member \"json\", which the samples have already"
                                .into(),
                        ));
                    }
                    json.insert(name.to_owned(), json_of(feature).map_err(refused)?);
                }
            }
        }
        if !json.is_empty() {
            let bytes = serde_json::to_vec(&json).map_err(|error| error.to_string())?;
            others.push((JSON_EXTENSION.to_owned(), bytes.into()));
        }
        // If a record repeats a feature, every copy was read with the value of the last one, so duplicates are equal.
        others.sort_by(|a, b| a.0.cmp(&b.0));
        others.dedup_by(|a, b| a.0 == b.0);
        label.append(&mut others);
        Ok(Members {
            image,
            others: label,
        })
    }
}

/// Returns the content of a column's own member; `None` if the record has no value.
fn member<'a>(
    column: &Column,
    example: ExampleView<'a>,
) -> std::result::Result<Option<Cow<'a, [u8]>>, String> {
    let value = column.read(example).map_err(|error| error.to_string())?;
    Ok(match (value, &column.column_type) {
        (Some(ColumnValue::Bytes(bytes)), _) => Some(bytes.into()),
        (Some(ColumnValue::Tensor { shape, bytes }), ColumnType::Tensor { number, .. }) => {
            let mut array = Vec::with_capacity(bytes.len() + 128);
            NpyHeader::encode(*number, &shape, &mut array)
                .ok_or_else(|| format!("NumPy has no type {}", number.name()))?;
            array.extend_from_slice(bytes);
            Some(array.into())
        }
        _ => None,
    })
}

/// Returns a feature as JSON: a single value, or a list if there are more or fewer values than one.
fn json_of(feature: FeatureView<'_>) -> std::result::Result<Value, String> {
    let kind = feature.kind().map_err(|error| error.to_string())?;
    let damaged = |error: forebay_shard::ExampleError| error.to_string();
    let mut values: Vec<Value> = match kind {
        FeatureKind::Unset => return Ok(Value::Null),
        FeatureKind::Int64 => {
            let values = feature.int64s().map_err(damaged)?;
            values.into_iter().map(Value::from).collect()
        }
        FeatureKind::Float => {
            let values = feature.floats().map_err(damaged)?.into_iter();
            let numbers = values.map(|value| serde_json::Number::from_f64(f64::from(value)));
            let numbers: Option<Vec<_>> = numbers.map(|n| n.map(Value::Number)).collect();
            numbers.ok_or("JSON has no infinity and no NaN")?
        }
        FeatureKind::Bytes => {
            let values = feature.bytes_list().map_err(damaged)?.into_iter();
            let texts = values.map(|value| std::str::from_utf8(value).map(Value::from));
            let texts: std::result::Result<Vec<_>, _> = texts.collect();
            texts.map_err(|_| "its bytes are not UTF-8")?
        }
    };
    Ok(match values.len() {
        1 => values.remove(0),
        _ => Value::Array(values),
    })
}
