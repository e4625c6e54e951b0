//! Writing records as arrays: the same bytes for the same records.
//!
//! The length of an array comes before its rows, so rows wait in an unnamed file for each array until the last record.

use super::table::{IMAGES, KEYS, LABELS};
use super::{Element, OFFSETS};
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
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::sync::Arc;

/// Features that say how an image is encoded, which its pixels do not keep.
const OF_ENCODING: [&str; 5] = [
    IMAGE_SEEK_POINTS,
    IMAGE_PROGRESSIVE,
    "image/format",
    "image/colorspace",
    "image/channels",
];
const SPOOL_BYTES: usize = 256 << 10;

/// How a format stores text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::records) enum TextAs {
    /// Four bytes a character, as many characters as the longest text has.
    Utf32,
    /// UTF-8, and offsets.
    Ragged,
}

/// A format that arrays are written to.
pub(in crate::records) trait ArrayEncoder: fmt::Debug + Send + Sync {
    /// A file of it in words, with an article.
    fn title(&self) -> &'static str;

    /// The extension of its files, with the dot.
    fn extension(&self) -> &'static str;

    fn text(&self) -> TextAs;

    /// Whether it has no type for elements.
    fn refuses(&self, element: &Element) -> bool;

    /// Writes a file of arrays, which are in the order of their names.
    fn encode(&self, arrays: &mut [SpooledArray], out: &mut dyn Write) -> io::Result<()>;
}

/// An array whose rows are in a file.
#[derive(Debug)]
pub(in crate::records) struct SpooledArray {
    pub(in crate::records) name: String,
    pub(in crate::records) element: Element,
    pub(in crate::records) shape: Vec<u64>,
    /// Bytes of an element.
    pub(in crate::records) width: u64,
    rows: File,
    /// The length of each row of text in that file, which are filled up here.
    lens: Option<Vec<u32>>,
}

impl SpooledArray {
    pub(in crate::records) fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.width
    }

    /// Reads the rows from the first one.
    pub(in crate::records) fn reader(&mut self) -> io::Result<impl Read + '_> {
        self.rows.rewind()?;
        Ok(Rows {
            file: BufReader::with_capacity(SPOOL_BYTES, &self.rows),
            lens: self.lens.as_deref(),
            width: self.width as usize,
            row: Vec::new(),
            taken: 0,
        })
    }
}

/// The rows of an array, text filled up to its width.
struct Rows<'a> {
    file: BufReader<&'a File>,
    lens: Option<&'a [u32]>,
    width: usize,
    row: Vec<u8>,
    taken: usize,
}

impl Read for Rows<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some(lens) = &mut self.lens else {
            return self.file.read(out);
        };
        while self.taken == self.row.len() {
            let Some((len, rest)) = lens.split_first() else {
                return Ok(0);
            };
            *lens = rest;
            self.row.resize(*len as usize, 0);
            self.file.read_exact(&mut self.row)?;
            self.row.resize(self.width, 0);
            self.taken = 0;
            if self.width == 0 {
                return Ok(0);
            }
        }
        let there = &self.row[self.taken..];
        let len = there.len().min(out.len());
        out[..len].copy_from_slice(&there[..len]);
        self.taken += len;
        Ok(len)
    }
}

/// How the values of a column are stored.
#[derive(Debug, Clone, PartialEq)]
enum Stored {
    /// The pixels of images.
    Pixels,
    Label,
    Key,
    Fixed(NumberType, Vec<u64>),
    Ragged(NumberType, Vec<u64>),
    Text,
}

/// A column, and the array that it becomes.
#[derive(Debug)]
struct Source {
    column: Option<Column>,
    stored: Stored,
}

/// The arrays that are written.
#[derive(Debug)]
struct Layout {
    sources: BTreeMap<String, Source>,
    /// Features that are written, or left out without being asked.
    known: BTreeSet<String>,
    label_base: i64,
    /// Height, width and channels of all images; none without a record.
    image: Option<[u64; 3]>,
    title: &'static str,
    text: TextAs,
}

/// Arrays that are being written.
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
        if options.compression != BlockCompression::NONE {
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
        // Features that make up no column.
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

/// The pixels of an image, and whether all are gray as it stores them.
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
            spools,
            rows: 0,
            decoder: Decoder::new(Limits::default()),
            value: Vec::new(),
        }))
    }
}

/// The rows of an array so far.
struct Spool {
    name: String,
    data: BufWriter<File>,
    /// Elements of all rows.
    count: u64,
    /// For rows of any length: the number of elements at the end of each.
    ends: Option<BufWriter<File>>,
    /// For text that is filled up: the bytes of each, and of the longest.
    lens: Option<(Vec<u32>, u32)>,
    number: NumberType,
    /// The dimensions of a row, or of an element of a row of any length.
    shape: Vec<u64>,
}

