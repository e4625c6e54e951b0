//! Statistics of a loader: the time of each stage.

mod bottleneck;
mod bound;
mod clock;
mod levels;
mod machine;
mod reads;
mod straggler;

use std::time::Duration;

use forebay_shard::StorageStats;

pub use bottleneck::Bottleneck;
pub use bound::Bound;
pub(crate) use clock::{Activity, Clock, CpuTime, ThreadTime, Times, process_cpu_time};
pub use levels::ReadLevel;
pub(crate) use levels::{Levels, ReadStart};
pub use machine::{CoresElsewhere, CpuTaker, MachineCpu};
pub(crate) use reads::ReadClock;
pub use reads::{READ_BOUNDS_S, ReadTimes};
pub use straggler::{RankPace, Straggler};

/// The time of a stage's threads.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageStats {
    /// `fetch`, `decode`, `transform` or `trainer`.
    pub name: &'static str,
    /// Number of threads. Decode and transform share theirs.
    pub threads: usize,
    /// Seconds of work, over all threads.
    pub busy_s: f64,
    /// Seconds waiting for input.
    pub starved_s: f64,
    /// Seconds waiting for room for its output.
    pub blocked_s: f64,
}

/// A snapshot of a loader's counters since it began. Cheap to take; two snapshots give an interval
/// ([`Stats::since`]).
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Seconds since the loader was created.
    pub wall_s: f64,
    /// Reading and verifying records.
    pub fetch: StageStats,
    /// Extracting the image from its record and decoding it. Its waits are those of the decode
    /// threads.
    pub decode: StageStats,
    /// Resizing into the batch, on the decode threads. It has no waits of its own.
    pub transform: StageStats,
    /// The consumer of the batches: busy between two calls, starved within one.
    pub trainer: StageStats,
    /// Images decoded.
    pub images: u64,
    /// Decoded images whose records hold fast images.
    pub fast_images: u64,
    /// Batches returned.
    pub batches: u64,
    /// Bytes read from storage.
    pub bytes_read: u64,
    /// Bytes of records and batches held now.
    pub memory_bytes: u64,
    /// Maximum of the bytes of records and batches held.
    pub memory_peak_bytes: u64,
    /// Whether each record is read on its own, because the windows of the shuffle do not fit into
    /// the memory budget or the order requires it.
    pub single_reads: bool,
    /// Samples that could not be read or decoded and were replaced.
    pub failed: u64,
    /// The most recent of their errors, with shard and key; the latest one last.
    pub failures: Vec<String>,
    /// Transport of batches from a server over a network; `None` for shared memory,
    /// which no network limits.
    pub network: Option<Network>,
    /// The copy of batches to a device, if there is one. Its thread is then the consumer that
    /// `trainer` counts.
    pub device: Option<DeviceCopy>,
    /// The storage of the records, if it is remote.
    pub storage: Option<String>,
    /// Counters of that storage since the dataset was opened, if it has any. They include all readers of
    /// this dataset object.
    pub traffic: Option<StorageStats>,
    /// Seek points that were learned, if the loader learns them.
    pub learned: Option<LearnedStats>,
    /// Storage throughput with one read at a time, with two concurrent reads, and so on.
    pub reads: Vec<ReadLevel>,
    /// Whether other streams read concurrently without being counted in `reads`, which is then a lower
    /// bound of the throughput.
    pub among_others: bool,
    /// Cores that decode threads may use; 0 if unknown.
    pub cores: usize,
    /// CPU seconds of decode threads; 0 if unknown.
    pub decode_cpu_s: f64,
    /// Seconds that decode threads were ready to run and had no core; 0 if unknown.
    pub decode_delay_s: f64,
    /// CPU seconds of all threads of the process in the same period.
    pub process_cpu_s: f64,
    /// CPU time of the machine in the same period.
    pub machine: MachineCpu,
    /// Seconds of `trainer.busy_s` during which finished batches were handed to the consumer's code:
    /// waiting for an interpreter, wrapping, copying.
    pub handover_s: f64,
    /// CPU seconds of the thread that receives batches from a server; 0 without one.
    pub receive_cpu_s: f64,
}

