//! Writes samples to MDS shards. The output is deterministic.

use crate::error::Result;
use crate::option_names::{CODEC, DROP_FEATURE, SHARD_SIZE};
use crate::records::flat::{self, FlatColumns, FlatValue, put_key};
use crate::records::label_value::from_zero;
use crate::records::samples::{Encoding, INDEX, KEY, is_array_type, put_array, scalar};
use crate::records::sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError, SinkOptions};
use crate::records::{SourceFacts, SourceRecord};
use forebay_image::Format;
use forebay_shard::example::{IMAGE_SEEK_POINTS, RecordFeatures};
use forebay_shard::manifest::ClassEntry;
use forebay_shard::schema::{Column, ColumnType, IMAGE, LABEL, NumberType};
use forebay_shard::{BlockCompression, Codec, ExampleView};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::sync::Arc;

/// The extension of a compressed shard, which is also the name of the compression.
const ZSTD: &str = "zstd";

/// The columns of the shards.
#[derive(Debug)]
struct Layout {
    /// The source of each column, by the column's name.
    columns: BTreeMap<String, Source>,
    /// Features that are written or silently dropped. Any other feature of a record is an error.
    known: BTreeSet<String>,
    label_base: i64,
    compression: BlockCompression,
}

/// Source and encoding of the values of a column.
#[derive(Debug)]
struct Source {
    column: Option<Column>,
    encoding: Encoding,
    is_label: bool,
}

/// Writes MDS shards.
#[derive(Debug)]
pub(super) struct Sink {
    layout: Arc<Layout>,
    classes: Vec<ClassEntry>,
}

impl Sink {
    pub(super) fn new(
        facts: &SourceFacts,
        options: &SinkOptions,
    ) -> std::result::Result<Self, String> {
        let codec = options.compression.codec();
        if codec != Codec::NONE && codec.to_string() != ZSTD {
            return Err(format!(
                "MDS has no codec {codec}: use zstd, such as {CODEC} zstd:3"
            ));
        }
        let flat = FlatColumns::new(facts, "MDS", &[IMAGE_SEEK_POINTS])?;
        let mut layout = Layout {
            columns: BTreeMap::new(),
            known: flat.known,
            label_base: facts.label_base,
            compression: options.compression,
        };
        let first = options.first_record.as_deref();
        let first = first.and_then(|record| ExampleView::parse(record).ok());
        for column in flat.columns {
            layout.add(column, &facts.record_features, first)?;
        }
        layout.insert(
            KEY,
            Source {
                column: None,
                encoding: Encoding::Str,
                is_label: false,
            },
        )?;
        Ok(Self {
            layout: Arc::new(layout),
            classes: facts.classes.clone(),
        })
    }
}

impl Layout {
    fn add(
        &mut self,
        column: Column,
        features: &RecordFeatures,
        first: Option<ExampleView<'_>>,
    ) -> std::result::Result<(), String> {
        let is_label = column.feature == features.label;
        let name = match column.feature == features.image {
            true => IMAGE.to_owned(),
            false if is_label => LABEL.to_owned(),
            false => column.feature.clone(),
        };
        let bytes = first.and_then(|example| example.bytes(&column.feature).ok().flatten());
        let format = bytes.and_then(forebay_image::sniff);
        self.insert(&name, Source::new(column, format, is_label)?)
    }

    fn insert(&mut self, name: &str, source: Source) -> std::result::Result<(), String> {
        match self.columns.insert(name.to_owned(), source) {
            None => Ok(()),
            Some(_) => Err(format!(
                "several features would be the column {name:?}: {DROP_FEATURE} {name} leaves out the one of that name"
            )),
        }
    }
}

