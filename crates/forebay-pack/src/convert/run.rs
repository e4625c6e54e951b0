//! Writes the files of a conversion in parallel.

use super::batches::Batches;
use super::mapped::Mapping;
use super::record::{self, Changes};
use super::source::{self, Source};
use super::{STEP_BYTES, STEP_RECORDS, shard_done};
use crate::bad_count::BadCount;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::{OnBad, PackOptions};
use crate::plan::PlannedShard;
use crate::publish::destination::{Destination, Journal, ShardLine};
use crate::publish::upload;
use crate::report::{FastCount, ProgressiveCount, SeekPointCount};
use crate::write::{Quarantine, RecordFileWriter, WrittenShard};
use forebay_formats::records::{RecordFile, RecordSink, SourceRecord, find_again};
use forebay_formats::{Action, Error as SourceError, Finding, Reason, escape};
use forebay_shard::mapped::Extent;
use forebay_shard::parallel::{for_each_parallel, run_beside};
use forebay_store::Durability;
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

/// A running conversion.
pub(super) struct Run<'a> {
    pub(super) options: &'a PackOptions,
    pub(super) changes: Changes<'a>,
    pub(super) bad: Bad<'a>,
    /// Whether a record counts as bad if its key already occurs in the shard.
    pub(super) has_unique_keys: bool,
    pub(super) sink: Option<&'a dyn RecordSink>,
    pub(super) mapping: Option<&'a Mapping>,
    pub(super) source: &'a Source,
    pub(super) destination: &'a dyn Destination,
    pub(super) observer: &'a dyn Observer,
    pub(super) cancel: &'a Cancel,
}

