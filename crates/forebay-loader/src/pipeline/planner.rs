//! Walks the plan ahead of the pipeline: determines the next samples and the reads that they need.
//!
//! The planner owns the position up to which samples are planned, and the extents of each virtual rank's
//! current window.

use std::collections::HashMap;
use std::sync::Arc;

use super::extent::{Extent, ExtentBuffer};
use crate::error::Result;
use crate::options::Options;
use crate::plan::{Batches, Epoch, Footprint, PlanOptions, Reading, Run, Selection};
use crate::source::{DEFAULT_READERS, Source};

/// Maximum number of samples planned ahead without a place in a batch, which bounds the memory of
/// the plan itself.
const MAX_PLANNED: u64 = 1 << 16;

/// Maximum effort to find the samples that a rank has of a window: about a millisecond.
const MAX_SCANNED: u64 = 1 << 17;

/// Memory per record for its offset in the memory block.
const PLACE_BYTES: u64 = 48;

/// A planned sample that has no slot in a batch buffer yet.
pub(super) struct Planned {
    /// Running number of its batch.
    pub(super) batch: u64,
    pub(super) epoch: u64,
    /// Position at which its global batch begins.
    pub(super) start: u64,
    pub(super) sample: u64,
    pub(super) occurrence: u64,
    pub(super) padding: bool,
    pub(super) extent: Arc<Extent>,
}

/// How far to plan ahead, and how to read the records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Samples planned beyond those with a place in a batch.
    pub(super) ahead: usize,
    /// Whether each record is read on its own and dropped after its sample.
    pub(super) single: bool,
    /// Maximum size of records that are held or read ahead.
    pub(super) bytes: u64,
    run_records: u64,
    /// Maximum number of unwanted records to read between two wanted ones.
    gap: u64,
}

impl Reach {
    /// Determines whether the windows of the order, with records of `mean` bytes, fit into `budget`,
    /// and how much to read ahead. The order itself never depends on this.
    pub(super) fn new(
        options: &Options,
        num_samples: u64,
        mean: u64,
        budget: u64,
        gap_bytes: u64,
        readers: usize,
    ) -> Self {
        let records = num_samples.max(1);
        let readers = readers as u64;
        // Two reads per reader in progress, and two in the queue.
        let reads = readers * 4;
        let world_size = options.world_size.max(1);
        let virtual_ranks = virtual_ranks_of(options.virtual_ranks, world_size, options.batch_size);
        let Footprint {
            run_records,
            window_records: held,
        } = options.shuffle.footprint(&Reading {
            records,
            mean_bytes: mean,
            virtual_ranks,
            world_size,
            budget_bytes: budget,
            gap_bytes,
            reads,
        });
        let ahead_records = reads.saturating_mul(run_records);
        let bytes = |records: u64| records.saturating_mul(mean);
        // The windows and a read per reader must fit, otherwise reading would stall at each change
        // of a window.
        let fits = held.is_some_and(|held| {
            let reading = bytes(run_records).saturating_mul(readers);
            bytes(held.min(records)).saturating_add(reading) <= budget
        });
        // At most about an epoch ahead: small datasets would otherwise be read repeatedly.
        let ahead_samples = ahead_records
            .min(records)
            .saturating_mul(options.sampling.times());
        let ahead = options
            .batch_size
            .saturating_mul(2)
            .max(if fits { ahead_samples } else { reads })
            .min(MAX_PLANNED.max(options.batch_size));
        // When a virtual rank changes its window, the old and the new window are held together, within the planned
        // range, and some memory is kept for the next reads.
        let kept = run_records.saturating_mul(readers + 2);
        let most = match held.filter(|_| fits) {
            Some(held) => held.saturating_add(ahead_records.saturating_mul(2)),
            None => reads,
        };
        Reach {
            bytes: bytes(most.saturating_add(kept)),
            ahead: usize::try_from(ahead).unwrap_or(usize::MAX),
            single: !fits,
            run_records,
            gap: gap_bytes / mean,
        }
    }
}

/// Returns the number of readers and the reach. With `wanted` readers, the windows of the order may not fit into the
/// budget beside the reads; then the number decreases down to that for local files. If the windows
/// never fit, records are read one by one and take little memory.
pub(super) fn most_readers(wanted: usize, reach: impl Fn(usize) -> Reach) -> (usize, Reach) {
    let mut readers = wanted;
    loop {
        let found = reach(readers);
        if !found.single || readers <= DEFAULT_READERS {
            return match found.single {
                true => (wanted, reach(wanted)),
                false => (readers, found),
            };
        }
        readers = (readers / 2).max(DEFAULT_READERS);
    }
}

