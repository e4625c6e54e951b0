//! Reads the samples of a tar in order and encodes an `Example` from the members of each.

use super::super::npy::NpyHeader;
use super::super::samples;
use super::columns::{Columns, Slot};
use super::index::{Member, TarIndex};
use crate::archive::{ArchiveKind, Stream, read_exact};
use crate::error::{Error, Result};
use crate::records::{RecordFile, RecordReader, SourceRecord, extents};
use crate::sniff::check_image;
use forebay_shard::ExampleBuilder;
use forebay_shard::example::FeatureKind;
use forebay_shard::mapped::{Extent, ExtentStart};
use forebay_shard::schema::{ColumnType, ColumnValue, FeatureEntry};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Estimated bytes of a feature in addition to its value.
const FEATURE_BYTES: u64 = 32;
/// Largest JSON member; parsed JSON takes many times its size.
const MAX_JSON_BYTES: usize = 16 << 20;

/// A tar that is read as a file of records.
#[derive(Debug)]
pub(super) struct TarFile {
    index: Arc<TarIndex>,
    columns: Arc<Columns>,
    /// Use of each extension of this tar.
    slots: Vec<Slot>,
}

impl TarFile {
    pub(super) fn new(index: Arc<TarIndex>, columns: Arc<Columns>) -> Self {
        let extensions = index.extensions.iter();
        let slots = extensions.map(|(extension, _)| columns.slot(extension).clone());
        Self {
            slots: slots.collect(),
            index,
            columns,
        }
    }

    fn slot(&self, member: &Member) -> &Slot {
        let slot = self.slots.get(usize::from(member.extension));
        slot.unwrap_or(&Slot::Nothing)
    }
}

impl RecordFile for TarFile {
    fn path(&self) -> &Path {
        &self.index.version.path
    }

    fn bytes(&self) -> u64 {
        self.index.version.bytes
    }

    fn records(&self) -> u64 {
        self.index.len() as u64
    }

    fn record_bytes(&self, record: u64) -> u64 {
        let record = usize::try_from(record).unwrap_or(usize::MAX);
        let members = self.index.members(record).iter();
        members
            .filter(|member| *self.slot(member) != Slot::Nothing)
            .map(|member| u64::from(member.size) + FEATURE_BYTES)
            .sum()
    }

    fn in_place_refusal(&self) -> Option<String> {
        let is_plain = self.index.kind == ArchiveKind::Tar;
        (!is_plain).then(|| "it is compressed as a whole: decompress it, or convert it".to_owned())
    }

    fn with_column(&self, column: &str) -> Option<Box<dyn RecordFile + '_>> {
        let columns = Arc::new(self.columns.only(column));
        Some(Box::new(Self::new(Arc::clone(&self.index), columns)))
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        let file = self.index.version.reopen(&self.index.archive)?;
        let stream = Stream::new(file, self.index.kind);
        let stream = stream.map_err(|error| Error::io(&self.index.version.path, "read", error))?;
        Ok(Box::new(Reader {
            file: self,
            stream,
            records,
            members: Vec::new(),
            record: Vec::new(),
        }))
    }
}

/// Reads the samples of a tar in order.
struct Reader<'a> {
    file: &'a TarFile,
    stream: Stream,
    records: Range<u64>,
    /// The bytes of the members of the current sample.
    members: Vec<Vec<u8>>,
    record: Vec<u8>,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let read = self.advance()?;
        Ok(read.map(|(number, label)| self.record(number, label)))
    }

    fn next_mapped(&mut self, found: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        found.clear();
        let Some((number, label)) = self.advance()? else {
            return Ok(None);
        };
        let sample = usize::try_from(number).unwrap_or(usize::MAX);
        let members = self.file.index.members(sample).iter();
        let kept = members.filter(|member| *self.file.slot(member) != Slot::Nothing);
        for (member, bytes) in kept.zip(&self.members) {
            let at = member.offset;
            if extents::find(&self.record, bytes, ExtentStart::File(at), found) {
                continue;
            }
            // Records store the numbers of an array without its header.
            if let Some(header) = NpyHeader::parse(bytes, bytes.len() as u64) {
                let numbers = bytes.get(header.len..).unwrap_or_default();
                let start = ExtentStart::File(at + header.len as u64);
                extents::find(&self.record, numbers, start, found);
            }
        }
        Ok(Some(self.record(number, label)))
    }
}

