//! The sequence of runs of one worker, and the files that it opens in advance.

use super::piece::Piece;
use super::scheduler::{Role, Run, WriteScheduler};
use crate::plan::PlannedShard;
use forebay_formats::images::EntryRef;
use std::collections::VecDeque;

/// The sequence of runs of one worker.
pub(super) struct Stream<'a, 'b> {
    scheduler: &'b WriteScheduler<'a>,
    role: Role,
    home: Option<usize>,
    stopped: &'b dyn Fn() -> bool,
    /// The current run, followed by the runs that were taken to open their files in advance.
    taken: VecDeque<(Run, Piece)>,
    /// The next file to open: the index of its run in `taken`, and its position.
    to_open: (usize, u64),
}

impl<'a, 'b> Stream<'a, 'b> {
    pub(super) fn new(
        scheduler: &'b WriteScheduler<'a>,
        role: Role,
        stopped: &'b dyn Fn() -> bool,
    ) -> Self {
        Self {
            scheduler,
            role,
            home: None,
            stopped,
            taken: VecDeque::new(),
            to_open: (0, 0),
        }
    }

    /// Returns the next run, with memory for its piece; `None` if no run is left or the pack was stopped.
    pub(super) fn next_run(&mut self) -> Option<(Run, Piece)> {
        if self.taken.is_empty() {
            let taken = self
                .scheduler
                .take(&mut self.home, self.role, true, self.stopped)?;
            self.to_open = (0, taken.0.positions.start);
            self.taken.push_back(taken);
        }
        let (run, piece) = self.taken.front_mut()?;
        Some((run.clone(), std::mem::take(piece)))
    }

    /// Ends the current run, of which all files were opened.
    pub(super) fn end_run(&mut self) {
        self.taken.pop_front();
        self.to_open.0 = self.to_open.0.saturating_sub(1);
    }

    /// Returns the split and entry of the next file to open, which may belong to a later run.
    pub(super) fn next_to_open(&mut self) -> Option<(usize, EntryRef<'a>)> {
        loop {
            let (at, position) = self.to_open;
            match self.taken.get(at) {
                Some((run, _)) if position < run.positions.end => {
                    self.to_open.1 += 1;
                    let planned = self.scheduler.planned(run.shard);
                    let prepared = self.scheduler.prepared();
                    let census = &prepared.census.splits()[planned.split];
                    let split = &prepared.plan.splits()[planned.split];
                    return Some((planned.split, census.get(split.entry_at(position))));
                }
                _ => {}
            }
            // A worker that holds a run must not wait for another run, because other workers may wait for the one it holds.
            if at + 1 >= self.taken.len() {
                let taken = self
                    .scheduler
                    .take(&mut self.home, self.role, false, self.stopped)?;
                self.taken.push_back(taken);
            }
            let (run, _) = self.taken.get(at + 1)?;
            self.to_open = (at + 1, run.positions.start);
        }
    }

    pub(super) fn planned(&self, run: &Run) -> &'a PlannedShard {
        self.scheduler.planned(run.shard)
    }

    /// Reports that files are slow to open and to read.
    pub(super) fn is_slow(&self) {
        self.scheduler.files_are_slow();
    }
}
