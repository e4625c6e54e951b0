//! Reader and writer of Forebay's shards.
//!
//! - [`tfrecord`]: TFRecord files, exactly as TensorFlow's, plain or
//!   compressed as a whole, strict or salvaging.
//! - [`indexed`]: the indexed shard `.fbs`: the same records in checksummed
//!   blocks, with an index in the file.
//! - [`index`]: that index, also as a sidecar for TFRecord files, and DALI's
//!   text index.
//! - [`Shard`]: random access to one shard of either format.
//! - [`Dataset`], [`Split`], [`manifest`]: the shards that belong together.
//! - [`ExampleView`], [`ExampleBuilder`]: `tensorflow.Example` without copies.
//! - [`mod@verify`]: is every byte what it was written as?
//!
//! - [`storage`]: the seam for where bytes are. Local files are built in;
//!   who knows another place implements [`Storage`] for it.
//!
//! FORMAT.md has the bytes. Blocking positioned reads are on top of functions
//! from bytes to records.

pub mod checksum;
mod codec;
pub mod dataset;
mod error;
pub mod example;
mod frame;
mod frames;
pub mod index;
pub mod indexed;
mod key;
pub mod manifest;
mod memory;
mod record_block;
mod scan;
mod shard;
pub mod storage;
pub mod tfrecord;
pub mod verify;
mod writer;

pub use codec::Codec;
pub use dataset::{Dataset, Split};
pub use error::{Corruption, Error, Result};
pub use example::{
    ExampleBuilder, ExampleError, ExampleView, ImageRecord, image_and_label, image_record,
};
pub use frame::{MAX_RECORD_BYTES, OVERHEAD_BYTES, Payload};
pub use frames::Frames;
pub use index::{Index, IndexBuilder, RecordMeta};
pub use key::{escape_key, unescape_key};
pub use manifest::Manifest;
pub use record_block::RecordBlock;
pub use scan::Scan;
pub use shard::{OpenOptions, Shard, ShardFormat, find_sidecar};
pub use storage::{CacheHits, CacheUse, LocalFiles, Pace, ReadAt, Storage, StorageStats};
pub use tfrecord::{Record, RecordInfo};
pub use writer::{ShardSummary, ShardWriter};