impl Source {
    fn new(
        column: Column,
        format: Option<Format>,
        is_label: bool,
    ) -> std::result::Result<Self, String> {
        let array = |number, shape| Encoding::Array {
            number: Some(number),
            shape,
            dimensions: 0,
        };
        let encoding = match &column.column_type {
            ColumnType::Image => match format {
                Some(Format::Jpeg) => Encoding::Jpeg,
                Some(Format::Png) => Encoding::Png,
                _ => Encoding::Bytes,
            },
            ColumnType::Mask => Encoding::Png,
            ColumnType::Text | ColumnType::Json => Encoding::Str,
            ColumnType::Bytes => Encoding::Bytes,
            ColumnType::Label | ColumnType::Int => Encoding::Scalar("int", NumberType::Int64),
            ColumnType::Float => Encoding::Scalar("float32", NumberType::Float32),
            ColumnType::Labels => array(NumberType::Int64, None),
            ColumnType::Vector { len, number } => {
                array(*number, len.filter(|len| *len > 0).map(|len| vec![len]))
            }
            ColumnType::Tensor { shape, number } => {
                let refused = || {
                    format!(
                        "feature {:?} has numbers of type {}, which MDS has no encoding for: {DROP_FEATURE} {} leaves it out",
                        column.feature,
                        number.name(),
                        column.feature
                    )
                };
                if shape.is_empty() {
                    scalar(*number).ok_or_else(refused)?
                } else if is_array_type(*number) {
                    let fixed: Option<Vec<u64>> = shape.iter().copied().collect();
                    array(
                        *number,
                        fixed.filter(|dims| dims.iter().all(|dim| *dim > 0)),
                    )
                } else {
                    return Err(refused());
                }
            }
            other => {
                return Err(format!(
                    "feature {:?} of type {other} cannot be a column of MDS: {DROP_FEATURE} {} leaves it out",
                    column.feature, column.feature
                ));
            }
        };
        Ok(Self {
            column: Some(column),
            encoding,
            is_label,
        })
    }

