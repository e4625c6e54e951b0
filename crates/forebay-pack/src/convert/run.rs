//! Writing the files of a conversion in parallel.

use super::mapped::{Mapping, find_again};
use super::record::{self, Changes};
use super::source::{self, Source};
use super::{STEP_BYTES, STEP_RECORDS, shard_done};
use crate::destination::{Destination, Journal, ShardLine};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::PackOptions;
use crate::plan::PlannedShard;
use crate::report::{FastCount, ProgressiveCount, SeekPointCount};
use crate::upload;
use crate::write::{RecordFileWriter, WrittenShard};
use forebay_formats::records::{OnBadRecord, RecordSink, SourceRecord};
use forebay_formats::{Action, Error as SourceError, Finding, Reason};
use forebay_shard::parallel::{for_each_parallel, run_beside};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;

/// A conversion that runs.
pub(super) struct Run<'a> {
    pub(super) options: &'a PackOptions,
    pub(super) changes: Changes<'a>,
    pub(super) on_bad_record: OnBadRecord,
    pub(super) sink: Option<&'a dyn RecordSink>,
    pub(super) mapping: Option<&'a Mapping>,
    pub(super) source: &'a Source,
    pub(super) destination: &'a dyn Destination,
    pub(super) observer: &'a dyn Observer,
    pub(super) cancel: &'a Cancel,
}

impl Run<'_> {
    /// Writes shards in parallel; this thread makes them durable in the order in which they come.
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
            let written = for_each_parallel(shards, jobs, converter, |converter, shard| {
                if !stopped()
                    && let Some(written) = self.write(shard, converter, stopped)?
                {
                    // The finisher hangs up only after an error, which it has reported.
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

    /// Writes the records of a shard. None if it was stopped.
    fn write(
        &self,
        planned: &PlannedShard,
        converter: &mut record::Converter<'_>,
        stopped: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<WrittenShard>> {
        let split = &self.source.splits[planned.split];
        if let Some(shard) = split.damaged.get(planned.number as usize) {
            return self.salvage(planned, shard, converter, stopped);
        }
        let path = self.destination.dir().path(&planned.name);
        let bytes = upload::room_of_planned(planned, self.options);
        let Some(room) = self.destination.reserve(bytes, stopped)? else {
            return Ok(None);
        };
        let mut writer = match (self.sink, self.mapping) {
            (None, None) => RecordFileWriter::shard(&path, self.options)?,
            (None, Some(mapping)) => {
                // Each file is a shard.
                let file = &*split.files[planned.number as usize];
                RecordFileWriter::mapped(&path, mapping.identity(file)?, self.options)?
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
                RecordFileWriter::other(&path, &planned.name, file, self.options)?
            }
        };
        let mut findings = Vec::new();
        let mut extents = Vec::new();
        let mut seek_points = SeekPointCount::default();
        let mut progressive = ProgressiveCount::default();
        let mut fast = FastCount::default();
        let (mut source_bytes, mut records, mut bytes) = (0, 0, 0);
        let mut labels: Option<(i64, i64)> = None;
        for (file, range) in split.pieces(planned.positions.clone()) {
            let mut reader = file.read(range)?;
            loop {
                let next = match self.mapping {
                    Some(_) => reader.next_mapped(&mut extents),
                    None => reader.next_record(),
                };
                let record = match next {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(error) => {
                        findings.push(self.bad_record(error)?);
                        continue;
                    }
                };
                let converted = converter
                    .convert(record.bytes)
                    .map_err(|what| source::refused(file, record.number, what))?;
                seek_points.add(converted.seek_point_bytes);
                progressive.add(converted.is_baseline_now);
                fast.add(converted.fast);
                if let Some(label) = record.label.filter(|label| *label >= 0) {
                    let (least, most) = labels.unwrap_or((label, label));
                    labels = Some((least.min(label), most.max(label)));
                }
                let written = SourceRecord {
                    bytes: converted.bytes,
                    ..record
                };
                if !std::ptr::eq(converted.bytes, record.bytes) {
                    find_again(converted.bytes, record.bytes, &mut extents);
                }
                if let Err(what) = writer.append(&written, &extents)? {
                    return Err(source::refused(file, record.number, what));
                }
                records += 1;
                bytes += record.bytes.len() as u64;
                if records >= STEP_RECORDS || bytes >= STEP_BYTES {
                    source_bytes += bytes;
                    self.observer.advanced(records, bytes);
                    (records, bytes) = (0, 0);
                    if stopped() {
                        return Ok(None);
                    }
                }
            }
        }
        source_bytes += bytes;
        self.observer.advanced(records, bytes);
        let name = planned.name.clone();
        let file = writer.finish()?;
        let written = WrittenShard::converted(name, file, source_bytes, seek_points, self.options);
        let written = written.with_progressive(progressive).with_fast(fast);
        let written = written.with_labels(labels);
        Ok(Some(written.with_findings(findings).in_room(room)))
    }

    /// Returns the finding about a record that is left out, or the error.
    fn bad_record(&self, error: SourceError) -> Result<Finding> {
        match error {
            SourceError::Record { path, record, what }
                if self.on_bad_record == OnBadRecord::Skip =>
            {
                let name = path.file_name().unwrap_or(path.as_os_str());
                let place = name.as_encoded_bytes();
                let what = format!("record {record}: {what}");
                Ok(Finding::new(
                    Action::Skipped,
                    Reason::BadRecord,
                    place,
                    what,
                ))
            }
            error => Err(error.into()),
        }
    }
}
