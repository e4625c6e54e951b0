//! Reading samples of one shard in order: an `Example` is made of the columns of each.

use super::Columns;
use super::encoding::{Encoding, array};
use super::index::OpenShard;
use crate::archive::{Stream, VolumeKind, read_exact};
use crate::error::{Error, Result};
use crate::records::numbers::{self, float32s, int64s, is_integer};
use crate::records::{Conversion, RecordFile, RecordReader, SourceRecord, extents};
use forebay_shard::ExampleBuilder;
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::mapped::{Extent, ExtentStart};
use forebay_shard::schema::{
    Column, ColumnType, ColumnValue, FeatureEntry, IMAGE, LABEL, NumberType,
};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// About what a feature takes beside its value.
const FEATURE_BYTES: u64 = 32;

/// Destination of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A feature of the record.
    Feature,
    /// A feature that is the label too.
    Label,
    Key,
    Nothing,
}

/// A column of the samples.
#[derive(Debug, Clone)]
pub(super) struct MdsColumn {
    pub(super) name: String,
    pub(super) encoding: Encoding,
    size: Option<u64>,
    pub(super) target: Target,
    /// A feature that is the key too.
    pub(super) is_key: bool,
    column: Column,
    features: Vec<FeatureEntry>,
    /// The encoding as it was written, with what is before each value.
    stored: Encoding,
}

impl MdsColumn {
    pub(super) fn new(name: &str, encoding: Encoding, size: Option<u64>, target: Target) -> Self {
        Self {
            name: name.to_owned(),
            stored: encoding.clone(),
            encoding,
            size,
            target,
            is_key: false,
            column: Column::new(name, ColumnType::Bytes),
            features: Vec::new(),
        }
    }

    pub(super) fn column_type(&self) -> ColumnType {
        self.encoding.column_type()
    }

    /// Makes the column of records, which has the name of this one.
    pub(super) fn make_column(&mut self) {
        self.column = Column::new(self.name.clone(), self.column_type());
        self.column.feature.clone_from(&self.name);
        self.features = self.column.features();
    }

    /// Makes the column that this one was written from.
    pub(super) fn restore(&mut self, conversion: &Conversion) {
        let features = &conversion.record_features;
        let feature = match self.name.as_str() {
            super::KEY => {
                self.target = Target::Key;
                return;
            }
            IMAGE => features.image.clone(),
            LABEL => {
                self.target = Target::Label;
                features.label.clone()
            }
            name => name.to_owned(),
        };
        let columns = conversion.columns.columns().iter();
        let known = columns.into_iter().find(|column| {
            let list = matches!(
                column.column_type,
                ColumnType::Boxes | ColumnType::Keypoints
            );
            !list && column.feature == feature
        });
        self.column = match known {
            Some(column) => column.clone(),
            // One of several features of a column, or one that is no column.
            None => {
                let mut column = Column::new(feature.clone(), self.list_type());
                column.feature = feature;
                column
            }
        };
        self.features = self.column.features();
    }

    /// The type of a list of numbers in a record.
    fn list_type(&self) -> ColumnType {
        match &self.encoding {
            Encoding::Array {
                number: Some(number @ (NumberType::Int64 | NumberType::Float32)),
                ..
            } => ColumnType::Vector {
                len: None,
                number: *number,
            },
            _ => self.column_type(),
        }
    }

    fn value<'a>(
        &self,
        bytes: &'a [u8],
        label_base: i64,
    ) -> std::result::Result<ColumnValue<'a>, String> {
        if self.target == Target::Label {
            let label = integer(&self.encoding, bytes)?;
            return stored_label(label, label_base).map(ColumnValue::Int);
        }
        match (&self.stored, &self.column.column_type) {
            (Encoding::Scalar(_, NumberType::Float32), ColumnType::Float) => {
                let word = bytes.try_into().unwrap_or_default();
                Ok(ColumnValue::Float(f32::from_le_bytes(word)))
            }
            (Encoding::Scalar(..), ColumnType::Tensor { .. }) => Ok(ColumnValue::Tensor {
                shape: Vec::new(),
                bytes,
            }),
            (Encoding::Scalar(..), _) => integer(&self.encoding, bytes).map(ColumnValue::Int),
            (Encoding::Array { .. }, column_type) => {
                let read = array(&self.stored, bytes)?;
                let words = read.bytes;
                match column_type {
                    ColumnType::Vector { number, .. } if *number == read.number => {
                        Ok(match number {
                            NumberType::Int64 => ColumnValue::Ints(int64s(words)),
                            _ => ColumnValue::Floats(float32s(words)),
                        })
                    }
                    ColumnType::Labels if read.number == NumberType::Int64 => {
                        Ok(ColumnValue::Ints(int64s(words)))
                    }
                    ColumnType::Tensor { number, .. } if *number == read.number => {
                        Ok(ColumnValue::Tensor {
                            shape: read.shape,
                            bytes: words,
                        })
                    }
                    other => Err(format!("an array of {} is no {other}", read.number.name())),
                }
            }
            _ => Ok(ColumnValue::Bytes(bytes)),
        }
    }
}

