//! The next few files of a shard, read and put together as records by one worker, ready to be written in their turn.

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

/// Bytes of reused memory that are kept.
const KEEP_BYTES: usize = 1 << 20;

/// Records in the order of the plan, and what there is to say about their files.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) frames: Frames,
    /// One for each file, packed or not.
    pub(super) files: Vec<PieceFile>,
    /// Keys of the records, one after the other.
    keys: Vec<u8>,
    /// Bytes of the files, as in the census.
    pub(super) source_bytes: u64,
}

/// Outcome of a file.
#[derive(Debug)]
pub(super) struct PieceFile {
    /// Label and end of the key of its record, if it has one.
    record: Option<(i64, usize)>,
    /// Bytes of the image in the record.
    pub(super) image_bytes: u64,
    /// Bytes of its seek points, if it has any.
    pub(super) seek_point_bytes: Option<u64>,
    /// Whether a progressive JPEG, which was to become a baseline one, is one now.
    pub(super) is_baseline_now: Option<bool>,
    /// Whether it has a fast image.
    pub(super) fast: FastCount,
    pub(super) findings: Vec<Finding>,
}

impl Piece {
    /// Index entries of the records.
    pub(super) fn metas(&self) -> impl Iterator<Item = RecordMeta<'_>> {
        let records = self.files.iter().filter_map(|file| file.record);
        records.scan(0, |from, (label, end)| {
            let key = self.keys.get(*from..end).unwrap_or_default();
            *from = end;
            Some(RecordMeta::new(label, key))
        })
    }

    /// An empty piece with the memory of this one and of `frames`.
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

    /// This piece, empty.
    pub(super) fn emptied(mut self) -> Self {
        let frames = std::mem::take(&mut self.frames);
        self.recycle(frames)
    }
}

/// State of a worker that reads files and builds records.
pub(super) struct PieceBuilder<'a> {
    prepared: &'a Prepared,
    recorder: Recorder<'a>,
    ahead: ReadAhead<'a>,
    clock: Rc<Clock>,
}

impl<'a> PieceBuilder<'a> {
    /// For the thread that calls it.
    pub(super) fn new(prepared: &'a Prepared, recorder: Recorder<'a>) -> Self {
        Self {
            prepared,
            recorder,
            ahead: ReadAhead::default(),
            clock: Rc::new(Clock::of_this_thread()),
        }
    }

    /// Puts the records of a run together, in the memory of `piece`. None if it was stopped. `stream` is where the run
    /// came from: files beyond it are opened ahead where files are slow.
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

    /// Adds a file to a piece: its record, or why it has none.
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
        // A record that was started and not committed is dropped when the next one begins.
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
