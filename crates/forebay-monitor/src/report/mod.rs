//! `/api/status`: the state of a server now and over the last minutes, for the dashboard, `forebay
//! top` and scripts.
//!
//! Within a [`FORMAT`], fields may be added but none changes its meaning. Unknown numbers are 0 and
//! unknown lists empty. Readers should ignore fields that they do not know.

mod bottleneck;
mod build;

use serde::{Deserialize, Serialize};

pub(crate) use build::ReportBuilder;

/// Version of the [`Report`] format.
pub const FORMAT: u32 = 1;

/// State of a server at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// When the report was made, in seconds since 1970.
    pub time_s: f64,
    /// When the server started, in seconds since 1970; a different value means a different process.
    pub started_s: f64,
    /// The server's version.
    pub version: String,
    /// `serving`, or `stopping` once new trainers are rejected.
    pub state: String,
    /// Whether image previews are enabled.
    pub images: bool,
    /// Seconds over which all rates and stage fractions are averaged.
    pub window_s: f64,
    /// The bottleneck of the busiest dataset or job.
    pub bottleneck: BottleneckReport,
    /// Current rates over all streams.
    pub now: Rates,
    /// Totals over all streams, since the server started.
    pub totals: Counts,
    /// Time series of the last minutes.
    pub history: Lines,
    /// The process and its machine.
    pub process: ProcessReport,
    /// Connections of trainers.
    pub connections: Connections,
    /// Datasets and jobs, sorted by name.
    pub served: Vec<Served>,
    /// The cache for datasets in remote stores, if configured.
    pub cache: Option<CacheReport>,
    /// The stores that datasets are read from.
    pub stores: Vec<StoreReport>,
    /// Recent events, the latest first.
    pub events: Vec<EventReport>,
}

/// The bottleneck of trainers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BottleneckReport {
    /// The name of a [`Bound`](forebay_loader::Bound), such as `trainer` (the best case), or `idle`
    /// without trainers.
    pub bound: String,
    /// The same as a heading.
    pub heading: String,
    /// Explanation as a sentence.
    pub text: String,
}

/// Rates per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Images sent, padding included.
    pub images_per_s: f64,
    /// Batches sent.
    pub batches_per_s: f64,
    /// Bytes of batches sent.
    pub payload_bytes_per_s: f64,
    /// Bytes read from storage.
    pub read_bytes_per_s: f64,
}

/// Totals since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Streams opened.
    pub streams: u64,
    /// Images sent, padding included.
    pub images: u64,
    /// Batches sent.
    pub batches: u64,
    /// Bytes of batches sent.
    pub payload_bytes: u64,
    /// Bytes read from storage.
    pub read_bytes: u64,
    /// Samples that could not be read or decoded and were replaced.
    pub failed_samples: u64,
    /// Streams that ended with an error.
    pub failed_streams: u64,
}

/// Time series of the last minutes at a constant interval, the latest value last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lines {
    /// Seconds between two values, for all time series of the report.
    pub step_s: f64,
    /// Maximum number of values of a time series.
    pub points: u64,
    /// Images a second.
    pub images_per_s: Vec<f64>,
    /// Bytes of batches a second.
    pub payload_bytes_per_s: Vec<f64>,
    /// Bytes read from storage a second.
    pub read_bytes_per_s: Vec<f64>,
    /// CPU cores in use.
    pub cpu_cores: Vec<f64>,
}

/// The process and its machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessReport {
    /// CPU cores that this process uses now.
    pub cpu_cores: f64,
    /// CPU cores that it may use.
    pub cores: u64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Number of threads.
    pub threads: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// Limit of open file descriptors.
    pub max_files: u64,
}

/// Connections of trainers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connections {
    /// Open connections.
    pub open: u64,
    /// Open streams.
    pub streams: u64,
    /// Limit of connections.
    pub limit: u64,
    /// Accepted since the server started.
    pub accepted: u64,
    /// Rejected because of a limit.
    pub refused: u64,
    /// Rejected because of the token.
    pub unauthorized: u64,
    /// Connections that did not end by the trainer's choice.
    pub failed: u64,
}

/// A dataset or a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Served {
    /// Its name in URLs.
    pub name: String,
    /// `dataset` or `job`.
    pub kind: String,
    /// For a job, the name of its dataset.
    pub dataset: Option<String>,
    /// Current rates of its streams.
    pub now: Rates,
    /// Totals of its streams, since the server started.
    pub totals: Counts,
    /// The bottleneck of its trainers.
    pub bottleneck: BottleneckReport,
    /// Time of its streams by stage, in pipeline order: `fetch`, `decode`, `transform`, `send`.
    pub stages: Vec<StageReport>,
    /// Queues of its streams.
    pub queues: QueueReport,
    /// Images a second over the last minutes.
    pub history: Vec<f64>,
    /// Open streams, sorted by rank.
    pub ranks: Vec<Rank>,
    /// Number of open streams that are not listed.
    pub more_ranks: u64,
    /// Errors of the last samples that were replaced.
    pub failures: Vec<String>,
}

