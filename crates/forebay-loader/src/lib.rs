//! The loader: plan, fetch, decode, transform, batch.
//!
//! - [`plan`]: the order of an epoch as a pure function of seed and epoch, and
//!   which part of it each rank gets.
//! - [`Loader`]: makes the batches of one rank ahead of the consumer, with threads and memory bounded by
//!   [`Options`].
//! - [`Mix`]: several datasets read as one, each with its share of the epoch.
//! - [`Stats`]: the time that each stage spent, and the [`Bottleneck`], the stage that limits the trainer.
//! - [`Options::from_schema`], [`Options::to_schema`]: conversion from and to the schema that all interfaces share.
//!
//! `forebay-shard` reads records, `forebay-image` decodes images, and `forebay-wire` sends batches.
//!
//! # A dataset that a program writes
//!
//! `forebay pack` makes a dataset of a directory of images. A program can write one as well:
//!
//! ```rust
//! use forebay_loader::shard::manifest::{Manifest, ShardEntry, SplitEntry};
//! use forebay_loader::shard::{ExampleBuilder, RecordMeta, ShardFormat, indexed};
//! use forebay_loader::{Dataset, EvalTransform, Loader, Options, Transform, image};
//!
//! let root = tempfile::tempdir()?;
//! let name = "train-00000-of-00001.fbs";
//! let path = root.path().join(name);
//! let mut shard = indexed::WriterBuilder::new().from_writer(std::fs::File::create(&path)?, &path)?;
//! for label in 1..=6 {
//!     let png = image::encode_png(&[40 * label as u8; 3 * 8 * 8], 8, 8);
//!     let mut example = ExampleBuilder::new();
//!     example.add_bytes("image/encoded", &png);
//!     example.add_int64("image/class/label", label);
//!     shard.append(&example.to_vec(), &RecordMeta::new(label, format!("{label}.png").as_bytes()))?;
//! }
//! let (_, written) = shard.finish()?;
//! let entry = ShardEntry {
//!     name: name.to_owned(),
//!     records: written.records,
//!     bytes: written.bytes,
//!     crc32c: written.crc32c,
//!     blake3: None,
//! };
//! let manifest = Manifest::new(ShardFormat::Indexed, 1, vec![SplitEntry::new("train", vec![entry])]);
//! std::fs::write(root.path().join("forebay.json"), manifest.to_json()?)?;
//!
//! let train = Dataset::open(root.path())?.split("train")?;
//! let mut options = Options::new(4, Transform::Eval(EvalTransform::new(8, 8)));
//! options.drop_last = false;
//! let mut loader = Loader::new(train, options)?;
//! let labels: Vec<i64> = loader
//!     .epoch(0)?
//!     .map(|batch| Ok(batch?.labels))
//!     .collect::<forebay_loader::Result<Vec<_>>>()?
//!     .concat();
//! assert_eq!(labels.len(), 8); // Two batches; the last one is padded.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod columns;
mod error;
mod fair;
mod labels;
mod learned;
mod loader;
mod mix;
mod options;
mod pipeline;
pub mod plan;
mod sampling;
mod schema;
mod source;
mod stats;
#[cfg(test)]
mod tests;
mod trim;

pub use error::{Error, RecordLocation, Result};
pub use fair::{FairQueue, FairShare};
pub use forebay_batch::{
    self as batch, Batch, BufferPool, DeviceDriver, Dtype, HostRegistry, Layout,
};
pub use forebay_image::{
    self as image, BatchTransform, Compose, DecodeOptions, EvalTransform, Mixing, Normalize, Op,
    Output, ResizeLike, TrainTransform, Transform,
};
pub use forebay_options::{
    Class, LabelBase, LoaderOptions, NormalizeSpec, OnError, ShuffleSpec, TransformSpec,
    Transforms, WeightsSpec,
};
pub use forebay_shard::{self as shard, Dataset, Split};
pub use learned::{LearnedSeekPoints, share_learned_seek_points};
pub use loader::{EpochBatches, Loader, Monitor};
pub use mix::{Mix, MixLabels};
pub use options::{DEFAULT_MEMORY_BYTES, Options};
pub use plan::Shuffle;
pub use sampling::{Sampling, Weights};
pub use schema::MAX_BATCH_BYTES;
pub use source::{DEFAULT_READERS, PageCache};
pub use stats::{
    Bottleneck, Bound, CoresElsewhere, CpuTaker, DeviceCopy, LearnedStats, MachineCpu, Network,
    Queues, READ_BOUNDS_S, RankPace, ReadLevel, ReadTimes, StageStats, Stats, Straggler,
};
