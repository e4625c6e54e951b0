//! Where the time went.

mod clock;
mod levels;
mod reads;
mod verdict;

use std::time::Duration;

use forebay_shard::StorageStats;

pub(crate) use clock::{Activity, Clock, CpuTime, Times, process_cpu_time};
pub(crate) use levels::Levels;
pub use levels::ReadLevel;
pub(crate) use reads::ReadClock;
pub use reads::{READ_BOUNDS_S, ReadTimes};
pub use verdict::{Bound, CoresElsewhere, Verdict};

/// How a stage spent the time of its threads.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageStats {
    /// `fetch`, `decode`, `transform` or `trainer`.
    pub name: &'static str,
    /// Threads of the stage. Decode and transform share theirs.
    pub threads: usize,
    /// Seconds of work, all threads together.
    pub busy_s: f64,
    /// Seconds waiting for input.
    pub starved_s: f64,
    /// Seconds waiting for room for the output.
    pub blocked_s: f64,
}

/// A snapshot of a loader's counters since it began. Cheap to take; two of them give an interval
/// ([`Stats::since`]).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    /// Seconds since the loader was made.
    pub wall_s: f64,
    /// Reading records and checking them.
    pub fetch: StageStats,
    /// Finding the image in its record and decoding it. Its waits are those of the decode threads.
    pub decode: StageStats,
    /// Resizing into the batch, on the decode threads. Never waits by itself.
    pub transform: StageStats,
    /// Whoever takes the batches: busy between two calls, starved within one.
    pub trainer: StageStats,
    /// Images decoded.
    pub images: u64,
    /// Batches handed out.
    pub batches: u64,
    /// Bytes read from storage.
    pub bytes_read: u64,
    /// Bytes of records and batches held now.
    pub memory_bytes: u64,
    /// Most bytes of records and batches ever held.
    pub memory_peak_bytes: u64,
    /// Whether each record is read on its own: the windows of the shuffle do not fit into the memory budget,
    /// or the order asks for it.
    pub single_reads: bool,
    /// Samples that could not be read or decoded, and were replaced.
    pub failed: u64,
    /// What was wrong with the last of them, shard and key included; the latest one last.
    pub failures: Vec<String>,
    /// How batches come to the trainer, where a server makes them.
    pub network: Option<Network>,
    /// The storage that records come from, where a network is in between.
    pub storage: Option<String>,
    /// What that storage counted since the dataset was opened, where it counts: of all who read this dataset through it.
    pub traffic: Option<StorageStats>,
    /// What storage gave with one read at a time, with two at once, and so on.
    pub reads: Vec<ReadLevel>,
    /// Whether others read at the same time, of whom `reads` does not know: then it has the least that storage could give.
    pub among_others: bool,
    /// Cores that decode threads may use; 0 where that is not known.
    pub cores: usize,
    /// Seconds that decode threads had a core; 0 where that is not known.
    pub decode_cpu_s: f64,
    /// Seconds that all threads of the process had a core meanwhile.
    pub process_cpu_s: f64,
}

/// What waits in a loader right now, in the order of its way: the fullest queue is before the narrowest place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queues {
    /// Samples that are planned and have no place in a batch yet.
    pub planned_samples: u64,
    /// Samples with a place, whose record is not read yet.
    pub unread_samples: u64,
    /// Samples whose record is read, and which wait for a decode thread.
    pub undecoded_samples: u64,
    /// Batches in the making.
    pub making_batches: u64,
    /// Batches that are done and wait for their trainer.
    pub ready_batches: u64,
    /// Bytes of records and batches held.
    pub memory_bytes: u64,
}

/// How a server spent its time on a stream, besides making batches.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Network {
    /// Part of the time that it was sending, or waited for the client to take what it has.
    pub sending: f64,
    /// Part of the time that it waited for a batch to be made.
    pub waiting: f64,
    /// Bytes of pixels that arrived in a second.
    pub bytes_per_s: f64,
}

impl Stats {
    /// The stages in the order in which a sample passes them.
    #[must_use]
    pub fn stages(&self) -> [StageStats; 4] {
        [self.fetch, self.decode, self.transform, self.trainer]
    }

    /// What happened between `earlier` and this snapshot. Memory is that of this one.
    #[must_use]
    pub fn since(&self, earlier: &Stats) -> Stats {
        let stage = |now: StageStats, then: StageStats| StageStats {
            busy_s: (now.busy_s - then.busy_s).max(0.0),
            starved_s: (now.starved_s - then.starved_s).max(0.0),
            blocked_s: (now.blocked_s - then.blocked_s).max(0.0),
            ..now
        };
        Stats {
            wall_s: (self.wall_s - earlier.wall_s).max(0.0),
            fetch: stage(self.fetch, earlier.fetch),
            decode: stage(self.decode, earlier.decode),
            transform: stage(self.transform, earlier.transform),
            trainer: stage(self.trainer, earlier.trainer),
            images: self.images.saturating_sub(earlier.images),
            batches: self.batches.saturating_sub(earlier.batches),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            failed: self.failed.saturating_sub(earlier.failed),
            traffic: self.traffic.map(|now| match &earlier.traffic {
                Some(then) => now.since(then),
                None => now,
            }),
            reads: levels::since(&self.reads, &earlier.reads),
            decode_cpu_s: (self.decode_cpu_s - earlier.decode_cpu_s).max(0.0),
            process_cpu_s: (self.process_cpu_s - earlier.process_cpu_s).max(0.0),
            ..self.clone()
        }
    }

    /// The same sums for streams that read side by side: what storage gave all of them at once is not in what it gave each.
    #[must_use]
    pub fn among_others(self) -> Stats {
        Stats {
            among_others: true,
            ..self
        }
    }

    /// What holds the trainer back, and by how much.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        verdict::judge(self)
    }
}

impl StageStats {
    pub(crate) fn new(name: &'static str, clocks: &[Clock]) -> Self {
        let mut times = Times::default();
        for clock in clocks {
            times.add(clock.read());
        }
        StageStats {
            name,
            threads: clocks.len(),
            busy_s: times.busy.as_secs_f64(),
            starved_s: times.starved.as_secs_f64(),
            blocked_s: times.blocked.as_secs_f64(),
        }
    }

    /// Takes the part of the work out that belongs to another stage.
    pub(crate) fn split(&mut self, name: &'static str, part: Duration) -> StageStats {
        let busy_s = part.as_secs_f64().min(self.busy_s);
        self.busy_s -= busy_s;
        StageStats {
            name,
            threads: self.threads,
            busy_s,
            starved_s: 0.0,
            blocked_s: 0.0,
        }
    }
}
