//! Schedules the writing of shards: divides them into runs of files, which workers take, and writes pieces in order.
//!
//! Each worker starts a new shard as long as there are any, and then helps with those of others. So a single shard
//! keeps all workers busy, and workers of different shards do not wait for each other. A worker that has finished
//! the next piece of a shard writes it, together with the finished pieces that follow it. The number of bytes that are read
//! and not yet written is bounded, for any number of workers.

use super::piece::Piece;
use super::shard::{OpenShard, WrittenShard};
use crate::error::Result;
use crate::observer::Observer;
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::publish::destination::Destination;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

/// Size in bytes at which a run ends. A piece of this size stays in a core's second-level cache while it is read,
/// checksummed and written, which makes each step cheaper.
const RUN_BYTES: u64 = 256 << 10;
/// Maximum number of files of a run. Each file counts `FILE_BYTES` in addition to its size, for its metadata.
const RUN_FILES: u64 = 256;
const FILE_BYTES: u64 = 512;
/// Maximum number of bytes that are being read or wait to be written.
const IN_FLIGHT_BYTES: u64 = 48 << 20;
/// Maximum number of pieces whose memory is kept for later runs.
const SPARE_PIECES: usize = 64;

/// Consecutive files of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// Index of the shard among those to write.
    pub(super) shard: usize,
    number: u64,
    pub(super) positions: Range<u64>,
    bytes: u64,
}

/// Determines which runs a worker may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Starts shards, and helps with others.
    Writer,
    /// Only helps, and only if files are slow to read: an additional thread that waits for the disk or the network.
    Reader,
}

/// The state of all shards, shared by the workers.
pub(super) struct WriteScheduler<'p> {
    prepared: &'p Prepared,
    shards: &'p [PlannedShard],
    open_max: usize,
    state: Mutex<State>,
    /// Notified when there may be a run to take.
    changed: Condvar,
    /// Notified when readers are needed, or no longer needed.
    called: Condvar,
    is_slow: AtomicBool,
}

#[derive(Default)]
struct State {
    next_shard: usize,
    shards: Vec<ShardProgress>,
    in_flight_bytes: u64,
    spare: Vec<Piece>,
}

/// A shard that was started.
struct ShardProgress {
    shard: usize,
    /// Start of the next run, and end of the last one.
    rest: Range<u64>,
    runs: u64,
    written: u64,
    /// Finished pieces that are not next in order, with the bytes of their runs.
    waiting: BTreeMap<u64, (Piece, u64)>,
    open: Option<OpenShard>,
    is_writing: bool,
}

impl<'p> WriteScheduler<'p> {
    /// Creates the scheduler. At most `open_max` shards are open at the same time.
    pub(super) fn new(prepared: &'p Prepared, shards: &'p [PlannedShard], open_max: usize) -> Self {
        Self {
            prepared,
            shards,
            open_max,
            state: Mutex::default(),
            changed: Condvar::new(),
            called: Condvar::new(),
            is_slow: AtomicBool::new(false),
        }
    }

