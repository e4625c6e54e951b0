//! Reads the samples of a shard in order and encodes an `Example` from the columns of each.

use super::index::OpenShard;
use crate::archive::{ArchiveKind, Stream};
use crate::error::{Error, Result};
use crate::records::samples::{Columns, Encoding, SampleMeta, array, read_sample};
use crate::records::{RecordFile, RecordReader, SourceRecord, extents};
use forebay_shard::mapped::{Extent, ExtentStart};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Estimated bytes of a feature in addition to its value.
const FEATURE_BYTES: u64 = 32;

/// Returns the path of a shard and its first sample.
pub(super) fn first_sample(shard: &OpenShard) -> Result<(PathBuf, Vec<u8>)> {
    let (file, _) = shard.archive.open()?;
    let stream = Stream::new(file, shard.kind);
    let mut stream = stream.map_err(|error| Error::io(&shard.version.path, "read", error))?;
    let (at, len) = shard.sample(0).unwrap_or_default();
    let mut sample = Vec::new();
    read_sample(&mut stream, at, len, &mut sample, &shard.version.path)?;
    Ok((shard.version.path.clone(), sample))
}

/// A shard that is read as a file of records.
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
        &self.shard.version.path
    }

    fn bytes(&self) -> u64 {
        self.shard.version.bytes
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
        let is_plain = self.shard.kind == ArchiveKind::Tar;
        (!is_plain).then(|| "it is compressed as a whole: decompress it, or convert it".to_owned())
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        let shard = &self.shard;
        let file = shard.version.reopen(&shard.archive)?;
        let stream = Stream::new(file, shard.kind);
        Ok(Box::new(Reader {
            file: self,
            stream: stream.map_err(|error| Error::io(&shard.version.path, "read", error))?,
            records,
            sample: Vec::new(),
            record: Vec::new(),
            meta: SampleMeta::default(),
        }))
    }
}

/// Reads the samples of a shard in order.
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
        let all = self.file.shard.values(&self.sample).unwrap_or_default();
        for (column, value) in columns.iter().zip(all) {
            // Records store the numbers of an array without its header.
            let bytes = match column.stored() {
                Encoding::Array { .. } => array(column.stored(), value).map_or(value, |a| a.bytes),
                _ => value,
            };
            // The value is borrowed from the sample, so its offset follows from the addresses.
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
        read_sample(
            &mut self.stream,
            at,
            len,
            &mut self.sample,
            &shard.version.path,
        )?;
        let refused = |what: String| {
            Error::record(&shard.version.path, number, format!("offset {at}: {what}"))
        };
        let values = shard.values(&self.sample).map_err(refused)?;
        let meta = columns.record(&values, &mut self.record);
        self.meta = meta.map_err(refused)?;
        Ok(Some((number, at)))
    }
}
