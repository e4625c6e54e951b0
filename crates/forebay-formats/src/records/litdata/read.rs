//! Reading the items of one chunk in order: an `Example` is made of the leaves of each.

use super::chunk::{Chunk, ItemReader};
use super::leaf::{self, Leaf};
use crate::error::{Error, Result};
use crate::records::samples::{Columns, SampleMeta, values};
use crate::records::{RecordFile, RecordReader, SourceRecord};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// About what a feature takes beside its value.
const FEATURE_BYTES: u64 = 32;

/// A chunk of items.
#[derive(Debug)]
pub(super) struct LitDataFile {
    chunk: Chunk,
    leaves: Arc<[Leaf]>,
    columns: Arc<Columns>,
}

impl LitDataFile {
    pub(super) fn new(chunk: Chunk, leaves: Arc<[Leaf]>, columns: Arc<Columns>) -> Self {
        Self {
            chunk,
            leaves,
            columns,
        }
    }
}

impl RecordFile for LitDataFile {
    fn path(&self) -> &Path {
        &self.chunk.version.path
    }

    fn bytes(&self) -> u64 {
        self.chunk.version.bytes
    }

    fn records(&self) -> u64 {
        self.chunk.len() as u64
    }

    fn record_bytes(&self, record: u64) -> u64 {
        let item = self
            .chunk
            .item(usize::try_from(record).unwrap_or(usize::MAX));
        let beside = FEATURE_BYTES * self.leaves.len() as u64;
        item.map_or(0, |(_, len)| len as u64 + beside)
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        Ok(Box::new(Reader {
            file: self,
            items: self.chunk.reader()?,
            records: records.start..records.end.min(self.records()),
            item: Vec::new(),
            record: Vec::new(),
            meta: SampleMeta::default(),
        }))
    }
}

/// Items of one chunk, being read.
struct Reader<'a> {
    file: &'a LitDataFile,
    items: ItemReader<'a>,
    records: Range<u64>,
    item: Vec<u8>,
    record: Vec<u8>,
    meta: SampleMeta,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let LitDataFile {
            chunk,
            leaves,
            columns,
        } = self.file;
        let Some(number) = self.records.next() else {
            return Ok(None);
        };
        self.items.read(number as usize, &mut self.item)?;
        let made = values(&columns.columns, &self.item)
            .and_then(|values| leaf::convert(leaves, &columns.columns, values))
            .and_then(|values| columns.record(&values, &mut self.record));
        self.meta = made.map_err(|what| {
            let at = chunk.item(number as usize).unwrap_or_default().0;
            Error::Record {
                path: chunk.version.path.clone(),
                record: number,
                what: format!("offset {at}: {what}"),
            }
        })?;
        Ok(Some(SourceRecord {
            number,
            bytes: &self.record,
            label: self.meta.label,
            key: &self.meta.key,
        }))
    }
}