/// Counters of [`LearnedSeekPoints`](crate::LearnedSeekPoints). All but the first are those of all
/// loaders that share them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LearnedStats {
    /// Samples that were decoded with learned seek points.
    pub samples: u64,
    /// Images that have learned seek points.
    pub images: u64,
    /// Memory that holds the points, in bytes.
    pub bytes: u64,
    /// Whether points were refused because the limit was reached.
    pub is_full: bool,
}

/// Current queue lengths of a loader, in pipeline order: the fullest queue is before the
/// bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Queues {
    /// Planned samples without a slot in a batch.
    pub planned_samples: u64,
    /// Samples with a slot whose record has not been read.
    pub unread_samples: u64,
    /// Samples whose record was read and that wait for a decode thread.
    pub undecoded_samples: u64,
    /// Batches in progress.
    pub making_batches: u64,
    /// Complete batches that the trainer has not taken.
    pub ready_batches: u64,
    /// Bytes of records and batches held.
    pub memory_bytes: u64,
}

/// Times of the threads that take finished batches and copy them to a device, and of the trainer
/// that takes the copies.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DeviceCopy {
    /// Seconds during which batches were copied, over all threads that copy.
    pub busy_s: f64,
    /// Seconds during which those threads waited for batches.
    pub starved_s: f64,
    /// Seconds between two requests of the trainer.
    pub trainer_busy_s: f64,
    /// Seconds during which the trainer waited for a copy.
    pub trainer_starved_s: f64,
}

impl DeviceCopy {
    fn since(self, earlier: DeviceCopy) -> DeviceCopy {
        DeviceCopy {
            busy_s: (self.busy_s - earlier.busy_s).max(0.0),
            starved_s: (self.starved_s - earlier.starved_s).max(0.0),
            trainer_busy_s: (self.trainer_busy_s - earlier.trainer_busy_s).max(0.0),
            trainer_starved_s: (self.trainer_starved_s - earlier.trainer_starved_s).max(0.0),
        }
    }
}

/// Times of a server's stream, without the making of batches.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Network {
    /// Fraction of the time during which the server was sending. Waits for the client's credit do not count, because
    /// a slow trainer causes them too.
    pub sending: f64,
    /// Fraction of the time during which the server waited for a batch to send.
    pub waiting: f64,
    /// Payload bytes received per second.
    pub bytes_per_s: f64,
}

impl Stats {
    /// Returns the stages in pipeline order.
    #[must_use]
    pub fn stages(&self) -> [StageStats; 4] {
        [self.fetch, self.decode, self.transform, self.trainer]
    }

    /// Returns the difference to an earlier snapshot. Memory values are those of this snapshot.
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
            fast_images: self.fast_images.saturating_sub(earlier.fast_images),
            batches: self.batches.saturating_sub(earlier.batches),
            bytes_read: self.bytes_read.saturating_sub(earlier.bytes_read),
            failed: self.failed.saturating_sub(earlier.failed),
            traffic: self.traffic.map(|now| match &earlier.traffic {
                Some(then) => now.since(then),
                None => now,
            }),
            learned: self.learned.map(|now| LearnedStats {
                samples: now
                    .samples
                    .saturating_sub(earlier.learned.unwrap_or_default().samples),
                ..now
            }),
            reads: levels::since(&self.reads, &earlier.reads),
            device: self
                .device
                .map(|now| now.since(earlier.device.unwrap_or_default())),
            decode_cpu_s: (self.decode_cpu_s - earlier.decode_cpu_s).max(0.0),
            decode_delay_s: (self.decode_delay_s - earlier.decode_delay_s).max(0.0),
            process_cpu_s: (self.process_cpu_s - earlier.process_cpu_s).max(0.0),
            machine: self.machine.since(&earlier.machine),
            handover_s: (self.handover_s - earlier.handover_s).max(0.0),
            receive_cpu_s: (self.receive_cpu_s - earlier.receive_cpu_s).max(0.0),
            ..self.clone()
        }
    }

    /// Marks the counters as those of one of several concurrent streams, whose combined storage
    /// throughput is higher than each one shows.
    #[must_use]
    pub fn among_others(self) -> Stats {
        Stats {
            among_others: true,
            ..self
        }
    }

    /// Returns the bottleneck with its measurements.
    #[must_use]
    pub fn bottleneck(&self) -> Bottleneck {
        bottleneck::judge(self)
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

    /// Splits off the part of the work that belongs to another stage.
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