    /// Appends the value of a record.
    fn put(
        &self,
        record: &SourceRecord<'_>,
        example: ExampleView<'_>,
        label_base: i64,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        let Some(column) = &self.column else {
            put_key(record.key, out);
            return Ok(());
        };
        if self.is_label {
            let label = from_zero(record.label.unwrap_or(-1), label_base)?;
            out.extend_from_slice(&label.to_le_bytes());
            return Ok(());
        }
        let refused = |what: String| {
            format!(
                "feature {:?}: {what}; {DROP_FEATURE} {} leaves it out",
                column.feature, column.feature
            )
        };
        let with_shape = matches!(self.encoding, Encoding::Array { shape: None, .. });
        match flat::value(column, example).map_err(refused)? {
            Some(FlatValue::Bytes(bytes)) => {
                if self.encoding == Encoding::Str && std::str::from_utf8(bytes).is_err() {
                    return Err(refused("it is not UTF-8".to_owned()));
                }
                out.extend_from_slice(bytes);
            }
            Some(FlatValue::Numbers(shape, bytes)) => {
                if let Some(size) = self.encoding.size()
                    && size != bytes.len() as u64
                {
                    let (len, name) = (bytes.len(), self.encoding.name());
                    return Err(refused(format!("{len} bytes are not those of {name}")));
                }
                put_array(&shape, &bytes, with_shape && !shape.is_empty(), out);
            }
            // A missing list is stored as an empty one. All other types need a value in MDS.
            None if with_shape
                && matches!(
                    column.column_type,
                    ColumnType::Vector { .. } | ColumnType::Labels
                ) =>
            {
                put_array(&[0], &[], true, out);
            }
            None => {
                return Err(refused(
                    "this record has no value of it, and columns of MDS have one in each sample"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }
}

impl RecordSink for Sink {
    fn file_name(&self, split: &str, number: u32, _count: u32) -> String {
        let ending = match self.layout.compression.codec() {
            Codec::NONE => String::new(),
            _ => format!(".{ZSTD}"),
        };
        format!("{split}/shard.{number:05}.mds{ending}")
    }

    fn begin(&self, _first: u64, scratch: Scratch<'_>) -> Result<Box<dyn RecordWriter>> {
        Ok(Box::new(Writer {
            layout: Arc::clone(&self.layout),
            data: Some(BufWriter::with_capacity(1 << 20, scratch()?)),
            ends: Vec::new(),
            end: 0,
            sample: Vec::new(),
        }))
    }

    fn index(&self, splits: &[(&str, Vec<&Value>)]) -> Vec<(String, Vec<u8>)> {
        let files = splits.iter().map(|(split, entries)| {
            let mut index = json!({"shards": entries, "version": 2});
            if !self.classes.is_empty() {
                index["classes"] = json!(self.classes);
            }
            (
                format!("{split}/{}", INDEX),
                format!("{index}\n").into_bytes(),
            )
        });
        files.collect()
    }
}

/// Writes one shard. A shard begins with the offsets of all samples, so the samples are kept in a temporary file until the end.
struct Writer {
    layout: Arc<Layout>,
    data: Option<BufWriter<File>>,
    /// End of each sample in the temporary file.
    ends: Vec<u64>,
    end: u64,
    sample: Vec<u8>,
}

impl RecordWriter for Writer {
    fn append(
        &mut self,
        record: &SourceRecord<'_>,
        _out: &mut dyn Write,
    ) -> std::result::Result<Appended, SinkError> {
        let layout = Arc::clone(&self.layout);
        let example = flat::parse(record, &layout.known)?;
        let mut value = Vec::new();
        let mut values = Vec::new();
        self.sample.clear();
        for source in layout.columns.values() {
            value.clear();
            let put = source.put(record, example, layout.label_base, &mut value);
            put.map_err(SinkError::Record)?;
            if source.encoding.size().is_none() {
                let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
                self.sample.extend_from_slice(&len.to_le_bytes());
            }
            values.extend_from_slice(&value);
        }
        self.sample.extend_from_slice(&values);
        let data = self.data.as_mut().ok_or_else(ended)?;
        data.write_all(&self.sample)?;
        self.end += self.sample.len() as u64;
        self.ends.push(self.end);
        Ok(flat::appended(record))
    }

    fn finish(&mut self, name: &str, out: &mut dyn Write) -> std::result::Result<Value, SinkError> {
        let data = self.data.take().ok_or_else(ended)?;
        let mut data = data.into_inner().map_err(io::IntoInnerError::into_error)?;
        data.rewind()?;
        let mut entry = self.layout.entry();
        let config = serde_json::to_vec(&entry).map_err(io::Error::from)?;
        let start = 4 + 4 * (self.ends.len() as u64 + 1) + config.len() as u64;
        let raw_bytes = start + self.end;
        if u32::try_from(raw_bytes).is_err() {
            return Err(SinkError::Record(format!(
                "the shard would be larger than 4 GiB, which MDS cannot hold: choose a smaller {SHARD_SIZE}"
            )));
        }
        let mut head = Vec::with_capacity(start as usize);
        head.extend_from_slice(&(self.ends.len() as u32).to_le_bytes());
        for end in std::iter::once(&0).chain(&self.ends) {
            head.extend_from_slice(&((start + end) as u32).to_le_bytes());
        }
        head.extend_from_slice(&config);
        let mut whole = head
            .as_slice()
            .chain(BufReader::with_capacity(1 << 20, data));
        let base = name.rsplit('/').next().unwrap_or(name);
        let file = |name: &str, bytes: u64| json!({"basename": name, "bytes": bytes, "hashes": {}});
        if self.layout.compression.codec() == Codec::NONE {
            io::copy(&mut whole, out)?;
            entry["raw_data"] = file(base, raw_bytes);
            entry["zip_data"] = Value::Null;
        } else {
            let mut counted = Counted { out, bytes: 0 };
            let level = self.layout.compression.level();
            let mut encoder = zstd::stream::write::Encoder::new(&mut counted, level)?;
            encoder.set_pledged_src_size(Some(raw_bytes))?;
            io::copy(&mut whole, &mut encoder)?;
            encoder.finish()?;
            let plain = base.strip_suffix(&format!(".{ZSTD}")).unwrap_or(base);
            entry["raw_data"] = file(plain, raw_bytes);
            entry["zip_data"] = file(base, counted.bytes);
        }
        entry["samples"] = json!(self.ends.len());
        Ok(entry)
    }
}

impl Layout {
    /// Returns the entry of the shard in the index, without its files.
    fn entry(&self) -> Value {
        let names: Vec<&String> = self.columns.keys().collect();
        let encodings: Vec<String> = self.columns.values().map(|s| s.encoding.name()).collect();
        let sizes: Vec<Option<u64>> = self.columns.values().map(|s| s.encoding.size()).collect();
        let compression = match self.compression.codec() {
            Codec::NONE => None,
            _ => Some(self.compression.to_string()),
        };
        json!({
            "column_encodings": encodings,
            "column_names": names,
            "column_sizes": sizes,
            "compression": compression,
            "format": "mds",
            "hashes": [],
            "size_limit": null,
            "version": 2,
        })
    }
}

/// Returns the error for a writer that has already ended.
fn ended() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

/// Counts the written bytes.
struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buf)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