impl Reader<'_> {
    fn record(&self, number: u64, label: Option<i64>) -> SourceRecord<'_> {
        SourceRecord {
            number,
            bytes: &self.record,
            label,
            key: self
                .file
                .index
                .key(usize::try_from(number).unwrap_or(usize::MAX)),
        }
    }

    /// Reads the next sample. Returns its number and its label.
    fn advance(&mut self) -> Result<Option<(u64, Option<i64>)>> {
        let Some(number) = self.records.next() else {
            return Ok(None);
        };
        let TarFile { index, columns, .. } = self.file;
        let sample = usize::try_from(number).unwrap_or(usize::MAX);
        let members = index.members(sample);
        let kept = |member: &&Member| *self.file.slot(member) != Slot::Nothing;
        let members: Vec<&Member> = members.iter().filter(kept).collect();
        self.members.resize_with(members.len(), Vec::new);
        for (member, bytes) in members.iter().zip(&mut self.members) {
            // Existing bytes are overwritten, not zeroed again.
            bytes.resize(member.size as usize, 0);
            read_exact(&mut self.stream, member.offset, bytes)
                .map_err(|error| error.of(&index.version.path))?;
        }
        let with_bytes = || members.iter().copied().zip(&self.members);
        let mut json = Vec::new();
        for (member, bytes) in with_bytes() {
            if *self.file.slot(member) == Slot::Json {
                let read = features(bytes, &columns.json);
                json = read.map_err(|what| self.refused(number, member, &what))?;
            }
        }
        let mut builder = ExampleBuilder::new();
        let mut label = None;
        for (member, bytes) in with_bytes() {
            let refused = |what: String| self.refused(number, member, &what);
            match self.file.slot(member) {
                Slot::Image => {
                    if columns.needs_image {
                        check_image(bytes).map_err(refused)?;
                    }
                    builder.add_bytes(&columns.record_features.image, bytes);
                }
                Slot::Label => {
                    let stored = stored_label(bytes, columns.label_base).map_err(refused)?;
                    label = Some(stored);
                    builder.add_int64(&columns.record_features.label, stored);
                }
                Slot::Json => json
                    .iter()
                    .for_each(|(name, list)| list.add(name, &mut builder)),
                Slot::Column(column, names) => {
                    let value = value(&column.column_type, bytes).map_err(refused)?;
                    let added = column.add(names, &value, &mut builder);
                    added.map_err(|error| refused(error.to_string()))?;
                }
                Slot::Nothing => {}
            }
        }
        self.record.clear();
        builder.encode_into(&mut self.record);
        Ok(Some((number, label)))
    }

    fn refused(&self, record: u64, member: &Member, what: &str) -> Error {
        let index = &self.file.index;
        let extension = index.extensions.get(usize::from(member.extension));
        let extension = extension.map_or("", |(extension, _)| extension);
        let key = crate::finding::escape(index.key(usize::try_from(record).unwrap_or(usize::MAX)));
        let at = member.offset;
        let what = format!("member {extension:?} of sample {key:?} at offset {at}: {what}");
        Error::record(&index.version.path, record, what)
    }
}

/// Parses a label and returns it as records store it: -1 means no label, others are shifted by `label_base`.
fn stored_label(bytes: &[u8], label_base: i64) -> std::result::Result<i64, String> {
    let text = std::str::from_utf8(bytes).unwrap_or_default().trim();
    let label: i64 = text.parse().map_err(|_| {
        let end = bytes.len().min(40);
        let shown = crate::finding::escape(&bytes[..end]);
        format!("a label is a number that counts from 0, or -1 for none, and this is {shown:?}")
    })?;
    samples::stored_label(label, label_base)
}

/// Returns the value of a column from its member.
fn value<'a>(
    column_type: &ColumnType,
    bytes: &'a [u8],
) -> std::result::Result<ColumnValue<'a>, String> {
    let ColumnType::Tensor { number, .. } = column_type else {
        return Ok(ColumnValue::Bytes(bytes));
    };
    let header = NpyHeader::parse(bytes, bytes.len() as u64);
    let header = header.filter(|header| header.number == *number);
    let header = header.ok_or_else(|| format!("this is no array of {}", number.name()))?;
    Ok(ColumnValue::Tensor {
        shape: header.shape,
        bytes: bytes.get(header.len..).unwrap_or_default(),
    })
}

