//! Writes records as arrays. The output is deterministic.
//!
//! An array begins with its length, so the rows of each array are kept in an unnamed temporary file until the last record.

use super::layout::{Layout, Stored, TextAs, decode};
use super::spool::{Spool, SpooledArray};
use super::table::KEYS;
use crate::error::Result;
use crate::option_names::{CODEC, DROP_FEATURE};
use crate::records::flat::{self, FlatColumns};
use crate::records::sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError, SinkOptions};
use crate::records::{SourceFacts, SourceRecord};
use forebay_image::{Decoder, Limits};
use forebay_shard::example::{IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS};
use forebay_shard::schema::NumberType;
use forebay_shard::{BlockCompression, ExampleView};
use serde_json::Value;
use std::collections::BTreeMap;
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

/// A file format of arrays.
#[derive(Debug)]
pub(in crate::records) struct ArrayFormat {
    /// A description of a file in the format, with an article.
    pub(in crate::records) title: &'static str,
    /// The extension of its files, with the dot.
    pub(in crate::records) extension: &'static str,
    pub(in crate::records) text: TextAs,
    /// Whether the format itself compresses rows.
    pub(in crate::records) is_compressed: bool,
    /// Returns whether the format has no type for these numbers.
    pub(in crate::records) refuses: fn(NumberType) -> bool,
    /// Writes a file of arrays, which are sorted by name.
    pub(in crate::records) encode:
        fn(&mut [SpooledArray], BlockCompression, &mut dyn Write) -> io::Result<()>,
}

/// Writes files of arrays.
#[derive(Debug)]
pub(in crate::records) struct ArraySink {
    layout: Arc<Layout>,
    format: &'static ArrayFormat,
    compression: BlockCompression,
}

impl ArraySink {
    pub(in crate::records) fn new(
        facts: &SourceFacts,
        options: &SinkOptions,
        format: &'static ArrayFormat,
    ) -> std::result::Result<Self, String> {
        let title = format.title;
        if options.compression != BlockCompression::NONE && !format.is_compressed {
            return Err(format!(
                "{title} is written without compression: leave {CODEC} out"
            ));
        }
        let flat = FlatColumns::new(facts, title, &OF_ENCODING)?;
        let mut layout = Layout {
            sources: BTreeMap::new(),
            known: flat.known,
            label_base: facts.label_base,
            image: None,
            title,
            text: format.text,
        };
        layout.insert(KEYS, None, Stored::Key)?;
        for column in &flat.columns {
            layout.add(column, &facts.record_features)?;
        }
        for (name, source) in &layout.sources {
            if let Stored::Fixed(number, _) | Stored::Ragged(number, _) = &source.stored
                && (format.refuses)(*number)
            {
                return Err(format!(
                    "feature {name:?} has numbers of type {}, which {title} has no type for: {DROP_FEATURE} {name} leaves it out",
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
            format,
            compression: options.compression,
        })
    }
}

impl RecordSink for ArraySink {
    fn file_name(&self, split: &str, number: u32, _count: u32) -> String {
        format!("{split}-{number:05}{}", self.format.extension)
    }

    fn begin(&self, _first: u64, scratch: Scratch<'_>) -> Result<Box<dyn RecordWriter>> {
        let mut spools = Vec::new();
        for (name, source) in &self.layout.sources {
            spools.push(Spool::new(name, source, &self.layout, scratch)?);
        }
        Ok(Box::new(Writer {
            layout: Arc::clone(&self.layout),
            format: self.format,
            compression: self.compression,
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
    format: &'static ArrayFormat,
    compression: BlockCompression,
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
        let example = flat::parse(record, &layout.known)?;
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
        Ok(flat::appended(record))
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
        (self.format.encode)(&mut arrays, self.compression, out)?;
        Ok(Value::Null)
    }
}
