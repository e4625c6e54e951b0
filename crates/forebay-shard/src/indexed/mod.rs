//! The indexed shard `.fbs`: the frames of a TFRecord in checksummed blocks, with the index at the
//! end of the file.
//!
//! This module writes blocks; [`crate::Shard`] opens a shard for random access.
//!
//! ```
//! use forebay_shard::indexed::{Codec, WriterBuilder};
//! use forebay_shard::RecordMeta;
//!
//! let mut builder = WriterBuilder::new();
//! builder.compression(Codec::ZSTD);
//! let mut writer = builder.from_writer(Vec::new(), "train-00000-of-00001.fbs")?;
//! writer.append(b"a record", &RecordMeta::new(7, b"cat/1.jpeg"))?;
//! let (file, summary) = writer.finish()?;
//! assert_eq!(summary.bytes, file.len() as u64);
//! # Ok::<(), forebay_shard::Error>(())
//! ```

mod writer;

pub use crate::codec::Codec;
pub use writer::{MAX_BLOCK_BYTES, WriterBuilder};
