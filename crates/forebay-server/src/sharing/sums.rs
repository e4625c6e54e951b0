//! Sums and differences of what sources tell of their work.

use forebay_loader::ReadTimes;
use forebay_wire::wire;

use crate::source::Monitor;

/// What counts for totals.
#[derive(Debug, Clone, Default)]
pub(super) struct Work {
    pub(super) stats: wire::Stats,
    pub(super) reads: ReadTimes,
}

impl Work {
    /// What was done so far.
    pub(super) fn of(monitor: &dyn Monitor) -> Work {
        Work {
            stats: monitor.counted(),
            reads: monitor.reads(),
        }
    }

    pub(super) fn plus(self, other: &Work) -> Work {
        let mut reads = self.reads;
        reads.add(&other.reads);
        Work {
            stats: more(self.stats, &other.stats),
            reads,
        }
    }

    /// What has come since.
    pub(super) fn minus(self, before: &Work) -> Work {
        let mut reads = self.reads;
        for (count, known) in reads.counts.iter_mut().zip(before.reads.counts) {
            *count = count.saturating_sub(known);
        }
        reads.sum_s -= before.reads.sum_s;
        Work {
            stats: less(self.stats, &before.stats),
            reads,
        }
    }
}

/// Both together. The last failures are those of either.
pub(super) fn more(mut one: wire::Stats, other: &wire::Stats) -> wire::Stats {
    for stage in &other.stages {
        match one.stages.iter_mut().find(|known| known.name == stage.name) {
            Some(known) => {
                known.busy_s += stage.busy_s;
                known.starved_s += stage.starved_s;
                known.blocked_s += stage.blocked_s;
                known.threads = known.threads.max(stage.threads);
            }
            None => one.stages.push(stage.clone()),
        }
    }
    one.images += other.images;
    one.batches += other.batches;
    one.bytes_read += other.bytes_read;
    one.failed += other.failed;
    if !other.failures.is_empty() {
        one.failures.clone_from(&other.failures);
    }
    one
}

/// What has come since.
pub(super) fn less(mut now: wire::Stats, before: &wire::Stats) -> wire::Stats {
    for stage in &mut now.stages {
        if let Some(known) = before.stages.iter().find(|known| known.name == stage.name) {
            stage.busy_s -= known.busy_s;
            stage.starved_s -= known.starved_s;
            stage.blocked_s -= known.blocked_s;
        }
    }
    now.images = now.images.saturating_sub(before.images);
    now.batches = now.batches.saturating_sub(before.batches);
    now.bytes_read = now.bytes_read.saturating_sub(before.bytes_read);
    now.failed = now.failed.saturating_sub(before.failed);
    now
}
