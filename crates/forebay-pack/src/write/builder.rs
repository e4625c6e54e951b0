//! Reads the files of a run and builds their records, as a piece.

use super::clock::Clock;
use super::piece::{Piece, PieceFile};
use super::read::ReadAhead;
use super::record::Recorder;
use super::scheduler::Run;
use super::source::Opened;
use super::stream::Stream;
use crate::error::Result;
use crate::prepare::Prepared;
use forebay_formats::Finding;
use forebay_formats::images::{EntryRef, Refusal};
use forebay_formats::key_path::join;
use std::rc::Rc;

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
