//! The interface between the server and the producers of batches.
//!
//! The server handles sockets, credit and limits; a [`StreamSource`] handles data. `dataset.rs`
//! implements it with the loader, tests and benchmarks with synthetic batches.

use std::fmt;
use std::sync::Arc;

use forebay_image::Limits;
use forebay_loader::{FairShare, Queues, ReadTimes};
use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::{Batch, BufferPool, wire};

/// Produces batches that a server serves under a name. All clients share it; state of a single
/// client is in the [`BatchSource`] that it opens.
pub trait StreamSource: Send + Sync {
    /// Returns the description that a client receives before it opens a stream.
    fn describe(&self) -> Description;

    /// Opens a stream.
    ///
    /// # Errors
    ///
    /// A [`Failure`], which is sent to the client unchanged. A batch of more than
    /// [`StreamRequest::max_batch_bytes`] must be refused before memory is allocated for it.
    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure>;
}

/// Description of a [`StreamSource`] for clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Description {
    /// Identifies the dataset; clients that resume compare it with theirs.
    pub fingerprint: String,
    /// Fingerprint of the keys, labels and order of its samples; `None` if unknown.
    pub sample_fingerprint: Option<String>,
    /// The available splits.
    pub splits: Vec<wire::SplitInfo>,
    /// The label of the first class as stored.
    pub label_base: u32,
    /// Title of each class in the order of labels; empty if the dataset does not name its classes.
    pub class_titles: Arc<[String]>,
}

/// A client's request, with the limits of the server.
#[derive(Debug, Clone)]
pub struct StreamRequest<'a> {
    /// The options as the client sent them; only their syntax was checked.
    pub options: &'a LoaderOptions,
    /// Epoch of the first batch.
    pub epoch: u64,
    /// Start position in the epoch, in samples of all ranks together.
    pub position: u64,
    /// Maximum batch size, in bytes.
    pub max_batch_bytes: u64,
    /// Maximum image size to decode.
    pub image_limits: Limits,
    /// Memory limit of the stream in bytes; `None` for the source's default.
    pub memory_bytes: Option<u64>,
    /// Decode threads; `None` for the source's default.
    pub threads: Option<usize>,
    /// CPU share of the stream, as part of the share of its name; `None` for a share of its own.
    pub share: Option<FairShare>,
    /// Allocates the memory of batches; `None` for a pool of the source's own.
    pub pool: Option<BufferPool>,
}

/// The batches of one stream.
pub trait BatchSource: Send {
    /// The options with every default filled in, and the numbers that follow from them.
    fn info(&self) -> StreamInfo;

    /// Returns the next batch; `None` at the end of an epoch, after which the next epoch begins.
    ///
    /// # Errors
    ///
    /// A [`Failure`], which is sent to the client unchanged; the stream ends with it.
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure>;

    /// Returns a handle for other threads.
    fn monitor(&self) -> Arc<dyn StreamMonitor>;

    /// Bytes that the stream plans to hold, without batches already handed out; 0 if negligible.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// A handle to a [`BatchSource`] for other threads.
pub trait StreamMonitor: Send + Sync {
    /// Cancels the stream: a waiting `next_batch` and every later one return an error soon.
    fn cancel(&self);

    /// Returns the time and work so far, as this stream sees it.
    fn stats(&self) -> wire::Stats;

    /// Returns the current queue lengths; all zero for synthetic batches.
    fn queues(&self) -> Queues {
        Queues::default()
    }

    /// Returns the histogram of read times so far.
    fn reads(&self) -> ReadTimes {
        ReadTimes::default()
    }

    /// Returns statistics for totals over streams: work that several streams share is reported by
    /// one of them only.
    fn counted(&self) -> wire::Stats {
        self.stats()
    }
}

/// An error that is sent to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind, which a client may act on.
    pub kind: wire::error::Kind,
    /// The failure and its location (shard, record, offset), with expected and found values.
    pub message: String,
}

impl Failure {
    /// Creates a failure.
    pub fn new(kind: wire::error::Kind, message: impl fmt::Display) -> Self {
        Failure {
            kind,
            message: message.to_string(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