/// Returns the maximum number of virtual ranks of which a rank has positions in an epoch. If the number of ranks does not
/// divide theirs, ranks divide windows, and the cuts move a little from batch to batch: by one virtual rank, or by more if
/// a global batch has only a few positions of each.
fn virtual_ranks_of(virtual_ranks: u64, world_size: u64, batch_size: u64) -> u64 {
    let whole = virtual_ranks / world_size;
    if virtual_ranks.is_multiple_of(world_size) {
        return whole;
    }
    let moved = (2 * virtual_ranks).div_ceil(world_size.saturating_mul(batch_size.max(1)));
    (whole + 2 + moved).min(virtual_ranks)
}

struct HeldExtents {
    group: u64,
    /// If ranks divide the window: the samples of this rank in it, in ascending order.
    mine: Option<Vec<u64>>,
    extents: Vec<Arc<Extent>>,
}

/// The inputs from which each epoch is planned.
#[derive(Clone)]
pub(super) struct Planning {
    pub(super) selection: Selection,
    pub(super) options: Options,
    pub(super) batches: Batches,
    pub(super) reach: Reach,
}

impl Planning {
    fn epoch(&self, epoch: u64) -> Result<Epoch> {
        let options = &self.options;
        let order = PlanOptions {
            records: self.selection.len(),
            seed: options.seed,
            epoch,
            virtual_ranks: options.virtual_ranks,
            shuffle: options.shuffle,
            run_records: self.reach.run_records,
        };
        Epoch::new(&order, &self.selection, options.sampling.times())
    }
}

pub(super) struct Planner {
    planning: Planning,
    plan: Epoch,
    /// Running number of the batch, the position at which it begins, and the next sample in it.
    batch: u64,
    start: u64,
    index: usize,
    /// The positions of the batch.
    positions: Vec<u64>,
    held: HashMap<u64, HeldExtents>,
}

impl Planner {
    /// Plans the batches from `position` of `epoch` on.
    pub(super) fn new(planning: Planning, (epoch, position): (u64, u64)) -> Result<Self> {
        let mut planner = Planner {
            plan: planning.epoch(epoch)?,
            planning,
            batch: 0,
            start: position,
            index: 0,
            positions: Vec::new(),
            held: HashMap::new(),
        };
        planner.skip_finished_epoch()?;
        Ok(planner)
    }

    /// Plans the next sample. Returns `None` if its extent does not fit into memory now. With `urgent` it
    /// is planned regardless, because no work in progress would free memory.
    pub(super) fn next(
        &mut self,
        source: &dyn Source,
        store: &mut ExtentBuffer,
        urgent: bool,
    ) -> Result<Option<Planned>> {
        let assignment = *self.planning.batches.assignment();
        if self.index == 0 {
            self.positions = assignment.positions(self.plan.epoch(), self.start);
        }
        let position = self.positions[self.index];
        let padding = position >= assignment.samples;
        // Padding belongs to windows that were released, or to other ranks. The records of the first batch are also
        // read one by one: waiting for the windows of all virtual ranks, hundreds of megabytes, would delay it.
        // The windows are read after it.
        let single = self.planning.reach.single || padding || self.batch == 0;
        let (planned, extent) = if single {
            let planned = self.plan.at(position);
            let alone = planned.sample..planned.sample + 1;
            (
                planned,
                admit(&alone, planned.sample, source, store, urgent),
            )
        } else {
            let reading = self.plan.run_at(position);
            let sample = reading.planned.sample;
            let extent = self.held((position, sample), &reading.run, source, store, urgent);
            (reading.planned, extent)
        };
        let Some(extent) = extent else {
            return Ok(None);
        };
        let planned = Planned {
            batch: self.batch,
            epoch: self.plan.epoch(),
            start: self.start,
            sample: planned.sample,
            occurrence: planned.occurrence,
            padding,
            extent,
        };
        self.index += 1;
        if self.index == self.positions.len() {
            self.index = 0;
            self.batch += 1;
            self.start += self.planning.batches.global_size();
            if self.planning.batches.remaining(self.start) == 0 {
                self.let_go(store);
                self.skip_finished_epoch()?;
            }
        }
        Ok(Some(planned))
    }

    /// Returns the running number of the batch of the next sample.
    pub(super) fn batch(&self) -> u64 {
        self.batch
    }