/// A feature of the JSON member.
#[derive(Debug, PartialEq)]
enum JsonList {
    Bytes(Vec<String>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Unset,
}

impl JsonList {
    fn add<'a>(&'a self, name: &'a str, builder: &mut ExampleBuilder<'a>) {
        match self {
            Self::Bytes(values) => {
                let values: Vec<&[u8]> = values.iter().map(String::as_bytes).collect();
                builder.add_bytes_list(name, &values)
            }
            Self::Ints(values) => builder.add_int64s(name, values),
            Self::Floats(values) => builder.add_floats(name, values),
            Self::Unset => builder.add_unset(name),
        };
    }

    fn of(value: Value, kind: Option<FeatureKind>) -> Option<Self> {
        let values = match value {
            Value::Null => return Some(Self::Unset),
            Value::Array(values) => values,
            value => vec![value],
        };
        let strings = || {
            let texts = values.iter().map(|value| value.as_str().map(str::to_owned));
            Some(Self::Bytes(texts.collect::<Option<_>>()?))
        };
        let ints = || {
            let ints = values.iter().map(Value::as_i64);
            Some(Self::Ints(ints.collect::<Option<_>>()?))
        };
        let floats = || {
            let floats = values.iter().map(|value| Some(value.as_f64()? as f32));
            let floats: Vec<f32> = floats.collect::<Option<_>>()?;
            let is_finite = floats.iter().all(|value| value.is_finite());
            is_finite.then_some(Self::Floats(floats))
        };
        // A record may have a feature of another kind than the first record.
        let listed = match kind {
            Some(FeatureKind::Bytes) => strings(),
            Some(FeatureKind::Int64) => ints(),
            Some(FeatureKind::Float) => floats(),
            _ if values.is_empty() => Some(Self::Unset),
            _ => None,
        };
        listed.or_else(strings).or_else(ints).or_else(floats)
    }
}

/// Parses the features of a JSON member.
fn features(
    bytes: &[u8],
    known: &BTreeMap<String, FeatureEntry>,
) -> std::result::Result<Vec<(String, JsonList)>, String> {
    if bytes.len() > MAX_JSON_BYTES {
        let len = bytes.len();
        return Err(format!(
            "{len} bytes of JSON, and at most {MAX_JSON_BYTES} are read"
        ));
    }
    let read: BTreeMap<String, Value> = forebay_shard::json::from_slice(bytes)
        .map_err(|error| format!("this is no JSON object of features: {error}"))?;
    let mut all = Vec::new();
    for (name, value) in read {
        let kind = known.get(&name).map(|feature| feature.kind);
        let list = JsonList::of(value, kind);
        let list =
            list.ok_or_else(|| format!("feature {name:?} is no list of texts or of numbers"))?;
        all.push((name, list));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_count_from_0_and_are_shifted_by_the_base() {
        assert_eq!(stored_label(b"0", 0), Ok(0));
        assert_eq!(stored_label(b" 7\n", 1), Ok(8));
        assert_eq!(stored_label(b"-1", 1), Ok(-1));
        for text in ["", "cat", "1.5", "-2", "9223372036854775807"] {
            assert!(stored_label(text.as_bytes(), 1).is_err(), "{text}");
        }
    }

    #[test]
    fn features_of_json_keep_their_kinds() {
        let kind = |name: &str, kind| {
            let entry = FeatureEntry {
                name: name.to_owned(),
                kind,
                shape: vec![],
            };
            (name.to_owned(), entry)
        };
        let known = [kind("f", FeatureKind::Float), kind("e", FeatureKind::Int64)].into();
        let read = features(
            br#"{"f": [1, 2.5], "e": [], "t": "x", "n": null, "i": 3}"#,
            &known,
        );
        let expected = [
            ("e", JsonList::Ints(vec![])),
            ("f", JsonList::Floats(vec![1.0, 2.5])),
            ("i", JsonList::Ints(vec![3])),
            ("n", JsonList::Unset),
            ("t", JsonList::Bytes(vec!["x".into()])),
        ];
        let expected = expected.map(|(name, list)| (name.to_owned(), list));
        assert_eq!(read.unwrap(), expected);
        for text in [
            "[]",
            "{",
            r#"{"a": {}}"#,
            r#"{"a": [1, "x"]}"#,
            r#"{"f": 1e60}"#,
        ] {
            assert!(features(text.as_bytes(), &known).is_err(), "{text}");
        }
    }
}
