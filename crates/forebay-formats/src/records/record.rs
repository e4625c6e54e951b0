//! Records: as a reader returns them, and independent of the reader of their file.

/// A record with its number, key and label.
#[derive(Debug, Clone, Copy)]
pub struct SourceRecord<'a> {
    /// Its number in the file.
    pub number: u64,
    /// The encoded `tensorflow.Example`. Other bytes are copied unchanged.
    pub bytes: &'a [u8],
    /// Its label, as stored.
    pub label: Option<i64>,
    /// Its key; empty if it has none.
    pub key: &'a [u8],
}

/// A record that [`RecordReader::next_raw`](super::RecordReader::next_raw) read and
/// [`RecordFile::encode`](super::RecordFile::encode) encodes.
#[derive(Debug, Clone, Default)]
pub struct OwnedRecord {
    pub(super) number: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) label: Option<i64>,
    pub(super) key: Vec<u8>,
    /// Its values as stored in the file; empty after encoding.
    pub(super) raw: Vec<Vec<u8>>,
}

impl OwnedRecord {
    /// Returns the record. Call this after encoding.
    pub fn get(&self) -> SourceRecord<'_> {
        SourceRecord {
            number: self.number,
            bytes: &self.bytes,
            label: self.label,
            key: &self.key,
        }
    }

    /// Returns the number of bytes that the record holds in memory.
    pub fn len(&self) -> usize {
        let raw: usize = self.raw.iter().map(Vec::len).sum();
        self.bytes.len() + self.key.len() + raw
    }

    /// Returns whether the record holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies an encoded record.
    pub(super) fn set(&mut self, record: &SourceRecord<'_>) {
        self.number = record.number;
        self.label = record.label;
        self.bytes.clear();
        self.bytes.extend_from_slice(record.bytes);
        self.key.clear();
        self.key.extend_from_slice(record.key);
    }
}
