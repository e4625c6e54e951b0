//! Records that wait to be encoded, apart from the reader of their file.

use super::SourceRecord;

/// A record of a [`RecordReader::next_raw`](super::RecordReader::next_raw), which [`RecordFile::encode`](super::RecordFile::encode)
/// makes whole.
#[derive(Debug, Clone, Default)]
pub struct OwnedRecord {
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) label: Option<i64>,
    pub(super) key: Vec<u8>,
    /// Its values as the file has them, until it is encoded.
    pub(super) raw: Vec<Vec<u8>>,
}

impl OwnedRecord {
    /// Returns the record, once it is encoded.
    pub fn get(&self) -> SourceRecord<'_> {
        SourceRecord {
            number: self.number,
            bytes: &self.bytes,
            label: self.label,
            key: &self.key,
        }
    }

    /// Returns the bytes that it takes.
    pub fn len(&self) -> usize {
        let raw: usize = self.raw.iter().map(Vec::len).sum();
        self.bytes.len() + self.key.len() + raw
    }

    /// Returns whether it takes no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a record that is encoded.
    pub(super) fn set(&mut self, record: &SourceRecord<'_>) {
        self.number = record.number;
        self.label = record.label;
        self.bytes.clear();
        self.bytes.extend_from_slice(record.bytes);
        self.key.clear();
        self.key.extend_from_slice(record.key);
    }
}
