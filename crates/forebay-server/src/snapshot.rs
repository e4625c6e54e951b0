//! A snapshot of a server: the data behind metrics, the dashboard and the report.

use std::collections::BTreeMap;

use forebay_loader::{MachineCpu, Queues, ReadTimes};
use forebay_options::StreamInfo;
use forebay_wire::{Peer, wire};

use crate::stats::{ServerStats, add_levels};

/// State of a server at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) server: ServerStats,
    pub(crate) ready: bool,
    pub(crate) max_connections: u64,
    /// Names that are served; for a job, with its dataset.
    pub(crate) served: BTreeMap<String, Option<String>>,
    /// Totals of each name, including open streams.
    pub(crate) totals: BTreeMap<String, Totals>,
    pub(crate) streams: Vec<Stream>,
    /// CPU time of the machine.
    pub(crate) machine: MachineCpu,
}

/// Totals of the streams of one name, ended or open.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub(crate) streams: u64,
    pub(crate) batches: u64,
    pub(crate) images: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) bytes_read: u64,
    pub(crate) failed: u64,
    /// Busy, starved and blocked seconds of each stage.
    pub(crate) stages: BTreeMap<String, [f64; 3]>,
    /// CPU seconds of decode threads.
    pub(crate) decode_cpu_s: f64,
    /// Seconds that decode threads were ready to run and had no core.
    pub(crate) decode_delay_s: f64,
    pub(crate) reads: ReadTimes,
    /// Storage throughput with one concurrent read of a stream, with two, and so on.
    pub(crate) levels: Vec<wire::ReadLevel>,
    /// Seconds during which trainers had consumed everything sent.
    pub(crate) starved_s: f64,
    /// Streams that ended with an error, by its kind.
    pub(crate) failures: BTreeMap<&'static str, u64>,
}

impl Totals {
    /// Adds the statistics of a stream.
    pub(crate) fn add(&mut self, stats: &wire::Stats, reads: &ReadTimes) {
        self.streams += 1;
        self.batches += stats.batches;
        self.images += stats.images;
        self.payload_bytes += stats.payload_bytes;
        self.bytes_read += stats.bytes_read;
        self.failed += stats.failed;
        self.decode_cpu_s += stats.decode_cpu_s;
        self.decode_delay_s += stats.decode_delay_s;
        for stage in &stats.stages {
            let times = self.stages.entry(stage.name.clone()).or_default();
            for (time, more) in
                times
                    .iter_mut()
                    .zip([stage.busy_s, stage.starved_s, stage.blocked_s])
            {
                *time += more;
            }
        }
        self.reads.add(reads);
        add_levels(&mut self.levels, &stats.reads);
    }
}

/// An open stream, as its connection knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) name: String,
    pub(crate) is_job: bool,
    pub(crate) split: String,
    pub(crate) rank: u64,
    pub(crate) world_size: u64,
    pub(crate) batch_size: u64,
    /// Size of a batch; for encoded images, the average.
    pub(crate) batch_bytes: u64,
    /// Batches per epoch.
    pub(crate) per_epoch: u64,
    /// Number of the next batch, counted over all epochs.
    pub(crate) step: u64,
    /// Credit of its client, in bytes.
    pub(crate) credit_bytes: u64,
}

impl Live {
    /// Creates the state of a stream whose first batch is `step`, counted over all epochs.
    pub(crate) fn new(name: &str, is_job: bool, info: &StreamInfo, step: u64) -> Live {
        Live {
            name: name.to_owned(),
            is_job,
            split: info.options.split.clone().unwrap_or_default(),
            rank: info.rank(),
            world_size: info.world_size().max(1),
            batch_size: info.batch_size(),
            batch_bytes: info.batch_bytes,
            per_epoch: info.batches_per_epoch,
            step,
            credit_bytes: 0,
        }
    }
}

/// An open stream, with its statistics.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) connection: u64,
    pub(crate) peer: Peer,
    pub(crate) transport: &'static str,
    /// Connections that carry its batches.
    pub(crate) connections: u64,
    pub(crate) live: Live,
    pub(crate) stats: wire::Stats,
    /// Statistics for totals: work shared by several streams counts in one of them only.
    pub(crate) counted: wire::Stats,
    /// Seconds during which its trainer had consumed everything sent.
    pub(crate) starved_s: f64,
    pub(crate) queues: Queues,
    pub(crate) reads: ReadTimes,
}
