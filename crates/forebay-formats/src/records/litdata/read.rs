//! Reads the items of a chunk in order and encodes an `Example` from the leaves of each.

use super::chunk::{Chunk, ItemReader};
use super::leaf::{self, Leaf};
use crate::error::{Error, Result};
use crate::records::samples::Columns;
use crate::records::{OwnedRecord, RecordFile, RecordReader, SourceRecord};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Estimated bytes of a feature in addition to its value.
const FEATURE_BYTES: u64 = 32;

/// How the items of a split become records.
#[derive(Debug, Clone)]
pub(super) struct ItemShape {
    pub(super) leaves: Arc<[Leaf]>,
    pub(super) columns: Arc<Columns>,
    /// The position of each leaf in the items of the split.
    pub(super) places: Arc<[usize]>,
}

/// A chunk that is read as a file of records.
#[derive(Debug)]
pub(super) struct LitDataFile {
    chunk: Chunk,
    shape: ItemShape,
}

impl LitDataFile {
    pub(super) fn new(chunk: Chunk, shape: ItemShape) -> Self {
        Self { chunk, shape }
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
        let beside = FEATURE_BYTES * self.shape.leaves.len() as u64;
        item.map_or(0, |(_, len)| len as u64 + beside)
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        Ok(Box::new(Reader {
            file: self,
            items: self.chunk.reader()?,
            records: records.start..records.end.min(self.records()),
            record: OwnedRecord::default(),
        }))
    }

    fn is_slow_to_encode(&self) -> bool {
        self.shape.leaves.contains(&Leaf::Pil)
    }

    fn encode(&self, record: &mut OwnedRecord) -> Result<()> {
        let OwnedRecord { bytes, raw, .. } = record;
        let item = raw.first().map(Vec::as_slice).unwrap_or_default();
        let ItemShape {
            leaves,
            columns,
            places,
        } = &self.shape;
        let made = leaf::values(places, item)
            .and_then(|values| leaf::convert(leaves, &columns.columns, values))
            .and_then(|values| columns.record(&values, bytes));
        let meta = made.map_err(|what| {
            let (at, _) = self.chunk.item(record.number as usize).unwrap_or_default();
            Error::record(self.path(), record.number, format!("offset {at}: {what}"))
        })?;
        (record.label, record.key) = (meta.label, meta.key);
        Ok(())
    }
}

/// Reads the items of a chunk in order.
struct Reader<'a> {
    file: &'a LitDataFile,
    items: ItemReader<'a>,
    records: Range<u64>,
    record: OwnedRecord,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let mut record = std::mem::take(&mut self.record);
        let is_one = self.next_raw(&mut record)?;
        if is_one {
            self.file.encode(&mut record)?;
        }
        self.record = record;
        Ok(is_one.then(|| self.record.get()))
    }

    fn next_raw(&mut self, record: &mut OwnedRecord) -> Result<bool> {
        let Some(number) = self.records.next() else {
            return Ok(false);
        };
        record.number = number;
        record.raw.resize_with(1, Vec::new);
        self.items.read(number as usize, &mut record.raw[0])?;
        Ok(true)
    }
}
