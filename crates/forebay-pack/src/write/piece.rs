//! A piece: the next few files of a shard, which one worker reads and builds records from, to be written in order.

use super::read::{Clock, ReadAhead};
use super::record::Recorder;
use super::scheduler::Run;
use super::source::Opened;
use super::stream::Stream;
use crate::error::Result;
use crate::prepare::Prepared;
use crate::report::FastCount;
use forebay_formats::Finding;
use forebay_formats::images::EntryRef;
use forebay_formats::images::Refusal;
use forebay_formats::key_path::join;
use forebay_shard::{Frames, RecordMeta};
use std::rc::Rc;

/// Number of bytes of reused memory to keep.
const KEEP_BYTES: usize = 1 << 20;

/// Records in the order of the plan, with the findings about their files.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) frames: Frames,
    /// One entry per file, whether packed or not.
    pub(super) files: Vec<PieceFile>,
    /// Keys of the records, concatenated.
    keys: Vec<u8>,
    /// Size of the files in bytes, as in the census.
    pub(super) source_bytes: u64,
}

/// Outcome of packing a file.
#[derive(Debug)]
pub(super) struct PieceFile {
    /// Label of its record and end of the record's key in `keys`, if it has a record.
    record: Option<(i64, usize)>,
    /// Size of the image in the record, in bytes.
    pub(super) image_bytes: u64,
    /// Size of its seek points in bytes, if it has any.
    pub(super) seek_point_bytes: Option<u64>,
    /// Whether its progressive JPEG was transcoded to baseline; `None` if this was not requested or it is not progressive.
    pub(super) is_baseline_now: Option<bool>,
    /// Counts its fast image, if it has one.
    pub(super) fast: FastCount,
    pub(super) findings: Vec<Finding>,
}

impl Piece {
    /// Returns the index entries of the records.
    pub(super) fn metas(&self) -> impl Iterator<Item = RecordMeta<'_>> {
        let records = self.files.iter().filter_map(|file| file.record);
        records.scan(0, |from, (label, end)| {
            let key = self.keys.get(*from..end).unwrap_or_default();
            *from = end;
            Some(RecordMeta::new(label, key))
        })
    }

    /// Returns an empty piece that reuses the memory of this one and of `frames`.
    pub(super) fn recycle(mut self, mut frames: Frames) -> Self {
        frames.clear(KEEP_BYTES);
        self.files.clear();
        self.keys.clear();
        Self {
            frames,
            source_bytes: 0,
            ..self
        }
    }

    /// Returns this piece without its content.
    pub(super) fn emptied(mut self) -> Self {
        let frames = std::mem::take(&mut self.frames);
        self.recycle(frames)
    }
}

/// The state of a worker that reads files and builds records.
pub(super) struct PieceBuilder<'a> {
    prepared: &'a Prepared,
    recorder: Recorder<'a>,
    ahead: ReadAhead<'a>,
    clock: Rc<Clock>,
}

impl<'a> PieceBuilder<'a> {
    /// Creates the state for the calling thread.
    pub(super) fn new(prepared: &'a Prepared, recorder: Recorder<'a>) -> Self {
        Self {
            prepared,
            recorder,
            ahead: ReadAhead::default(),
            clock: Rc::new(Clock::of_this_thread()),
        }
    }

    /// Builds the records of a run, in the memory of `piece`. `None` if the pack was stopped. `stream` is the source of the
    /// run; if files are slow to read, its next files are opened in advance.
    pub(super) fn make(
        &mut self,
        run: &Run,
        mut piece: Piece,
        stream: &mut Stream<'a, '_>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Piece>> {
        let prepared = self.prepared;
        let planned = stream.planned(run);
        let census = &prepared.census.splits()[planned.split];
        let split = &prepared.plan.splits()[planned.split];
        for entry in split.entries(census, run.positions.clone()) {
            if stopped() {
                return Ok(None);
            }
            let begin = Clock::begin();
            let recorder = &self.recorder;
            let file = self.ahead.take(|| {
                let (split, entry) = stream.next_to_open()?;
                Some(recorder.open(split, &entry))
            });
            self.clock.end(begin);
            let clock = Rc::clone(&self.clock);
            let file = file.map(|file| file.timed(&clock));
            self.add(planned.split, file, &entry, &mut piece)?;
            if self.clock.file_done() {
                self.ahead.begin();
                stream.is_slow();
            }
        }
        piece.frames.rollback();
        Ok(Some(piece))
    }

    /// Adds the outcome of a file to a piece: its record, or the reason why it has none.
    pub(super) fn add(
        &mut self,
        split: usize,
        file: Result<Opened<'_>, Refusal>,
        entry: &EntryRef<'_>,
        piece: &mut Piece,
    ) -> Result<()> {
        let dir = self.prepared.census.splits()[split].dir();
        let mut payload = piece.frames.begin();
        let outcome = self.recorder.put(split, file, entry, &mut payload)?;
        let findings = outcome
            .findings
            .into_iter()
            .map(|(action, (reason, detail))| {
                Finding::new(action, reason, &join(dir, &self.recorder.key), detail)
            });
        let findings = findings.collect();
        // If the record is not committed, the start of the next one drops it.
        let record = match outcome.label {
            Some(label) => {
                piece.frames.commit()?;
                piece.keys.extend_from_slice(&self.recorder.key);
                Some((label, piece.keys.len()))
            }
            None => None,
        };
        piece.files.push(PieceFile {
            record,
            image_bytes: outcome.image_bytes,
            seek_point_bytes: outcome.seek_point_bytes,
            is_baseline_now: outcome.is_baseline_now,
            fast: outcome.fast,
            findings,
        });
        piece.source_bytes += entry.size;
        Ok(())
    }
}
