//! Reads and writes Forebay's shards.
//!
//! - [`tfrecord`]: TFRecord files, exactly as TensorFlow's, plain or compressed as a whole, strict
//!   or salvaging.
//! - [`indexed`]: the indexed shard `.fbs`: the same records in checksummed blocks, with an index
//!   in the file.
//! - [`index`]: that index, also as a sidecar for TFRecord files, and DALI's text index.
//! - [`Shard`]: random access to one shard of either format.
//! - [`Dataset`], [`Split`], [`manifest`]: the shards of a dataset.
//! - [`ExampleView`], [`ExampleBuilder`]: `tensorflow.Example` without copies.
//! - [`schema`]: the columns of a dataset, which the features of its records form, and their types.
//! - [`mod@verify`]: verification of every byte.
//! - [`json`]: JSON from files and peers, bounded in depth.
//! - [`storage`]: the interface to file storage. Local files are built in; implement
//!   [`Storage`] for other kinds.
//!
//! FORMAT.md specifies the bytes. Functions that convert bytes to records do no IO; blocking positioned
//! reads are built on top of them.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod blocks;
pub mod checksum;
mod codec;
mod compress;
pub mod dataset;
mod error;
pub mod example;
mod frame;
mod frames;
pub mod index;
pub mod indexed;
pub mod json;
mod key;
pub mod manifest;
pub mod mapped;
mod memory;
mod names;
mod parallel;
mod record_block;
mod samples;
mod scan;
pub mod schema;
mod shard;
pub mod storage;
mod summary;
pub mod tfrecord;
pub mod varint;
pub mod verify;
mod writer;

pub use codec::{BlockCompression, Codec};
pub use dataset::{Dataset, DatasetOptions, Split, find_split};
pub use error::{Corruption, CorruptionKind, Error, Records, Result};
pub use example::{
    ExampleBuilder, ExampleError, ExampleView, ImageRecord, image_and_label, image_record,
};
pub use frame::{MAX_RECORD_BYTES, OVERHEAD_BYTES, Payload};
pub use frames::Frames;
pub use index::{Index, IndexBuilder, RecordMeta};
pub use key::{escape_key, unescape_key};
pub use manifest::Manifest;
pub use names::some_of;
pub use record_block::RecordBlock;
pub use samples::SampleDigest;
pub use scan::Scan;
pub use schema::{Column, ColumnType, ColumnValue, Schema};
pub use shard::{Shard, ShardFormat, ShardOptions, find_sidecar};
pub use storage::{CacheHits, LocalFiles, ReadAt, ReadProfile, Storage, StorageStats};
pub use summary::ShardSummary;
pub use tfrecord::{Record, RecordInfo};
pub use writer::ShardWriter;