    fn skip_finished_epoch(&mut self) -> Result<()> {
        if self.planning.batches.remaining(self.start) == 0 {
            let next = self.plan.epoch().wrapping_add(1);
            self.plan = self.planning.epoch(next)?;
            self.start = 0;
        }
        Ok(())
    }

    /// Releases the extents of all windows.
    pub(super) fn let_go(&mut self, store: &mut ExtentBuffer) {
        for (_, held) in self.held.drain() {
            for extent in held.extents {
                store.release(extent);
            }
        }
    }

    /// Returns the extent that contains a sample of a run, which is at a position. It is held until the virtual rank enters
    /// another window.
    fn held(
        &mut self,
        (position, sample): (u64, u64),
        run: &Run,
        source: &dyn Source,
        store: &mut ExtentBuffer,
        urgent: bool,
    ) -> Option<Arc<Extent>> {
        let &Run {
            virtual_rank,
            group,
            ..
        } = run;
        let mut held = match self.held.remove(&virtual_rank) {
            Some(held) if held.group == group => held,
            left => {
                for extent in left.into_iter().flat_map(|left| left.extents) {
                    store.release(extent);
                }
                HeldExtents {
                    group,
                    mine: self.mine(position, run),
                    extents: Vec::new(),
                }
            }
        };
        let mut extents = held.extents.iter();
        let found = extents.find(|extent| extent.records.contains(&sample));
        let extent = found.map(Arc::clone).or_else(|| {
            let records = self.plan.stretch(&held.part(run), self.planning.reach.gap);
            let extent = admit(&records, sample, source, store, urgent)?;
            held.extents.push(Arc::clone(&extent));
            Some(extent)
        });
        self.held.insert(virtual_rank, held);
        extent
    }

    /// Returns the samples of the window of a run that this rank has from this batch on. Returns `None` if ranks do not divide
    /// windows, or if too many batches have a part of the window.
    fn mine(&self, position: u64, run: &Run) -> Option<Vec<u64>> {
        let batches = &self.planning.batches;
        let assignment = batches.assignment();
        let order = assignment.divided()?;
        let window = order.block_records.saturating_mul(order.window_blocks);
        let span = (window.saturating_mul(order.repeats)).saturating_mul(order.virtual_ranks);
        let effort = assignment.batch_size + order.virtual_ranks;
        if (span / assignment.global_size() + 1).saturating_mul(effort) > MAX_SCANNED {
            return None;
        }
        let end = assignment.samples.min(position + span);
        let mut mine: Vec<u64> = (self.start..end)
            .step_by(usize::try_from(assignment.global_size()).ok()?)
            .filter(|&start| batches.remaining(start) > 0)
            .flat_map(|start| assignment.positions(self.plan.epoch(), start))
            .filter(|&p| p < end && p % order.virtual_ranks == position % order.virtual_ranks)
            .map(|p| self.plan.run_at(p).run)
            .filter(|found| (found.virtual_rank, found.group) == (run.virtual_rank, run.group))
            .map(|found| found.sample)
            .collect();
        mine.sort_unstable();
        Some(mine)
    }
}

impl HeldExtents {
    /// Returns the part of a run that this rank reads: from the first to the last of its samples.
    fn part(&self, run: &Run) -> Run {
        let mut run = run.clone();
        if let Some(mine) = &self.mine {
            let before = |end: u64| mine.partition_point(|&sample| sample < end);
            let within = &mine[before(run.records.start)..before(run.records.end)];
            let first = within.first().copied().unwrap_or(run.sample);
            let last = within.last().copied().unwrap_or(run.sample);
            run.records = first.min(run.sample)..last.max(run.sample) + 1;
        }
        run
    }
}