    pub(super) fn prepared(&self) -> &'p Prepared {
        self.prepared
    }

    pub(super) fn planned(&self, shard: usize) -> &'p PlannedShard {
        &self.shards[shard]
    }

    /// Activates the readers.
    pub(super) fn files_are_slow(&self) {
        if !self.is_slow.swap(true, Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes all waiting threads, for a stop or at the end.
    pub(super) fn wake(&self) {
        // The lock is held, so that no worker is between its check and its wait.
        let _state = self.lock();
        self.changed.notify_all();
        self.called.notify_all();
    }

    /// Returns the next run, preferably of the shard `home`. If there is none now, waits for one if `waits` is set. Returns
    /// `None` if no run is left or the pack was stopped.
    pub(super) fn take(
        &self,
        home: &mut Option<usize>,
        role: Role,
        waits: bool,
        stopped: &dyn Fn() -> bool,
    ) -> Option<(Run, Piece)> {
        let mut state = self.lock();
        loop {
            if stopped() {
                return None;
            }
            let is_called = role == Role::Writer || self.is_slow.load(Ordering::Relaxed);
            if is_called && let Some(run) = self.cut(&mut state, home, role) {
                state.in_flight_bytes += run.bytes;
                if self.nothing_left(&state) {
                    self.changed.notify_all();
                    self.called.notify_all();
                }
                let piece = state.spare.pop().unwrap_or_default();
                return Some((run, piece));
            }
            if !waits || self.nothing_left(&state) {
                return None;
            }
            let awaited = if is_called {
                &self.changed
            } else {
                &self.called
            };
            state = match awaited.wait(state) {
                Ok(state) => state,
                Err(poisoned) => poisoned.into_inner(),
            };
        }
    }

    fn nothing_left(&self, state: &State) -> bool {
        let is_cut = |progress: &ShardProgress| progress.rest.is_empty();
        state.next_shard == self.shards.len() && state.shards.iter().all(is_cut)
    }

    fn cut(&self, state: &mut State, home: &mut Option<usize>, role: Role) -> Option<Run> {
        let in_flight = state.in_flight_bytes;
        let at_home = state
            .shards
            .iter_mut()
            .find(|progress| Some(progress.shard) == *home && !progress.rest.is_empty());
        if let Some(progress) = at_home {
            return self.cut_run(progress, in_flight);
        }
        if role == Role::Writer
            && state.shards.len() < self.open_max
            && let Some(planned) = self.shards.get(state.next_shard)
        {
            *home = Some(state.next_shard);
            let mut progress = ShardProgress {
                shard: state.next_shard,
                rest: planned.positions.clone(),
                runs: 0,
                written: 0,
                waiting: BTreeMap::new(),
                open: None,
                is_writing: false,
            };
            state.next_shard += 1;
            let run = self.cut_run(&mut progress, in_flight);
            state.shards.push(progress);
            return run;
        }
        // Prefers the shard with the most work left. Others are tried too, because the memory limit may allow only the next run.
        let mut open: Vec<&mut ShardProgress> = state.shards.iter_mut().collect();
        open.sort_by_key(|progress| std::cmp::Reverse(progress.rest.end - progress.rest.start));
        open.into_iter()
            .find_map(|progress| self.cut_run(progress, in_flight))
    }

    /// Cuts the next run off a shard, if there is one and the memory limit allows it. The run that is next to be written is
    /// always allowed, because nothing else frees memory.
    fn cut_run(&self, progress: &mut ShardProgress, in_flight: u64) -> Option<Run> {
        let is_due = progress.runs == progress.written;
        if progress.rest.is_empty() || (!is_due && in_flight >= IN_FLIGHT_BYTES) {
            return None;
        }
        let planned = self.planned(progress.shard);
        let census = &self.prepared.census.splits()[planned.split];
        let split = &self.prepared.plan.splits()[planned.split];
        let (mut bytes, start) = (0, progress.rest.start);
        let mut end = start;
        while end < progress.rest.end && end - start < RUN_FILES && bytes < RUN_BYTES {
            bytes += FILE_BYTES + census.get(split.entry_at(end)).size;
            end += 1;
        }
        let run = Run {
            shard: progress.shard,
            number: progress.runs,
            positions: start..end,
            bytes,
        };
        progress.rest.start = end;
        progress.runs += 1;
        Some(run)
    }

    /// Stores the piece of a run, and writes the pieces that are next in order. Returns the shard after its last piece.
    pub(super) fn put(
        &self,
        run: &Run,
        piece: Piece,
        destination: &dyn Destination,
        observer: &dyn Observer,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<WrittenShard>> {
        let mut state = self.lock();
        let Some(progress) = find(&mut state, run.shard) else {
            return Ok(None);
        };
        progress.waiting.insert(run.number, (piece, run.bytes));
        loop {
            let Some(progress) = find(&mut state, run.shard) else {
                return Ok(None);
            };
            // Another worker is writing this shard, and will write this piece too when it is next.
            if progress.is_writing {
                return Ok(None);
            }
            let Some((piece, bytes)) = progress.waiting.remove(&progress.written) else {
                return Ok(None);
            };
            progress.is_writing = true;
            let open = progress.open.take();
            drop(state);
            let mut open = match open {
                Some(open) => open,
                None => {
                    let planned = self.planned(run.shard);
                    match OpenShard::create(destination, self.prepared, planned, stopped)? {
                        Some(open) => open,
                        None => return Ok(None),
                    }
                }
            };
            let spare = open.append(piece, self.prepared, observer)?;
            state = self.lock();
            state.in_flight_bytes = state.in_flight_bytes.saturating_sub(bytes);
            if state.spare.len() < SPARE_PIECES {
                state.spare.extend(spare);
            }
            if let Some(progress) = find(&mut state, run.shard) {
                progress.is_writing = false;
                progress.written += 1;
                if progress.rest.is_empty() && progress.written == progress.runs {
                    state.shards.retain(|progress| progress.shard != run.shard);
                    drop(state);
                    self.changed.notify_all();
                    return open.finish(&self.prepared.options).map(Some);
                }
                progress.open = Some(open);
            }
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while the lock is held.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

fn find(state: &mut State, shard: usize) -> Option<&mut ShardProgress> {
    state
        .shards
        .iter_mut()
        .find(|progress| progress.shard == shard)
}
