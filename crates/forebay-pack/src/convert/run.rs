//! Writes the files of a conversion in parallel.

use super::batches::Batches;
use super::mapped::Mapping;
use super::record::{Changes, Converter};
use super::shard::{Bad, ShardInProgress};
use super::source::Source;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::{OnBad, PackOptions};
use crate::plan::PlannedShard;
use crate::publish::destination::{Destination, Journal, ShardLine};
use crate::publish::upload;
use crate::write::{RecordFileWriter, WrittenShard, run_beside};
use forebay_formats::Error as SourceError;
use forebay_formats::records::{RecordFile, RecordSink, find_again};
use forebay_store::for_each_parallel_with;
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
            let converter = || Converter::new(self.changes, features);
            let goes_on = *self.bad.policy != OnBad::Fail;
            let jobs = self.options.decided_jobs();
            let batches = Batches::new(self.changes, features, jobs, goes_on);
            let written = for_each_parallel_with(shards, jobs, converter, |converter, shard| {
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
                        self.observer.shard_done(&line.done(false));
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
        converter: &mut Converter<'_>,
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
        let writer = self.begin(planned)?;
        let (bad, name) = (self.bad, &planned.name);
        let mut shard =
            ShardInProgress::new(name, writer, bad, self.has_unique_keys, self.observer);
        for (file, range) in split.pieces(planned.positions.clone()) {
            let is_whole = match self.mapping.is_none() && batches.are_for(file) {
                true => batches.write(file, range, &mut shard, stopped)?,
                false => self.write_in_turn(file, range, &mut shard, converter, stopped)?,
            };
            if !is_whole {
                return Ok(None);
            }
        }
        shard.finish(room, self.options).map(Some)
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
        converter: &mut Converter<'_>,
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
                    shard.line.findings.extend(reader.take_remarks());
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
