//! `/api/status`: a server at one moment and in the last minutes, for the dashboard, for `forebay top` and for scripts.
//!
//! Fields may be added within a [`FORMAT`]; none changes its meaning. Where a number is not known it is 0, a list empty.
//! Whoever reads it should ignore what it does not know.

mod build;
mod verdict;

use serde::{Deserialize, Serialize};

pub(crate) use build::Desk;

/// The version of what is in a [`Report`].
pub const FORMAT: u32 = 1;

/// A server at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// When it was made, in seconds since 1970.
    pub time_s: f64,
    /// When the server began, in seconds since 1970: another value is another process.
    pub started_s: f64,
    /// The server's version.
    pub version: String,
    /// `serving`, or `stopping` once new trainers are turned away.
    pub state: String,
    /// Whether pictures of what is sent can be asked for.
    pub images: bool,
    /// Seconds that "now" is: all rates, and the parts of the stages.
    pub window_s: f64,
    /// What holds the busiest of what is served back.
    pub verdict: Judgement,
    /// All of it together, now.
    pub now: Rates,
    /// All of it together, since the server began.
    pub totals: Counts,
    /// The last minutes.
    pub history: Lines,
    /// The process and its machine.
    pub process: ProcessReport,
    /// Connections of trainers.
    pub connections: Connections,
    /// Datasets and jobs, by name.
    pub served: Vec<Served>,
    /// The cache that datasets in stores are read through, if there is one.
    pub cache: Option<CacheReport>,
    /// The stores that datasets are read from.
    pub stores: Vec<StoreReport>,
    /// What happened last, the latest first.
    pub events: Vec<EventReport>,
}

/// What holds trainers back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Judgement {
    /// `trainer` (the best case), `decode`, `storage`, `network`, `idle` without trainers, or `unknown`.
    pub bound: String,
    /// The sentence for people.
    pub text: String,
}

/// In a second.
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

/// Since the server began.
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
    /// Samples that could not be read or decoded, and were replaced.
    pub failed_samples: u64,
    /// Streams that ended with an error.
    pub failed_streams: u64,
}

/// The last minutes, as numbers at equal distances, the latest last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lines {
    /// Seconds from one number to the next, in all lines of the report.
    pub step_s: f64,
    /// Numbers of a line at most.
    pub points: u64,
    /// Images a second.
    pub images_per_s: Vec<f64>,
    /// Bytes of batches a second.
    pub payload_bytes_per_s: Vec<f64>,
    /// Bytes from storage a second.
    pub read_bytes_per_s: Vec<f64>,
    /// Cores at work.
    pub cpu_cores: Vec<f64>,
}

/// The process and its machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessReport {
    /// Cores at work for this process, now.
    pub cpu_cores: f64,
    /// Cores that it may use.
    pub cores: u64,
    /// Memory that it has.
    pub resident_bytes: u64,
    /// Its threads.
    pub threads: u64,
    /// File descriptors that are open.
    pub open_files: u64,
    /// File descriptors that may be open.
    pub max_files: u64,
}

/// Connections of trainers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connections {
    /// Open now.
    pub open: u64,
    /// Streams open now.
    pub streams: u64,
    /// Connections that may be open.
    pub limit: u64,
    /// Taken since the server began.
    pub accepted: u64,
    /// Turned away because of a limit.
    pub refused: u64,
    /// Turned away because of their token.
    pub unauthorized: u64,
    /// Ended otherwise than by their trainer's wish.
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
    /// The dataset, where it is a job.
    pub dataset: Option<String>,
    /// Its streams together, now.
    pub now: Rates,
    /// Its streams since the server began.
    pub totals: Counts,
    /// What holds its trainers back.
    pub verdict: Judgement,
    /// Where the time of its streams goes, in the order of a sample's way: `fetch`, `decode`, `transform`, `send`.
    pub stages: Vec<StageReport>,
    /// What waits in its streams.
    pub queues: QueueReport,
    /// Images a second in the last minutes.
    pub history: Vec<f64>,
    /// Its open streams, by rank.
    pub ranks: Vec<Rank>,
    /// Further ones, that are not listed.
    pub more_ranks: u64,
    /// What was wrong with the last samples that were replaced.
    pub failures: Vec<String>,
}

