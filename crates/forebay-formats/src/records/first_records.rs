//! The first records of a source, from whose values it is decided what a column holds.

use super::RecordSource;
use crate::error::Error;
use forebay_shard::ExampleView;
use std::collections::BTreeSet;

/// Number of records at the beginning whose values decide what a column holds.
const FIRST_RECORDS: usize = 16;

/// A record at the beginning of a source.
pub(super) struct FirstRecord {
    pub(super) bytes: Vec<u8>,
    /// Whether an earlier record of the file has the same key.
    pub(super) is_twice: bool,
}

impl FirstRecord {
    /// Reads the first records of a source. Records that cannot be read are skipped here; the conversion reports them.
    pub(super) fn of(source: &RecordSource) -> Vec<Self> {
        let mut first = Vec::new();
        let mut keys = BTreeSet::new();
        for file in source.splits.iter().flat_map(|split| &split.files) {
            let count = file.records().min((FIRST_RECORDS - first.len()) as u64);
            let Ok(mut reader) = file.read(0..count) else {
                continue;
            };
            // Keys are compared within a file: different files may repeat keys.
            keys.clear();
            for _ in 0..count {
                match reader.next_record() {
                    Ok(Some(record)) => first.push(Self {
                        bytes: record.bytes.to_vec(),
                        is_twice: !record.key.is_empty() && !keys.insert(record.key.to_vec()),
                    }),
                    Err(Error::Record { .. }) => {}
                    Ok(None) | Err(_) => break,
                }
            }
            if first.len() >= FIRST_RECORDS {
                break;
            }
        }
        first
    }

    /// Returns its features, if the record is an Example.
    pub(super) fn example(&self) -> Option<ExampleView<'_>> {
        ExampleView::parse(&self.bytes).ok()
    }
}
