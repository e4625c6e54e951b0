//! The seam between the server and whoever makes batches.
//!
//! The server knows sockets, credits and limits; a [`Source`] knows data. The
//! loader is plugged in by `dataset.rs`; tests and measurements plug in
//! batches out of nothing.

use std::fmt;
use std::sync::Arc;

use forebay_image::Limits;
use forebay_loader::{Queues, ReadTimes, Share};
use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::{Batch, BufferPool, wire};

/// Something a server serves under a name. One for all clients, so everything
/// that belongs to a client is in the [`BatchSource`] it opens.
pub trait Source: Send + Sync {
    /// What a client is told before it opens a stream.
    fn describe(&self) -> Description;

    /// Opens a stream.
    ///
    /// # Errors
    ///
    /// A [`Failure`] that is sent to the client as it is. A batch of more than
    /// [`StreamRequest::max_batch_bytes`] must be refused before memory is taken for it.
    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure>;
}

/// What a client is told about a [`Source`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Description {
    /// Tells datasets apart; clients that resume hold it against theirs.
    pub fingerprint: String,
    /// The identity of its samples' keys, labels and order; `None` where that is not known.
    pub sample_fingerprint: Option<String>,
    /// What can be streamed.
    pub splits: Vec<wire::SplitInfo>,
    /// The label of the first class as stored.
    pub label_base: u32,
    /// The title of each class in the order of labels; empty if the dataset does not name its classes.
    pub class_titles: Arc<[String]>,
}

/// What a client asked for, and what the server allows it.
#[derive(Debug, Clone)]
pub struct StreamRequest<'a> {
    /// As the client gave them: only their form was checked.
    pub options: &'a LoaderOptions,
    /// Epoch of the first batch.
    pub epoch: u64,
    /// Where in the epoch to begin, in samples of all ranks together.
    pub position: u64,
    /// Largest batch.
    pub max_batch_bytes: u64,
    /// Largest image that may be decoded.
    pub image_limits: Limits,
    /// Memory for the stream; `None`: the source's default.
    pub memory_bytes: Option<u64>,
    /// Decoding threads; `None`: the source's default.
    pub threads: Option<usize>,
    /// Which part of the server's cores the stream has, together with others of its name; `None`: one of its own.
    pub share: Option<Share>,
    /// Where the memory of batches comes from; `None`: a pool of the source's own.
    pub pool: Option<BufferPool>,
}

/// The batches of one stream.
pub trait BatchSource: Send {
    /// The options with every default filled in, and the numbers that follow from them.
    fn info(&self) -> StreamInfo;

    /// The next batch; `None` at the end of an epoch, after which the next epoch begins.
    ///
    /// # Errors
    ///
    /// A [`Failure`] that is sent to the client as it is; the stream ends with it.
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure>;

    /// A handle for other threads.
    fn monitor(&self) -> Arc<dyn Monitor>;

    /// Bytes that the stream plans to hold, batches that were handed out left aside; 0 where that is next to nothing.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// A handle to a [`BatchSource`] for other threads.
pub trait Monitor: Send + Sync {
    /// Makes a `next_batch` that waits, and every later one, return an error soon.
    fn cancel(&self);

    /// Where the time went so far, as this stream sees it.
    fn stats(&self) -> wire::Stats;

    /// What waits on its way to the client right now; nothing where batches come out of nothing.
    fn queues(&self) -> Queues {
        Queues::default()
    }

    /// How long reads took so far.
    fn reads(&self) -> ReadTimes {
        ReadTimes::default()
    }

    /// The same for totals over streams: work that several streams have in common is told by one of them.
    fn counted(&self) -> wire::Stats {
        self.stats()
    }
}

/// Why there is no batch, as the client will read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What a client may act on.
    pub kind: wire::error::Kind,
    /// What, where (shard, record, offset), expected and found.
    pub message: String,
}

impl Failure {
    /// A failure of a kind.
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