/// Requests a read of the piece of `run` around `sample`, if it fits into memory.
fn admit(
    run: &std::ops::Range<u64>,
    sample: u64,
    source: &dyn Source,
    store: &mut ExtentBuffer,
    urgent: bool,
) -> Option<Arc<Extent>> {
    let piece = source.piece(run, sample);
    match source.stored_bytes(&piece) {
        Ok(bytes) => {
            let bytes = bytes.saturating_add((piece.end - piece.start).saturating_mul(PLACE_BYTES));
            (urgent || store.has_room(bytes)).then(|| store.admit(piece, bytes))
        }
        Err(error) => Some(store.refuse(piece, error)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use forebay_image::Transform;

    use super::*;
    use crate::pipeline::tests::{Records, planning};

    /// The reads of ranks from their second batch on, in multiples of the samples that they take, and the records that they hold.
    #[derive(Debug, Default)]
    struct Reads {
        mean: f64,
        worst: f64,
        /// Reads in multiples of the number of blocks.
        requests: f64,
        most_held: u64,
    }

    fn reads(records: u64, world_size: u64, batch_size: u64) -> Reads {
        let mut found = Reads::default();
        let (mut read, mut taken, mut requests) = (0, 0, 0);
        for rank in 0..world_size {
            let mut options = Options::new(batch_size, Transform::KeepEncoded);
            (options.rank, options.world_size) = (rank, world_size);
            options.shuffle = crate::Shuffle::blocks(32, 2);
            let options = options.resolve(records, records).unwrap();
            let planning = planning(&options, records, u64::MAX >> 8);
            let mut planner = Planner::new(planning.clone(), (0, 0)).unwrap();
            let mut store = ExtentBuffer::new(u64::MAX, 0);
            let (mut of_rank, mut next_id) = (0, batch_size);
            while planner.batch() < planning.batches.per_epoch() {
                let planned = planner.next(&Records(records), &mut store, true);
                let extent = planned.unwrap().unwrap().extent;
                let len = |extent: &Arc<Extent>| extent.records.end - extent.records.start;
                if extent.id >= next_id {
                    (of_rank, next_id, requests) =
                        (of_rank + len(&extent), extent.id + 1, requests + 1);
                }
                if planner.index == 0 {
                    let held = planner.held.values().flat_map(|held| &held.extents);
                    found.most_held = found.most_held.max(held.map(len).sum());
                }
            }
            let own = (planning.batches.per_epoch() - 1) * batch_size;
            found.worst = found.worst.max(of_rank as f64 / own as f64);
            (read, taken) = (read + of_rank, taken + own);
        }
        found.mean = read as f64 / taken as f64;
        found.requests = requests as f64 * 32.0 / taken as f64;
        found
    }

    /// RECORDS=1281167 with `--nocapture` gives the table of docs/loader.md.
    #[test]
    fn ranks_that_divide_windows_read_little_more_than_their_share() {
        let records = std::env::var("RECORDS").map_or(150_000, |records| records.parse().unwrap());
        let whole = reads(records, 8, 32);
        assert!(whole.worst < 1.1, "{whole:?}");
        for (world_size, batch_size, mean, worst) in [
            (56, 32, 1.27, 1.45),
            (56, 256, 1.15, 1.3),
            (72, 32, 1.36, 1.6),
            (72, 256, 1.16, 1.3),
            (100, 32, 1.54, 1.8),
            (100, 256, 1.15, 1.3),
        ] {
            let found = reads(records, world_size, batch_size);
            println!("{world_size} ranks, batches of {batch_size}: {found:.2?}");
            assert!(found.mean < mean && found.worst < worst, "{found:?}");
            assert!(found.most_held <= 2 * 64, "{found:?}");
        }
    }

    #[test]
    fn ranks_keep_to_the_virtual_ranks_that_memory_is_planned_for() {
        let (records, mut most) = (20_000, 0.0f64);
        for world_size in [3, 5, 7, 24, 33, 48, 56, 63, 72, 100, 130, 500] {
            for batch_size in [1, 2, 3, 8, 32] {
                let mut options = Options::new(batch_size, Transform::KeepEncoded);
                options.world_size = world_size;
                let planned = virtual_ranks_of(64, world_size, batch_size);
                for rank in (0..world_size).step_by(world_size as usize / 9 + 1) {
                    options.rank = rank;
                    let resolved = options.resolve(records, records * 110_000).unwrap();
                    let batches = resolved.batches(records).unwrap();
                    let mut found = HashSet::new();
                    for start in (0..records).step_by(batches.global_size() as usize) {
                        let positions = batches.assignment().positions(0, start);
                        let real = positions.into_iter().filter(|&p| p < records);
                        found.extend(real.map(|p| p % 64));
                    }
                    let found = found.len() as u64;
                    assert!(
                        found <= planned,
                        "rank {rank} of {world_size}, batches of {batch_size}: {found} of {planned}"
                    );
                    most = most.max(found as f64 / planned as f64);
                }
            }
        }
        assert!(most > 0.99, "memory is planned for too many: {most}");
        assert_eq!(virtual_ranks_of(64, 16, 1), 4);
        assert_eq!(virtual_ranks_of(64, 3, 1), 64);
    }
}