/// Parts of a stage's time, from 0 to 1. They add up to 1, for `decode` together with `transform`, whose threads are the
/// same; before anything was measured they are 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// Threads of all streams.
    pub threads: u64,
    /// At work.
    pub busy: f64,
    /// Waiting for input.
    pub starved: f64,
    /// Waiting for room.
    pub blocked: f64,
}

/// What waits, in the order of a sample's way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueReport {
    /// Samples that are planned, without a place in a batch.
    pub planned_samples: u64,
    /// Samples whose record is not read yet.
    pub unread_samples: u64,
    /// Samples that wait for a decode thread.
    pub undecoded_samples: u64,
    /// Batches in the making.
    pub making_batches: u64,
    /// Batches that wait for their trainer.
    pub ready_batches: u64,
    /// Bytes of records and batches.
    pub memory_bytes: u64,
}

/// An open stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rank {
    /// Its rank.
    pub rank: u64,
    /// Ranks there are.
    pub world_size: u64,
    /// Number of its connection, as in events.
    pub connection: u64,
    /// Where its trainer is.
    pub peer: String,
    /// `shm`, `tcp` or `tls`.
    pub transport: String,
    /// Connections that carry its batches.
    pub connections: u64,
    /// The split.
    pub split: String,
    /// Samples of a batch.
    pub batch_size: u64,
    /// Epoch of the next batch.
    pub epoch: u64,
    /// Number of the next batch in its epoch.
    pub step: u64,
    /// Batches of an epoch.
    pub steps: u64,
    /// Batches that it is behind the first rank of its job.
    pub lag_batches: u64,
    /// Images a second, now.
    pub images_per_s: f64,
    /// Part of the time that its trainer had taken all that was sent, and there was no more; 0 where it is fed.
    pub waits: f64,
    /// Batches that are ready for it.
    pub ready_batches: u64,
    /// Images a second in the last minutes; empty for all but the first ranks.
    pub history: Vec<f64>,
}

/// The cache, since the server began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheReport {
    /// Part of the bytes that readers wanted which came from the cache, 0 to 1.
    pub hit_rate: f64,
    /// Blocks found.
    pub hits: u64,
    /// Blocks not found.
    pub misses: u64,
    /// Bytes that came from the cache.
    pub hit_bytes: u64,
    /// Bytes that did not.
    pub miss_bytes: u64,
    /// Bytes fetched from the store.
    pub fetched_bytes: u64,
    /// `memory` and `disk`, as far as there are.
    pub tiers: Vec<TierReport>,
    /// What is not as it should be.
    pub warnings: Vec<String>,
}

/// One tier of the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierReport {
    /// `memory` or `disk`.
    pub tier: String,
    /// Bytes taken.
    pub used_bytes: u64,
    /// Bytes that may be taken.
    pub limit_bytes: u64,
    /// Blocks found here.
    pub hits: u64,
    /// Blocks that made room.
    pub evictions: u64,
    /// Blocks that were damaged.
    pub damaged: u64,
}

/// Requests to one store, since the server began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreReport {
    /// Scheme and bucket, or host.
    pub store: String,
    /// Tries.
    pub requests: u64,
    /// Tries that repeated one that had failed.
    pub retries: u64,
    /// Answers that asked to slow down.
    pub throttles: u64,
    /// Reads asked for a second time because they were late.
    pub hedges: u64,
    /// Operations given up.
    pub failures: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests under way.
    pub in_flight: u64,
    /// Requests that may be under way.
    pub limit: u64,
    /// Seconds to the first byte that half of the last reads did not take.
    pub first_byte_p50_s: f64,
    /// Seconds to the first byte that nineteen of twenty of the last reads did not take.
    pub first_byte_p95_s: f64,
}

/// Something that happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventReport {
    /// Numbers events from 1.
    pub number: u64,
    /// When, in seconds since 1970.
    pub time_s: f64,
    /// Whether it should not have been.
    pub trouble: bool,
    /// What.
    pub text: String,
}
