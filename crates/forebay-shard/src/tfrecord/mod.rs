//! TFRecord files: consecutive frames, without header or footer.
//!
//! The bytes are exactly TensorFlow's, plain or compressed as a whole. Both checksums of every
//! frame are verified by default.
//!
//! ```
//! use forebay_shard::tfrecord::{ReaderBuilder, WriterBuilder};
//!
//! let mut writer = WriterBuilder::new().from_writer(Vec::new(), "train-00000-of-00001");
//! writer.write(b"first")?;
//! writer.write(b"second")?;
//! let (file, summary) = writer.finish()?;
//! assert_eq!((summary.records, summary.bytes), (2, file.len() as u64));
//!
//! let mut reader = ReaderBuilder::new().from_reader(&file[..], "train-00000-of-00001");
//! let mut record = Vec::new();
//! while let Some(info) = reader.read_into(&mut record)? {
//!     println!("record {} at byte {}: {} bytes", info.index, info.offset, info.len);
//! }
//! # Ok::<(), forebay_shard::Error>(())
//! ```

mod expanded;
mod frames;
mod input;
mod reader;
mod salvage;
mod sidecar;
mod writer;

pub use crate::compress::Compression;
pub use crate::frame::RecordInfo;
pub use expanded::ExpandedFiles;
pub use reader::{Mode, Reader, ReaderBuilder, Record, Records};
pub use salvage::LostRange;
pub use sidecar::build_sidecar;
pub(crate) use sidecar::scan_heads;
pub use writer::WriterBuilder;
