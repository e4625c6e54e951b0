//! A snapshot of a server: the data behind metrics, the dashboard and the report.

use std::collections::BTreeMap;

use forebay_loader::{MachineCpu, Queues, ReadTimes};
use forebay_options::StreamInfo;
use forebay_wire::{Peer, wire};

use crate::counters::add_levels;
use crate::stats::ServerStats;

/// State of a server at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Counters of the server.
    pub server: ServerStats,
    /// Whether new clients are accepted.
    pub ready: bool,
    /// The limit of connections.
    pub max_connections: u64,
    /// Names that are served; for a job, with its dataset.
    pub served: BTreeMap<String, Option<String>>,
    /// NameTotals of each name, including open streams.
    pub totals: BTreeMap<String, NameTotals>,
    /// Open streams.
    pub streams: Vec<OpenStream>,
    /// CPU time of the machine.
    pub machine: MachineCpu,
}

/// NameTotals of the streams of one name, ended or open.
#[derive(Debug, Clone, Default)]
pub struct NameTotals {
    /// Streams, ended or open.
    pub streams: u64,
    /// Batches that were sent.
    pub batches: u64,
    /// Samples in these batches.
    pub images: u64,
    /// Bytes of these batches.
    pub payload_bytes: u64,
    /// Bytes that were read from storage.
    pub bytes_read: u64,
    /// Samples that could not be read or decoded.
    pub failed: u64,
    /// Busy, starved and blocked seconds of each stage.
    pub stages: BTreeMap<String, [f64; 3]>,
    /// CPU seconds of decode threads.
    pub decode_cpu_s: f64,
    /// Seconds that decode threads were ready to run and had no core.
    pub decode_delay_s: f64,
    /// Durations of reads.
    pub reads: ReadTimes,
    /// Storage throughput with one concurrent read of a stream, with two, and so on.
    pub levels: Vec<wire::ReadLevel>,
    /// Seconds during which trainers had consumed everything sent.
    pub starved_s: f64,
    /// Streams that ended with an error, by its kind, such as `KIND_DATA`.
    pub failures: BTreeMap<&'static str, u64>,
}

impl NameTotals {
    /// Adds the statistics of a stream.
    pub fn add(&mut self, stats: &wire::Stats, reads: &ReadTimes) {
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
pub struct LiveStream {
    /// The name of the dataset or job.
    pub name: String,
    /// Whether the name is that of a job.
    pub is_job: bool,
    /// The split.
    pub split: String,
    /// The rank of its trainer.
    pub rank: u64,
    /// The number of ranks.
    pub world_size: u64,
    /// Samples in a batch.
    pub batch_size: u64,
    /// Size of a batch; for encoded images, the average.
    pub batch_bytes: u64,
    /// Batches per epoch.
    pub per_epoch: u64,
    /// Number of the next batch, counted over all epochs.
    pub step: u64,
    /// Credit of its client, in bytes.
    pub credit_bytes: u64,
}

impl LiveStream {
    /// Creates the state of a stream whose first batch is `step`, counted over all epochs.
    pub(crate) fn new(name: &str, is_job: bool, info: &StreamInfo, step: u64) -> LiveStream {
        LiveStream {
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
pub struct OpenStream {
    /// The number of its first connection.
    pub connection: u64,
    /// The address of the client.
    pub peer: Peer,
    /// How batches travel: "tcp", "tls", "unix" or "shm".
    pub transport: &'static str,
    /// Connections that carry its batches.
    pub connections: u64,
    /// Its state.
    pub live: LiveStream,
    /// Its statistics.
    pub stats: wire::Stats,
    /// Statistics for totals: work shared by several streams counts in one of them only.
    pub counted: wire::Stats,
    /// Seconds during which its trainer had consumed everything sent.
    pub starved_s: f64,
    /// The queues of its pipeline.
    pub queues: Queues,
    /// Durations of reads.
    pub reads: ReadTimes,
}