impl Run<'_> {
    /// Writes shards in parallel; this thread makes them durable in the order in which they are finished.
    pub(super) fn write_all(
        &self,
        shards: &[&PlannedShard],
        mut journal: Journal,
    ) -> Result<Vec<ShardLine>> {
        let jobs = self.options.decided_jobs().min(shards.len());
        let jobs = self.destination.shards_at_once(jobs);
        let stop = AtomicBool::new(false);
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        let fail = |error: Error| {
            stop.store(true, Ordering::Relaxed);
            let mut failure = failure.lock().unwrap_or_else(|e| e.into_inner());
            failure.get_or_insert(error);
        };
        let stopped = || stop.load(Ordering::Relaxed) || self.cancel.is_cancelled();
        let (sender, receiver) = sync_channel::<WrittenShard>(jobs.max(1));
        let mut lines = Vec::new();
        let (fail, stopped) = (&fail, &stopped);
        let writer = move || {
            let features = &self.source.facts.record_features;
            let converter = || record::Converter::new(self.changes, features);
            let goes_on = *self.bad.policy != OnBad::Fail;
            let jobs = self.options.decided_jobs();
            let batches = Batches::new(self.changes, features, jobs, goes_on);
            let written = for_each_parallel(shards, jobs, converter, |converter, shard| {
                if !stopped()
                    && let Some(written) = self.write(shard, &batches, converter, stopped)?
                {
                    // The receiver is dropped only after an error, which it has reported.
                    let _ = sender.send(written);
                }
                Ok(())
            });
            if let Err(error) = written {
                fail(error);
            }
        };
        let finisher = || {
            for written in receiver {
                let line = written.publish(self.destination, &mut journal, self.options.durability);
                match line {
                    Ok(line) => {
                        self.observer.shard_done(&shard_done(&line, false));
                        lines.push(line);
                    }
                    Err(error) => {
                        fail(error);
                        break;
                    }
                }
            }
        };
        run_beside(vec![writer], finisher).map_err(|error| {
            Error::io(self.destination.dir().root(), "start threads for", error)
        })?;
        match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(error) => Err(error),
            None => Ok(lines),
        }
    }

    /// Writes the records of a shard. `None` if the conversion was stopped.
    fn write(
        &self,
        planned: &PlannedShard,
        batches: &Batches<'_>,
        converter: &mut record::Converter<'_>,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<WrittenShard>> {
        let split = &self.source.splits[planned.split];
        if let Some(shard) = split.damaged.get(planned.number as usize) {
            return self.salvage(planned, shard, converter, stopped);
        }
        let bytes = upload::room_of_planned(planned, self.options);
        let Some(room) = self.destination.reserve(bytes, stopped)? else {
            return Ok(None);
        };
        let _active = batches.begin_shard();
        let mut shard = ShardInProgress::new(self, self.begin(planned)?);
        for (file, range) in split.pieces(planned.positions.clone()) {
            let is_whole = match self.mapping.is_none() && batches.are_for(file) {
                true => batches.write(file, range, &mut shard, stopped)?,
                false => self.write_in_turn(file, range, &mut shard, converter, stopped)?,
            };
            if !is_whole {
                return Ok(None);
            }
        }
        shard.advance();
        let (name, options) = (planned.name.clone(), self.options);
        let file = shard.writer.finish()?;
        let seek_points = shard.seek_points;
        let written = WrittenShard::converted(name, file, shard.source_bytes, seek_points, options);
        let written = written.with_progressive(shard.progressive);
        let written = written.with_fast(shard.fast).with_labels(shard.labels);
        Ok(Some(written.with_findings(shard.findings).in_room(room)))
    }

    /// Creates the file of a shard.
    fn begin(&self, planned: &PlannedShard) -> Result<RecordFileWriter> {
        let path = self.destination.dir().path(&planned.name);
        match (self.sink, self.mapping) {
            (None, None) => RecordFileWriter::shard(&path, self.options),
            (None, Some(mapping)) => {
                // Each file of the source becomes a shard.
                let split = &self.source.splits[planned.split];
                let file = &*split.files[planned.number as usize];
                RecordFileWriter::mapped(&path, mapping.identity(file)?, self.options)
            }
            (Some(sink), _) => {
                let dir = self.destination.dir();
                let scratch = || {
                    let file = dir.unnamed_file();
                    file.map_err(|error| {
                        SourceError::io(dir.root(), "write in", io::Error::other(error))
                    })
                };
                let file = sink.begin(planned.positions.start, &scratch)?;
                RecordFileWriter::other(&path, &planned.name, file, self.options)
            }
        }
    }

    /// Writes records of a file one by one, without copying unchanged ones. Returns false if the conversion was stopped.
    fn write_in_turn(
        &self,
        file: &dyn RecordFile,
        range: Range<u64>,
        shard: &mut ShardInProgress<'_>,
        converter: &mut record::Converter<'_>,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool> {
        let mut extents = Vec::new();
        let mut reader = file.read(range)?;
        loop {
            let next = match self.mapping {
                Some(_) => reader.next_mapped(&mut extents),
                None => reader.next_record(),
            };
            let record = match next {
                Ok(Some(record)) => record,
                Ok(None) => {
                    shard.findings.extend(reader.take_remarks());
                    return Ok(true);
                }
                Err(error) => {
                    shard.leave_out(file, error)?;
                    continue;
                }
            };
            let converted = match converter.convert(record.bytes) {
                Ok(converted) => converted,
                Err(what) => {
                    shard.refuse(file, record.number, what)?;
                    continue;
                }
            };
            if !std::ptr::eq(converted.bytes, record.bytes) {
                find_again(converted.bytes, record.bytes, &mut extents);
            }
            if shard.append(file, &record, &converted, &extents)? && stopped() {
                return Ok(false);
            }
        }
    }
}

/// The policy for bad records, and their count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bad<'a> {
    pub(super) policy: &'a OnBad,
    pub(super) count: &'a BadCount,
    pub(super) durability: Durability,
}

/// Returns the bytes of a record that was read before and then refused; `None` if it cannot be read.
fn stored_record(file: &dyn RecordFile, record: u64) -> Option<Vec<u8>> {
    let file = file.unchecked().unwrap_or(file);
    let mut reader = file.read(record..record + 1).ok()?;
    let read = reader.next_record().ok()??;
    Some(read.bytes.to_vec())
}

/// A shard that is being written.
pub(super) struct ShardInProgress<'a> {
    bad: Bad<'a>,
    /// Hashes of the keys so far, if keys must be unique.
    keys: Option<HashSet<u128>>,
    observer: &'a dyn Observer,
    writer: RecordFileWriter,
    pub(super) findings: Vec<Finding>,
    seek_points: SeekPointCount,
    progressive: ProgressiveCount,
    fast: FastCount,
    /// The lowest and the highest label so far.
    labels: Option<(i64, i64)>,
    source_bytes: u64,
    /// Records and bytes that were not reported to the observer yet.
    step: (u64, u64),
}

