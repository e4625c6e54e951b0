//! Writing the files of a conversion in parallel.

use super::batches::Batches;
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
use forebay_formats::records::{OnBadRecord, RecordFile, RecordSink, SourceRecord};
use forebay_formats::{Action, Error as SourceError, Finding, Reason};
use forebay_shard::mapped::Extent;
use forebay_shard::parallel::{for_each_parallel, run_beside};
use std::io;
use std::ops::Range;
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
            let batches = Batches::new(
                self.changes,
                features,
                self.options.decided_jobs(),
                self.on_bad_record,
            );
            let written = for_each_parallel(shards, jobs, converter, |converter, shard| {
                if !stopped()
                    && let Some(written) = self.write(shard, &batches, converter, stopped)?
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

    /// Begins the file of a shard.
    fn begin(&self, planned: &PlannedShard) -> Result<RecordFileWriter> {
        let path = self.destination.dir().path(&planned.name);
        match (self.sink, self.mapping) {
            (None, None) => RecordFileWriter::shard(&path, self.options),
            (None, Some(mapping)) => {
                // Each file is a shard.
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

    /// Writes records of a file one by one, without copies of what does not change. Returns false if it was stopped.
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
                Ok(None) => return Ok(true),
                Err(error) => {
                    shard.leave_out(error)?;
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

/// A shard that is being written.
pub(super) struct ShardInProgress<'a> {
    on_bad_record: OnBadRecord,
    observer: &'a dyn Observer,
    writer: RecordFileWriter,
    findings: Vec<Finding>,
    seek_points: SeekPointCount,
    progressive: ProgressiveCount,
    fast: FastCount,
    /// The lowest and the highest label.
    labels: Option<(i64, i64)>,
    source_bytes: u64,
    /// Records and bytes that the observer does not know of.
    step: (u64, u64),
}

impl<'a> ShardInProgress<'a> {
    fn new(run: &Run<'a>, writer: RecordFileWriter) -> Self {
        Self {
            on_bad_record: run.on_bad_record,
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

    /// Writes a record in its new form. Returns whether that was the end of a step.
    pub(super) fn append(
        &mut self,
        file: &dyn RecordFile,
        record: &SourceRecord<'_>,
        converted: &record::Converted<'_>,
        extents: &[Extent],
    ) -> Result<bool> {
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

    /// Leaves a record out, or returns its error.
    pub(super) fn leave_out(&mut self, error: SourceError) -> Result<()> {
        match error {
            SourceError::Record { path, record, what }
                if self.on_bad_record == OnBadRecord::Skip =>
            {
                let name = path.file_name().unwrap_or(path.as_os_str());
                let place = name.as_encoded_bytes();
                let what = format!("record {record}: {what}");
                let (skipped, bad) = (Action::Skipped, Reason::BadRecord);
                self.findings.push(Finding::new(skipped, bad, place, what));
                Ok(())
            }
            error => Err(error.into()),
        }
    }

    /// Leaves out a record that cannot be converted or that the format cannot hold, or returns its error.
    pub(super) fn refuse(
        &mut self,
        file: &dyn RecordFile,
        record: u64,
        what: String,
    ) -> Result<()> {
        if self.on_bad_record != OnBadRecord::Skip {
            return Err(source::refused(file, record, what));
        }
        let path = file.path().to_path_buf();
        self.leave_out(SourceError::Record { path, record, what })
    }

    /// Tells the observer what was written since the last time.
    fn advance(&mut self) {
        let (records, bytes) = std::mem::take(&mut self.step);
        self.source_bytes += bytes;
        self.observer.advanced(records, bytes);
    }
}