/// Fractions of a stage's time, from 0 to 1. They add up to 1; `decode` and `transform` share their
/// threads and add up to 1 together. All are 0 before the first measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// Threads of all streams.
    pub threads: u64,
    /// Working.
    pub busy: f64,
    /// Waiting for input.
    pub starved: f64,
    /// Waiting for room in the next queue.
    pub blocked: f64,
}

/// Queue lengths, in pipeline order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueReport {
    /// Samples that are planned but not assigned to a batch yet.
    pub planned_samples: u64,
    /// Samples whose record has not been read.
    pub unread_samples: u64,
    /// Samples waiting for a decode thread.
    pub undecoded_samples: u64,
    /// Incomplete batches.
    pub making_batches: u64,
    /// Batches waiting for their trainer.
    pub ready_batches: u64,
    /// Bytes held in records and batches.
    pub memory_bytes: u64,
}

/// An open stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rank {
    /// Its rank.
    pub rank: u64,
    /// World size.
    pub world_size: u64,
    /// Number of its connection, as in events.
    pub connection: u64,
    /// Address of its trainer.
    pub peer: String,
    /// `shm`, `tcp` or `tls`.
    pub transport: String,
    /// Connections that carry its batches.
    pub connections: u64,
    /// The split.
    pub split: String,
    /// Batch size, in samples.
    pub batch_size: u64,
    /// Epoch of the next batch.
    pub epoch: u64,
    /// Number of the next batch in its epoch.
    pub step: u64,
    /// Batches per epoch.
    pub steps: u64,
    /// Batches by which it is behind the most advanced rank of its job.
    pub lag_batches: u64,
    /// Images a second now.
    pub images_per_s: f64,
    /// Fraction of the time that its trainer waited for batches, 0 to 1.
    pub waits: f64,
    /// Batches ready to be sent.
    pub ready_batches: u64,
    /// Images a second over the last minutes; empty beyond the first ranks.
    pub history: Vec<f64>,
}

/// Counters of the cache, since the server started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheReport {
    /// Fraction of the requested bytes that came from the cache, 0 to 1.
    pub hit_rate: f64,
    /// Blocks found.
    pub hits: u64,
    /// Blocks not found.
    pub misses: u64,
    /// Bytes that came from the cache.
    pub hit_bytes: u64,
    /// Bytes that did not come from the cache.
    pub miss_bytes: u64,
    /// Bytes fetched from the store.
    pub fetched_bytes: u64,
    /// The configured tiers, `memory` and `disk`.
    pub tiers: Vec<TierReport>,
    /// Problems of the cache.
    pub warnings: Vec<String>,
}

/// One tier of the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierReport {
    /// `memory` or `disk`.
    pub tier: String,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Capacity in bytes.
    pub limit_bytes: u64,
    /// Blocks found in this tier.
    pub hits: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Blocks that failed their checksum.
    pub damaged: u64,
}

/// Requests to one store, since the server started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreReport {
    /// Scheme and bucket, or host.
    pub store: String,
    /// Request attempts, including retries.
    pub requests: u64,
    /// Retries.
    pub retries: u64,
    /// Responses that asked to slow down.
    pub throttles: u64,
    /// Hedged reads: duplicates of slow reads.
    pub hedges: u64,
    /// Operations that failed after all retries.
    pub failures: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Estimated dollars an hour since the server started, for a server in the region of the data.
    pub region_dollars_per_hour: f64,
    /// As `region_dollars_per_hour`, for a server that reads over the internet.
    pub internet_dollars_per_hour: f64,
    /// The estimated cost so far, with its origin, as text.
    pub price: String,
    /// Requests in progress.
    pub in_flight: u64,
    /// Limit of concurrent requests.
    pub limit: u64,
    /// Median time to the first byte of recent reads, in seconds.
    pub first_byte_p50_s: f64,
    /// 95th percentile of the time to the first byte of recent reads, in seconds.
    pub first_byte_p95_s: f64,
}

/// An event.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventReport {
    /// Counts events from 1.
    pub number: u64,
    /// When it occurred, in seconds since 1970.
    pub time_s: f64,
    /// Whether it is a problem.
    pub trouble: bool,
    /// Description.
    pub text: String,
}