/// The value of a number, which fits into an i64.
fn integer(encoding: &Encoding, bytes: &[u8]) -> std::result::Result<i64, String> {
    let Encoding::Scalar(name, number) = encoding else {
        return Err("it is no integer".to_owned());
    };
    match is_integer(*number) {
        true => Ok(numbers::integer(*number, bytes)),
        false => Err(format!("{name} is no integer")),
    }
}

/// A label as records store it: -1 means none, whatever the first class is called. Labels of another tool are stored as they
/// are.
fn stored_label(label: i64, label_base: i64) -> std::result::Result<i64, String> {
    match label {
        -1 => Ok(-1),
        label if label < 0 => Err(format!(
            "a label counts from 0, or is -1 for none, and this is {label}"
        )),
        label => label
            .checked_add(label_base)
            .ok_or_else(|| format!("the label {label} is too large")),
    }
}

/// The values of a sample, by column.
fn values<'a>(
    columns: &[MdsColumn],
    sample: &'a [u8],
) -> std::result::Result<Vec<&'a [u8]>, String> {
    let short = || "the sample is shorter than its columns".to_owned();
    let mut sizes = Vec::with_capacity(columns.len());
    let mut rest = sample;
    for column in columns {
        sizes.push(match column.size {
            Some(size) => usize::try_from(size).map_err(|_| short())?,
            None => {
                let (word, after) = rest.split_first_chunk::<4>().ok_or_else(short)?;
                rest = after;
                u32::from_le_bytes(*word) as usize
            }
        });
    }
    let mut values = Vec::with_capacity(columns.len());
    for size in sizes {
        let (value, after) = rest.split_at_checked(size).ok_or_else(short)?;
        values.push(value);
        rest = after;
    }
    match rest.len() {
        0 => Ok(values),
        more => Err(format!(
            "the sample is {more} bytes longer than its columns"
        )),
    }
}

/// Takes from a first sample what the encodings do not say.
pub(super) fn settle(columns: &mut [MdsColumn], sample: &[u8]) -> std::result::Result<(), String> {
    let values = values(columns, sample)?;
    for (column, value) in columns.iter_mut().zip(values) {
        if column.target != Target::Nothing {
            let settled = column.encoding.settle(value);
            settled.map_err(|what| format!("column {:?}: {what}", column.name))?;
        }
    }
    Ok(())
}

/// Label and key of a sample.
#[derive(Debug, Default)]
pub(super) struct SampleMeta {
    label: Option<i64>,
    key: Vec<u8>,
}

/// Appends the record of a sample.
pub(super) fn encode(
    columns: &[MdsColumn],
    sample: &[u8],
    label_base: i64,
    record: &mut Vec<u8>,
) -> std::result::Result<SampleMeta, String> {
    let mut meta = SampleMeta::default();
    let mut builder = ExampleBuilder::new();
    for (column, bytes) in columns.iter().zip(values(columns, sample)?) {
        let refused = |what: String| format!("column {:?}: {what}", column.name);
        if column.target == Target::Nothing {
            continue;
        }
        if column.target == Target::Key || column.is_key {
            if bytes.len() > MAX_KEY_BYTES {
                return Err(refused(format!(
                    "a key of {} bytes is too long",
                    bytes.len()
                )));
            }
            meta.key.extend_from_slice(bytes);
            if column.target == Target::Key {
                continue;
            }
        }
        let value = column.value(bytes, label_base).map_err(refused)?;
        if let (Target::Label, ColumnValue::Int(label)) = (column.target, &value) {
            meta.label = Some(*label);
        }
        let added = column.column.add(&column.features, &value, &mut builder);
        added.map_err(|error| refused(error.to_string()))?;
    }
    builder.encode_into(record);
    Ok(meta)
}

/// The first sample of a shard, and the path of the shard.
pub(super) fn first_sample(shard: &OpenShard) -> Result<(PathBuf, Vec<u8>)> {
    let (file, _) = shard.archive.open()?;
    let stream = Stream::new(file, shard.kind);
    let mut stream = stream.map_err(|error| Error::io(&shard.path, "read", error))?;
    let (at, len) = shard.sample(0).unwrap_or_default();
    let mut sample = Vec::new();
    read_sample(&mut stream, at, len, &mut sample, &shard.path)?;
    Ok((shard.path.clone(), sample))
}

