//! Writes records as arrays. The output is deterministic.
//!
//! An array begins with its length, so the rows of each array are kept in an unnamed temporary file until the last record.

use super::Element;
use super::spool::{Spool, SpooledArray};
use super::table::{IMAGES, KEYS, LABELS};
use crate::error::Result;
use crate::finding::escape;
use crate::records::sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError, SinkOptions};
use crate::records::{SourceFacts, SourceRecord};
use forebay_image::{Color, Decoder, Limits, RgbImage, probe};
use forebay_shard::example::{FeatureKind, IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS};
use forebay_shard::schema::{Column, ColumnType, ColumnValue, NumberType, Schema};
use forebay_shard::{BlockCompression, ExampleView};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

/// Features about the encoding of an image. They are dropped, because only pixels are stored.
const OF_ENCODING: [&str; 5] = [
    IMAGE_SEEK_POINTS,
    IMAGE_PROGRESSIVE,
    "image/format",
    "image/colorspace",
    "image/channels",
];

/// How a format stores text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::records) enum TextAs {
    /// Four bytes per character, padded to the length of the longest text.
    Utf32,
    /// UTF-8 with offsets.
    Ragged,
    /// UTF-8 of variable length.
    Utf8,
}

/// A file format of arrays.
pub(in crate::records) trait ArrayEncoder: fmt::Debug + Send + Sync {
    /// Returns a description of a file in the format, with an article.
    fn title(&self) -> &'static str;

    /// Returns the extension of its files, with the dot.
    fn extension(&self) -> &'static str;

    fn text(&self) -> TextAs;

    /// Returns whether the format does not support this type of elements.
    fn refuses(&self, element: &Element) -> bool;

    /// Returns whether the format itself compresses rows.
    fn is_compressed(&self) -> bool {
        false
    }

    /// Writes a file of arrays, which are sorted by name.
    fn encode(&self, arrays: &mut [SpooledArray], out: &mut dyn Write) -> io::Result<()>;
}

/// How the values of a column are stored.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stored {
    /// Decoded pixels of images.
    Pixels,
    Label,
    Key,
    Fixed(NumberType, Vec<u64>),
    Ragged(NumberType, Vec<u64>),
    Text,
}

/// A column, and how it is stored as an array.
#[derive(Debug)]
pub(super) struct Source {
    column: Option<Column>,
    pub(super) stored: Stored,
}

/// The arrays of a file and the columns that are stored in them.
#[derive(Debug)]
pub(super) struct Layout {
    sources: BTreeMap<String, Source>,
    /// Features that are written or silently dropped. Any other feature of a record is an error.
    known: BTreeSet<String>,
    label_base: i64,
    /// Height, width and channels of all images; `None` if there are no records.
    pub(super) image: Option<[u64; 3]>,
    title: &'static str,
    pub(super) text: TextAs,
}

/// Writes files of arrays.
#[derive(Debug)]
pub(in crate::records) struct ArraySink {
    layout: Arc<Layout>,
    encoder: Arc<dyn ArrayEncoder>,
}

impl ArraySink {
    pub(in crate::records) fn new(
        facts: &SourceFacts,
        options: &SinkOptions,
        encoder: impl ArrayEncoder + 'static,
    ) -> std::result::Result<Self, String> {
        let title = encoder.title();
        if options.compression != BlockCompression::NONE && !encoder.is_compressed() {
            return Err(format!(
                "{title} is written without compression: leave --codec out"
            ));
        }
        let mut layout = Layout {
            sources: BTreeMap::new(),
            known: OF_ENCODING.map(str::to_owned).into(),
            label_base: facts.label_base,
            image: None,
            title,
            text: encoder.text(),
        };
        layout.insert(KEYS, None, Stored::Key)?;
        for column in facts.columns().columns() {
            layout.add(column, facts)?;
        }
        // Features that do not belong to a column.
        for feature in &facts.features {
            if layout.known.contains(&feature.name) || feature.kind == FeatureKind::Unset {
                continue;
            }
            let name = &feature.name;
            if feature.kind == FeatureKind::Bytes && !feature.shape.is_empty() {
                return Err(format!(
                    "feature {name:?} is a list of byte strings, which {title} cannot hold: --drop-feature {name} leaves it out"
                ));
            }
            let one = std::slice::from_ref(feature);
            for column in Schema::infer(one, &facts.record_features).columns() {
                layout.add(column, facts)?;
            }
        }
        for (name, source) in &layout.sources {
            if let Stored::Fixed(number, _) | Stored::Ragged(number, _) = &source.stored
                && encoder.refuses(&Element::Number(*number))
            {
                return Err(format!(
                    "feature {name:?} has numbers of type {}, which {title} has no type for: --drop-feature {name} leaves it out",
                    number.name()
                ));
            }
        }
        let image = &facts.record_features.image;
        if let Some(first) = &options.first_record
            && let Ok(example) = ExampleView::parse(first)
            && let Some(image) = example.bytes(image).ok().flatten()
        {
            let (decoded, is_gray) = decode(&mut Decoder::new(Limits::default()), image)?;
            let channels = if is_gray { 1 } else { 3 };
            layout.image = Some([decoded.height.into(), decoded.width.into(), channels]);
        }
        Ok(Self {
            layout: Arc::new(layout),
            encoder: Arc::new(encoder),
        })
    }
}

