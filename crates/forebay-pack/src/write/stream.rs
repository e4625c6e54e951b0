//! The runs of one worker, one after the other, and the files that it opens ahead of them.

use super::piece::Piece;
use super::scheduler::{Role, Run, WriteScheduler};
use crate::plan::PlannedShard;
use forebay_formats::images::EntryRef;
use std::collections::VecDeque;

/// A worker's way to its work.
pub(super) struct Stream<'a, 'b> {
    scheduler: &'b WriteScheduler<'a>,
    role: Role,
    home: Option<usize>,
    stopped: &'b dyn Fn() -> bool,
    /// The run in the works, and those that were taken to open their files ahead.
    taken: VecDeque<(Run, Piece)>,
    /// The run of the next file to open, counted from the one in the works, and its position.
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

    /// The next run to work on, with memory for its piece; none when all is taken or it is stopped.
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

    /// Ends the run in the works: all of its files were opened.
    pub(super) fn end_run(&mut self) {
        self.taken.pop_front();
        self.to_open.0 = self.to_open.0.saturating_sub(1);
    }

    /// The next file to open, which may be one of a later run: its split and itself.
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
            // A worker that has a run must not wait for another one: others may wait for it.
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

    /// Tells that files are slow to open and to read.
    pub(super) fn is_slow(&self) {
        self.scheduler.files_are_slow();
    }
}