/// Reads a sample; of a compressed shard no more is allocated than is there.
fn read_sample(
    stream: &mut Stream,
    at: u64,
    len: usize,
    out: &mut Vec<u8>,
    path: &Path,
) -> Result<()> {
    const STEP_BYTES: usize = 4 << 20;
    out.clear();
    while out.len() < len {
        let start = out.len();
        out.resize(len.min(start + STEP_BYTES), 0);
        let piece = out.get_mut(start..).unwrap_or_default();
        let read = read_exact(stream, at + start as u64, piece);
        read.map_err(|error| {
            Error::source(
                path,
                format!(
                    "offset {}: the shard is cut short inside a sample",
                    error.offset
                ),
            )
        })?;
    }
    Ok(())
}

/// A shard of samples.
#[derive(Debug)]
pub(super) struct MdsFile {
    shard: OpenShard,
    columns: Arc<Columns>,
}

impl MdsFile {
    pub(super) fn new(shard: OpenShard, columns: Arc<Columns>) -> Self {
        Self { shard, columns }
    }
}

impl RecordFile for MdsFile {
    fn path(&self) -> &Path {
        &self.shard.path
    }

    fn bytes(&self) -> u64 {
        self.shard.bytes
    }

    fn records(&self) -> u64 {
        self.shard.len() as u64
    }

    fn record_bytes(&self, record: u64) -> u64 {
        let sample = self
            .shard
            .sample(usize::try_from(record).unwrap_or(usize::MAX));
        let beside = FEATURE_BYTES * self.columns.columns.len() as u64;
        sample.map_or(0, |(_, len)| len as u64 + beside)
    }

    fn in_place_refusal(&self) -> Option<String> {
        let is_plain = self.shard.kind == VolumeKind::Tar;
        (!is_plain).then(|| "it is compressed as a whole: decompress it, or convert it".to_owned())
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        let shard = &self.shard;
        let (file, modified) = shard.archive.open()?;
        if file.len() != shard.bytes || modified != shard.modified {
            return Err(Error::source(&shard.path, "it changed while it was read"));
        }
        let stream = Stream::new(file, shard.kind);
        Ok(Box::new(Reader {
            file: self,
            stream: stream.map_err(|error| Error::io(&shard.path, "read", error))?,
            records,
            sample: Vec::new(),
            record: Vec::new(),
            meta: SampleMeta::default(),
        }))
    }
}

/// Samples of one shard, being read.
struct Reader<'a> {
    file: &'a MdsFile,
    stream: Stream,
    records: Range<u64>,
    sample: Vec<u8>,
    record: Vec<u8>,
    meta: SampleMeta,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let read = self.advance()?;
        Ok(read.map(|(number, _)| self.record(number)))
    }

    fn next_mapped(&mut self, found: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        found.clear();
        let Some((number, at)) = self.advance()? else {
            return Ok(None);
        };
        let columns = &self.file.columns.columns;
        let all = values(columns, &self.sample).unwrap_or_default();
        for (column, value) in columns.iter().zip(all) {
            // A record has the numbers of an array without its header.
            let bytes = match &column.stored {
                Encoding::Array { .. } => array(&column.stored, value).map_or(value, |a| a.bytes),
                _ => value,
            };
            // Values are parts of the sample.
            let offset = bytes.as_ptr().addr() - self.sample.as_ptr().addr();
            let start = ExtentStart::File(at + offset as u64);
            extents::find(&self.record, bytes, start, found);
        }
        Ok(Some(self.record(number)))
    }
}

impl Reader<'_> {
    fn record(&self, number: u64) -> SourceRecord<'_> {
        SourceRecord {
            number,
            bytes: &self.record,
            label: self.meta.label,
            key: &self.meta.key,
        }
    }

    /// Reads the next sample. Returns its number and its offset in the file.
    fn advance(&mut self) -> Result<Option<(u64, u64)>> {
        let MdsFile { shard, columns } = self.file;
        let Some(number) = self.records.next() else {
            return Ok(None);
        };
        let Some((at, len)) = shard.sample(usize::try_from(number).unwrap_or(usize::MAX)) else {
            return Ok(None);
        };
        read_sample(&mut self.stream, at, len, &mut self.sample, &shard.path)?;
        let refused = |what: String| Error::Record {
            path: shard.path.clone(),
            record: number,
            what: format!("offset {at}: {what}"),
        };
        self.record.clear();
        // Labels of another tool are stored as they are.
        let base = match columns.foreign {
            Some(_) => 0,
            None => columns.label_base,
        };
        let meta = encode(&columns.columns, &self.sample, base, &mut self.record);
        self.meta = meta.map_err(refused)?;
        if let Some(schema) = &columns.foreign {
            schema.check(&self.record).map_err(refused)?;
        }
        Ok(Some((number, at)))
    }
}