impl Layout {
    fn add(&mut self, column: &Column, facts: &SourceFacts) -> std::result::Result<(), String> {
        let features = column.features();
        if features
            .iter()
            .all(|feature| self.known.contains(&feature.name))
        {
            return Ok(());
        }
        self.known
            .extend(features.iter().map(|feature| feature.name.clone()));
        let feature = &column.feature;
        if *feature == facts.record_features.image {
            return self.insert(IMAGES, Some(column), Stored::Pixels);
        }
        if *feature == facts.record_features.label {
            return self.insert(LABELS, Some(column), Stored::Label);
        }
        let stored = match &column.column_type {
            ColumnType::Boxes | ColumnType::Keypoints => {
                for feature in features {
                    let number = match feature.kind {
                        FeatureKind::Int64 => NumberType::Int64,
                        _ => NumberType::Float32,
                    };
                    let list = ColumnType::Vector { len: None, number };
                    let mut column = Column::new(&feature.name, list);
                    column.feature.clone_from(&feature.name);
                    let stored = Stored::Ragged(number, Vec::new());
                    self.insert(&feature.name, Some(&column), stored)?;
                }
                return Ok(());
            }
            ColumnType::Text => Stored::Text,
            ColumnType::Image | ColumnType::Mask | ColumnType::Bytes => {
                Stored::Ragged(NumberType::Uint8, Vec::new())
            }
            ColumnType::Label | ColumnType::Int => Stored::Fixed(NumberType::Int64, Vec::new()),
            ColumnType::Float => Stored::Fixed(NumberType::Float32, Vec::new()),
            ColumnType::Labels => Stored::Ragged(NumberType::Int64, Vec::new()),
            ColumnType::Vector { len, number } => match len {
                Some(len) => Stored::Fixed(*number, vec![*len]),
                None => Stored::Ragged(*number, Vec::new()),
            },
            ColumnType::Tensor { shape, number } => {
                let inner: Option<Vec<u64>> = shape.iter().skip(1).copied().collect();
                match (shape.first(), inner) {
                    (None, _) => Stored::Fixed(*number, Vec::new()),
                    (Some(Some(rows)), Some(mut dims)) => {
                        dims.insert(0, *rows);
                        Stored::Fixed(*number, dims)
                    }
                    (Some(None), Some(dims)) => Stored::Ragged(*number, dims),
                    (Some(_), None) => {
                        return Err(format!(
                            "feature {feature:?} has tensors of {} whose inner dimensions vary, which {} cannot hold: --drop-feature {feature} leaves it out",
                            column.column_type, self.title
                        ));
                    }
                }
            }
            other => {
                return Err(format!(
                    "feature {feature:?} of type {other} cannot be an array: --drop-feature {feature} leaves it out"
                ));
            }
        };
        self.insert(feature, Some(column), stored)
    }

    fn insert(
        &mut self,
        name: &str,
        column: Option<&Column>,
        stored: Stored,
    ) -> std::result::Result<(), String> {
        let source = Source {
            column: column.cloned(),
            stored,
        };
        match self.sources.insert(name.to_owned(), source) {
            None => Ok(()),
            Some(_) => Err(format!(
                "several features would be the array {name:?}: --drop-feature {name} leaves out the one of that name"
            )),
        }
    }
}

/// Decodes an image. Returns its pixels, and whether it is stored in gray.
fn decode(decoder: &mut Decoder, image: &[u8]) -> std::result::Result<(RgbImage, bool), String> {
    let refused =
        |error: forebay_image::ImageError| format!("its image cannot be decoded: {error}");
    let header = probe(image, decoder.limits()).map_err(refused)?;
    let pixels = decoder.decode(image).map_err(refused)?;
    Ok((pixels, header.color == Color::Gray))
}

impl RecordSink for ArraySink {
    fn file_name(&self, split: &str, number: u32, _count: u32) -> String {
        format!("{split}-{number:05}{}", self.encoder.extension())
    }

    fn begin(&self, _first: u64, scratch: Scratch<'_>) -> Result<Box<dyn RecordWriter>> {
        let mut spools = Vec::new();
        for (name, source) in &self.layout.sources {
            spools.push(Spool::new(name, source, &self.layout, scratch)?);
        }
        Ok(Box::new(Writer {
            layout: Arc::clone(&self.layout),
            encoder: Arc::clone(&self.encoder),
            values: vec![Vec::new(); spools.len()],
            spools,
            rows: 0,
            decoder: Decoder::new(Limits::default()),
        }))
    }
}

/// Writes the arrays of one file.
struct Writer {
    layout: Arc<Layout>,
    encoder: Arc<dyn ArrayEncoder>,
    spools: Vec<Spool>,
    rows: u64,
    decoder: Decoder,
    /// The values of the current record, one for each array.
    values: Vec<Vec<u8>>,
}