impl Spool {
    fn new(name: &str, source: &Source, layout: &Layout, scratch: Scratch<'_>) -> Result<Self> {
        let buffered = || scratch().map(|file| BufWriter::with_capacity(SPOOL_BYTES, file));
        let is_text = matches!(source.stored, Stored::Text | Stored::Key);
        let (number, shape) = match &source.stored {
            Stored::Fixed(number, shape) | Stored::Ragged(number, shape) => {
                (*number, shape.clone())
            }
            Stored::Label => (NumberType::Int64, Vec::new()),
            Stored::Text | Stored::Key => (NumberType::Uint8, Vec::new()),
            Stored::Pixels => {
                let [height, width, channels] = layout.image.unwrap_or([0, 0, 3]);
                let shape = match channels {
                    1 => vec![height, width],
                    channels => vec![height, width, channels],
                };
                (NumberType::Uint8, shape)
            }
        };
        let is_padded = is_text && layout.text == TextAs::Utf32;
        let is_ragged = (is_text && !is_padded) || matches!(source.stored, Stored::Ragged(..));
        let mut ends = None;
        if is_ragged {
            let mut file = buffered()?;
            let begun = file.write_all(&0u64.to_le_bytes());
            begun.map_err(|error| crate::Error::io(name, "write offsets of", error))?;
            ends = Some(file);
        }
        Ok(Self {
            name: name.to_owned(),
            data: buffered()?,
            count: 0,
            ends,
            lens: is_padded.then(|| (Vec::new(), 0)),
            number,
            shape,
        })
    }

    /// Appends the bytes of one row.
    fn put(&mut self, row: &[u8]) -> std::result::Result<(), SinkError> {
        let element = self.shape.iter().product::<u64>() * self.number.bytes() as u64;
        if let Some(ends) = &mut self.ends {
            self.count += row.len() as u64 / element.max(1);
            ends.write_all(&self.count.to_le_bytes())?;
        } else if let Some((lens, longest)) = &mut self.lens {
            let text = String::from_utf8_lossy(row);
            if text.ends_with('\0') {
                let what = "a text that ends with a zero would be read back without it".to_owned();
                return Err(SinkError::Record(what));
            }
            let len = u32::try_from(text.chars().count() * 4).unwrap_or(u32::MAX);
            lens.push(len);
            *longest = (*longest).max(len);
            for character in text.chars() {
                self.data.write_all(&u32::from(character).to_le_bytes())?;
            }
            return Ok(());
        } else if row.len() as u64 != element {
            let what = format!(
                "{} bytes are not a row of shape {:?}",
                row.len(),
                self.shape
            );
            return Err(SinkError::Record(what));
        }
        Ok(self.data.write_all(row)?)
    }

    /// The arrays of `rows` rows.
    fn finish(self, rows: u64, arrays: &mut Vec<SpooledArray>) -> io::Result<()> {
        let data = self.data.into_inner()?;
        let mut shape = self.shape;
        let mut width = self.number.bytes() as u64;
        let mut element = Element::Number(self.number);
        shape.insert(
            0,
            if self.ends.is_some() {
                self.count
            } else {
                rows
            },
        );
        let mut lens = None;
        if let Some((all, longest)) = self.lens {
            // NumPy has no text without characters.
            (element, width) = (Element::Utf32, u64::from(longest.max(4)));
            lens = Some(all);
        }
        arrays.push(SpooledArray {
            name: self.name.clone(),
            element,
            shape,
            width,
            rows: data,
            lens,
        });
        if let Some(ends) = self.ends {
            arrays.push(SpooledArray {
                name: format!("{}{OFFSETS}", self.name),
                element: Element::Number(NumberType::Int64),
                shape: vec![rows + 1],
                width: 8,
                rows: ends.into_inner()?,
                lens: None,
            });
        }
        Ok(())
    }
}

/// Writes the arrays of one file.
struct Writer {
    layout: Arc<Layout>,
    encoder: Arc<dyn ArrayEncoder>,
    spools: Vec<Spool>,
    rows: u64,
    decoder: Decoder,
    value: Vec<u8>,
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
        for (source, spool) in layout.sources.values().zip(&mut self.spools) {
            self.value.clear();
            let put = source.put(record, example, &layout, &mut self.decoder, &mut self.value);
            put.map_err(SinkError::Record)?;
            spool.put(&self.value)?;
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
            // A row of any length may have no numbers; a byte string and no byte string are not the same.
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
    /// Appends the pixels of an image, which has the size of the first one.
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