impl<'a> ShardInProgress<'a> {
    fn new(run: &Run<'a>, writer: RecordFileWriter) -> Self {
        Self {
            bad: run.bad,
            keys: run.has_unique_keys.then(HashSet::new),
            observer: run.observer,
            writer,
            findings: Vec::new(),
            seek_points: SeekPointCount::default(),
            progressive: ProgressiveCount::default(),
            fast: FastCount::default(),
            labels: None,
            source_bytes: 0,
            step: (0, 0),
        }
    }

    /// Writes a converted record. Returns whether a progress step is complete.
    pub(super) fn append(
        &mut self,
        file: &dyn RecordFile,
        record: &SourceRecord<'_>,
        converted: &record::Converted<'_>,
        extents: &[Extent],
    ) -> Result<bool> {
        if !self.is_new_key(record.key) {
            let key = escape(record.key);
            let what = format!("its key {key:?} is that of an earlier record of this shard");
            return self.refuse(file, record.number, what).map(|()| false);
        }
        let written = SourceRecord {
            bytes: converted.bytes,
            ..*record
        };
        if let Err(what) = self.writer.append(&written, extents)? {
            return self.refuse(file, record.number, what).map(|()| false);
        }
        self.seek_points.add(converted.seek_point_bytes);
        self.progressive.add(converted.is_baseline_now);
        self.fast.add(converted.fast);
        if let Some(label) = record.label.filter(|label| *label >= 0) {
            let (least, most) = self.labels.unwrap_or((label, label));
            self.labels = Some((least.min(label), most.max(label)));
        }
        self.step.0 += 1;
        self.step.1 += record.bytes.len() as u64;
        let is_step = self.step.0 >= STEP_RECORDS || self.step.1 >= STEP_BYTES;
        if is_step {
            self.advance();
        }
        Ok(is_step)
    }

    /// Leaves out a bad record, or returns its error if the policy is to fail.
    pub(super) fn leave_out(&mut self, file: &dyn RecordFile, error: SourceError) -> Result<()> {
        let (path, record, what) = match error {
            SourceError::Record { path, record, what } if *self.bad.policy != OnBad::Fail => {
                (path, record, what)
            }
            error => return Err(error.into()),
        };
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .as_encoded_bytes();
        let mut action = Action::Skipped;
        if let OnBad::Quarantine(dir) = self.bad.policy
            && let Some(bytes) = stored_record(file, record)
        {
            let place = [name, format!("/{record}").as_bytes()].concat();
            Quarantine::new(dir, self.bad.durability).keep(&place, &bytes)?;
            action = Action::Quarantined;
        }
        let what = format!("record {record}: {what}");
        let found = Finding::new(action, Reason::BadRecord, name, what);
        self.bad.count.add(1, &found)?;
        self.findings.push(found);
        Ok(())
    }

    /// Returns whether a key is new in this shard. Empty keys always count as new.
    pub(super) fn is_new_key(&mut self, key: &[u8]) -> bool {
        let Some(keys) = self.keys.as_mut().filter(|_| !key.is_empty()) else {
            return true;
        };
        let hash = blake3::hash(key);
        let mut half = [0; 16];
        half.copy_from_slice(&hash.as_bytes()[..16]);
        keys.insert(u128::from_le_bytes(half))
    }

    /// Leaves out a record that cannot be converted or that the format cannot hold, or returns the error.
    pub(super) fn refuse(
        &mut self,
        file: &dyn RecordFile,
        record: u64,
        what: String,
    ) -> Result<()> {
        if *self.bad.policy == OnBad::Fail {
            return Err(source::refused(file, record, what));
        }
        let path = file.path().to_path_buf();
        self.leave_out(file, SourceError::Record { path, record, what })
    }

    /// Reports to the observer what was written since the last call.
    fn advance(&mut self) {
        let (records, bytes) = std::mem::take(&mut self.step);
        self.source_bytes += bytes;
        self.observer.advanced(records, bytes);
    }
}