impl RecordWriter for Writer {
    fn append(
        &mut self,
        record: &SourceRecord<'_>,
        _out: &mut dyn Write,
    ) -> std::result::Result<Appended, SinkError> {
        let layout = Arc::clone(&self.layout);
        let example = ExampleView::parse(record.bytes)
            .map_err(|error| SinkError::Record(format!("it is no tensorflow.Example: {error}")))?;
        let mut features = example.iter().map(|feature| feature.name());
        if let Some(name) = features.find(|name| !layout.known.contains(*name)) {
            return Err(SinkError::Record(format!(
                "feature {name:?} is none of the columns, which all records have: --drop-feature {name} leaves it out"
            )));
        }
        // Check all values before adding any: a refused record must not leave values in some of the arrays.
        for (number, source) in layout.sources.values().enumerate() {
            let value = &mut self.values[number];
            value.clear();
            let put = source.put(record, example, &layout, &mut self.decoder, value);
            let checked = put.and_then(|()| self.spools[number].check(value));
            checked.map_err(SinkError::Record)?;
        }
        for (value, spool) in self.values.iter().zip(&mut self.spools) {
            spool.put(value)?;
        }
        self.rows += 1;
        let is_text = std::str::from_utf8(record.key).is_ok();
        Ok(Appended {
            new_key: (!is_text).then(|| escape(record.key)),
        })
    }

    fn finish(
        &mut self,
        _name: &str,
        out: &mut dyn Write,
    ) -> std::result::Result<Value, SinkError> {
        let mut arrays = Vec::new();
        for spool in std::mem::take(&mut self.spools) {
            spool.finish(self.rows, &mut arrays)?;
        }
        arrays.sort_by(|a, b| a.name.cmp(&b.name));
        self.encoder.encode(&mut arrays, out)?;
        Ok(Value::Null)
    }
}

impl Source {
    /// Appends the row of a record.
    fn put(
        &self,
        record: &SourceRecord<'_>,
        example: ExampleView<'_>,
        layout: &Layout,
        decoder: &mut Decoder,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        let Some(column) = &self.column else {
            match std::str::from_utf8(record.key) {
                Ok(key) => out.extend_from_slice(key.as_bytes()),
                Err(_) => out.extend_from_slice(escape(record.key).as_bytes()),
            }
            return Ok(());
        };
        if self.stored == Stored::Label {
            let label = match record.label {
                None | Some(-1) => -1,
                Some(stored) if stored < layout.label_base => {
                    return Err(format!(
                        "its label is {stored}, and the first class has label {}",
                        layout.label_base
                    ));
                }
                Some(stored) => stored - layout.label_base,
            };
            out.extend_from_slice(&label.to_le_bytes());
            return Ok(());
        }
        let name = &column.feature;
        let refused =
            |what: String| format!("feature {name:?}: {what}; --drop-feature {name} leaves it out");
        let value = column.read(example);
        let value = value.map_err(|error| refused(error.to_string()))?;
        match value {
            Some(ColumnValue::Bytes(image)) if self.stored == Stored::Pixels => {
                return layout.pixels(decoder, image, out);
            }
            Some(ColumnValue::Bytes(bytes)) => out.extend_from_slice(bytes),
            Some(ColumnValue::Int(value)) => out.extend_from_slice(&value.to_le_bytes()),
            Some(ColumnValue::Float(value)) => out.extend_from_slice(&value.to_le_bytes()),
            Some(ColumnValue::Ints(values)) => {
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Some(ColumnValue::Floats(values)) => {
                out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            }
            Some(ColumnValue::Tensor { bytes, .. }) => out.extend_from_slice(bytes),
            // A missing list of numbers is stored as an empty row. A missing byte string is refused, because it differs from an
            // empty one.
            None if matches!(self.stored, Stored::Ragged(..))
                && !matches!(
                    column.column_type,
                    ColumnType::Bytes | ColumnType::Image | ColumnType::Mask
                ) => {}
            _ => {
                let what = "this record has no value of it, and arrays have one for each record";
                return Err(refused(what.to_owned()));
            }
        }
        Ok(())
    }
}

impl Layout {
    /// Appends the pixels of an image, which must have the size of the first image.
    fn pixels(
        &self,
        decoder: &mut Decoder,
        image: &[u8],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        let (pixels, _) = decode(decoder, image)?;
        let size = [u64::from(pixels.height), u64::from(pixels.width)];
        let [height, width, channels] = self.image.unwrap_or([size[0], size[1], 3]);
        if size != [height, width] {
            return Err(format!(
                "its image has {}x{} pixels and the first one {width}x{height}: {} holds images of one size; pack with one size, or choose another format",
                size[1], size[0], self.title
            ));
        }
        if channels == 3 {
            out.extend_from_slice(&pixels.data);
            return Ok(());
        }
        if pixels
            .data
            .chunks_exact(3)
            .any(|rgb| rgb[0] != rgb[1] || rgb[0] != rgb[2])
        {
            return Err(format!(
                "its image has colors and the first one is gray: {} holds images of one kind",
                self.title
            ));
        }
        out.extend(pixels.data.iter().step_by(3));
        Ok(())
    }
}
