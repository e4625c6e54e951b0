//! Measurements of the threads of a pipeline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::options::usable_cores;
use crate::stats::{
    Activity, Clock, CpuTime, Levels, MachineCpu, ReadClock, ReadStart, StageStats, Stats,
    ThreadTime, process_cpu_time,
};

/// Times and counts since the pipeline started.
pub(super) struct Telemetry {
    began: Instant,
    pub(super) readers: Vec<Clock>,
    pub(super) decoders: Vec<Clock>,
    /// The clock of the thread that takes batches.
    pub(super) trainer: Clock,
    levels: Levels,
    pub(super) reads: ReadClock,
    cpu: Cpu,
    counts: Counts,
}

struct Cpu {
    usable_cores: usize,
    decoders: CpuTime,
    /// CPU time of the whole process when the pipeline started.
    process_before: Duration,
    /// CPU time of the machine when the pipeline started.
    machine_before: MachineCpu,
}

#[derive(Default)]
struct Counts {
    bytes_read: AtomicU64,
    images: AtomicU64,
    fast_images: AtomicU64,
    learned: AtomicU64,
    transform_ns: AtomicU64,
    batches: AtomicU64,
}

impl Telemetry {
    pub(super) fn new(readers: usize, decoders: usize) -> Self {
        let clocks = |count, activity| (0..count).map(|_| Clock::new(activity)).collect();
        Telemetry {
            began: Instant::now(),
            readers: clocks(readers, Activity::Blocked),
            decoders: clocks(decoders, Activity::Starved),
            trainer: Clock::new(Activity::Busy),
            levels: Levels::new(readers),
            reads: ReadClock::default(),
            cpu: Cpu {
                usable_cores: usable_cores(),
                decoders: CpuTime::default(),
                process_before: process_cpu_time(),
                machine_before: MachineCpu::read(),
            },
            counts: Counts::default(),
        }
    }

    pub(super) fn begin_read(&self) -> ReadStart {
        self.levels.begin()
    }

    /// Records that a read is over; `bytes` is `None` if it failed.
    pub(super) fn end_read(&self, begun: &ReadStart, bytes: Option<u64>) {
        let took = self.levels.end(begun, bytes.unwrap_or(0));
        if let Some(bytes) = bytes {
            self.counts.bytes_read.fetch_add(bytes, Ordering::Relaxed);
            self.reads.took(took);
        }
    }

    /// Records that an image was decoded.
    pub(super) fn decoded(&self, transform_ns: u64, is_fast: bool) {
        let counts = &self.counts;
        counts
            .transform_ns
            .fetch_add(transform_ns, Ordering::Relaxed);
        counts.images.fetch_add(1, Ordering::Relaxed);
        if is_fast {
            counts.fast_images.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that an image was decoded with learned seek points.
    pub(super) fn used_learned(&self) {
        self.counts.learned.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of images that were decoded with learned seek points.
    pub(super) fn learned(&self) -> u64 {
        self.counts.learned.load(Ordering::Relaxed)
    }

    /// Adds the CPU time of the calling decode thread since the last call.
    pub(super) fn note_cpu(&self, noted: &mut ThreadTime) {
        self.cpu.decoders.note(noted);
    }

    /// Records that a batch was handed out.
    pub(super) fn handed_out(&self) {
        self.counts.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns all that is measured here; the rest has its default.
    pub(super) fn stats(&self) -> Stats {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (counts, cpu) = (&self.counts, &self.cpu);
        let mut decode = StageStats::new("decode", &self.decoders);
        let transform = Duration::from_nanos(count(&counts.transform_ns));
        let transform = decode.split("transform", transform);
        Stats {
            wall_s: self.began.elapsed().as_secs_f64(),
            fetch: StageStats::new("fetch", &self.readers),
            decode,
            transform,
            trainer: StageStats::new("trainer", std::slice::from_ref(&self.trainer)),
            images: count(&counts.images),
            fast_images: count(&counts.fast_images),
            batches: count(&counts.batches),
            bytes_read: count(&counts.bytes_read),
            reads: self.levels.read(),
            cores: cpu.usable_cores,
            decode_cpu_s: cpu.decoders.read().as_secs_f64(),
            decode_delay_s: cpu.decoders.delay().as_secs_f64(),
            process_cpu_s: process_cpu_time()
                .saturating_sub(cpu.process_before)
                .as_secs_f64(),
            machine: MachineCpu::read().since(&cpu.machine_before),
            ..Stats::default()
        }
    }
}
