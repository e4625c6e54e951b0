//! Encodes and changes the records of one shard with several threads, in batches. While the threads encode a batch, the
//! thread of the shard writes the previous batch and reads the next one. So a source of one shard uses all cores, and the
//! order of the records does not change.
//!
//! The threads help only while fewer shards are written than there are cores; otherwise the thread of a shard does all of
//! the work. At most three batches of a shard are in memory; the last record of each may exceed the batch size.

use super::record::{Changes, Converted, Converter};
use super::shard::ShardInProgress;
use crate::error::Result;
use crate::report::FastCount;
use crate::write::Helpers;
use forebay_formats::Error as SourceError;
use forebay_formats::records::{OwnedRecord, RecordFile, RecordReader, SourceRecord};
use forebay_shard::example::RecordFeatures;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// Size in bytes, per thread that encodes it, at which a batch ends.
const BATCH_BYTES: usize = 2 << 20;
/// Maximum number of records of a batch.
const BATCH_RECORDS: usize = 256;

/// The threads that encode records of all shards of a conversion.
pub(super) struct Batches<'a> {
    changes: Changes<'a>,
    features: &'a RecordFeatures,
    jobs: usize,
    /// Whether reading continues after a bad record.
    goes_on: bool,
    /// Number of shards that are being written.
    active: AtomicUsize,
    /// Started for the first batch that needs them; `None` if the system cannot start threads.
    helpers: OnceLock<Option<Helpers>>,
    converters: Mutex<Vec<Converter<'a>>>,
}

/// A record of a batch, with its changes.
#[derive(Default)]
struct BatchedRecord {
    record: OwnedRecord,
    /// The bytes to write, if they differ from those of the record.
    changed: Option<Vec<u8>>,
    seek_point_bytes: Option<u64>,
    is_baseline_now: Option<bool>,
    fast: FastCount,
    failure: Option<Failure>,
}

/// The reason why a record is not written.
enum Failure {
    Source(SourceError),
    /// The record cannot be changed as requested.
    Refused(String),
}

/// Counts a shard as active until it is dropped.
pub(super) struct ActiveShard<'a>(&'a AtomicUsize);

impl Drop for ActiveShard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Batches<'a> {
    pub(super) fn new(
        changes: Changes<'a>,
        features: &'a RecordFeatures,
        jobs: usize,
        goes_on: bool,
    ) -> Self {
        Self {
            changes,
            features,
            jobs,
            goes_on,
            active: AtomicUsize::new(0),
            helpers: OnceLock::new(),
            converters: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn begin_shard(&self) -> ActiveShard<'_> {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveShard(&self.active)
    }

    /// Returns whether encoding the records of this file takes long enough to distribute it to several threads.
    pub(super) fn are_for(&self, file: &dyn RecordFile) -> bool {
        self.jobs > 1 && (file.is_slow_to_encode() || self.changes.are_slow())
    }

    /// Writes records of a file. Returns false if the conversion was stopped.
    pub(super) fn write(
        &self,
        file: &dyn RecordFile,
        range: Range<u64>,
        shard: &mut ShardInProgress<'_>,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool> {
        let mut reader = file.read(range)?;
        let mut is_over = false;
        let mut next = self.read(&mut *reader, &mut is_over);
        let mut encoded = Vec::new();
        while !next.is_empty() || !encoded.is_empty() {
            if stopped() {
                return Ok(false);
            }
            let mut encoding = std::mem::take(&mut next);
            let written = std::mem::take(&mut encoded);
            let encode = |record: &mut BatchedRecord| self.encode(file, record);
            let here = || {
                write_batch(file, written, shard)?;
                Ok(self.read(&mut *reader, &mut is_over))
            };
            let read: Result<Vec<BatchedRecord>> = match self.helpers() {
                Some(helpers) => helpers.run_beside(&mut encoding, encode, here),
                None => {
                    encoding.iter_mut().for_each(encode);
                    here()
                }
            };
            (next, encoded) = (read?, encoding);
        }
        shard.line.findings.extend(reader.take_remarks());
        Ok(true)
    }

    /// Returns the helper threads, if there are idle cores for them.
    fn helpers(&self) -> Option<&Helpers> {
        if self.active.load(Ordering::Relaxed) >= self.jobs {
            return None;
        }
        let start = || Helpers::new(self.jobs).ok();
        self.helpers.get_or_init(start).as_ref()
    }

    /// Reads a batch. If an error ends the reading, it is the last entry.
    fn read(&self, reader: &mut dyn RecordReader, is_over: &mut bool) -> Vec<BatchedRecord> {
        let threads = self.jobs / self.active.load(Ordering::Relaxed).max(1);
        let most = BATCH_BYTES * threads.max(1);
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while !*is_over && bytes < most && batch.len() < BATCH_RECORDS {
            let mut next = BatchedRecord::default();
            match reader.next_raw(&mut next.record) {
                Ok(true) => bytes += next.record.len(),
                Ok(false) => {
                    *is_over = true;
                    break;
                }
                Err(error) => {
                    *is_over = !(self.goes_on && matches!(error, SourceError::Record { .. }));
                    next.failure = Some(Failure::Source(error));
                }
            }
            batch.push(next);
        }
        batch
    }

    fn encode(&self, file: &dyn RecordFile, batched: &mut BatchedRecord) {
        if batched.failure.is_some() {
            return;
        }
        if let Err(error) = file.encode(&mut batched.record) {
            batched.failure = Some(Failure::Source(error));
            return;
        }
        let converters = || self.converters.lock().unwrap_or_else(|e| e.into_inner());
        let idle = converters().pop();
        let mut converter = idle.unwrap_or_else(|| Converter::new(self.changes, self.features));
        let record = batched.record.get();
        match converter.convert(record.bytes) {
            Ok(converted) => {
                batched.seek_point_bytes = converted.seek_point_bytes;
                batched.is_baseline_now = converted.is_baseline_now;
                batched.fast = converted.fast;
                let is_same = std::ptr::eq(converted.bytes, record.bytes);
                batched.changed = (!is_same).then(|| converted.bytes.to_vec());
            }
            Err(what) => batched.failure = Some(Failure::Refused(what)),
        }
        converters().push(converter);
    }
}

fn write_batch(
    file: &dyn RecordFile,
    batch: Vec<BatchedRecord>,
    shard: &mut ShardInProgress<'_>,
) -> Result<()> {
    for batched in batch {
        let record: SourceRecord<'_> = batched.record.get();
        match batched.failure {
            Some(Failure::Source(error)) => shard.leave_out(file, error)?,
            Some(Failure::Refused(what)) => shard.refuse(file, record.number, what)?,
            None => {
                let converted = Converted {
                    bytes: batched.changed.as_deref().unwrap_or(record.bytes),
                    seek_point_bytes: batched.seek_point_bytes,
                    is_baseline_now: batched.is_baseline_now,
                    fast: batched.fast,
                };
                shard.append(file, &record, &converted, &[])?;
            }
        }
    }
    Ok(())
}
