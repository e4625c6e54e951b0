//! The loader: plan, fetch, decode, transform, batch.
//!
//! - [`plan`]: the order of an epoch as a pure function of seed and epoch, and
//!   which part of it each rank gets.
//! - [`Loader`]: makes the batches of one rank ahead of the consumer, with threads and memory bounded by
//!   [`Options`]; [`Loader::builder`] takes a source and options by name.
//! - [`Mix`]: several datasets read as one, each with its share of the epoch.
//! - [`Stats`]: the time that each stage spent, and the [`Bottleneck`], the stage that limits the trainer.
//! - [`Options::from_schema`], [`Options::to_schema`]: conversion from and to the schema that all interfaces share.
//!
//! `forebay-shard` reads records, `forebay-image` decodes images, and `forebay-wire` sends batches.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod builder;
mod columns;
mod error;
mod fair;
mod labels;
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

pub use builder::{IntoOption, LoaderBuilder, LoaderSource};
pub use error::{Error, RecordLocation, Result};
pub use fair::{FairQueue, FairShare};
pub use forebay_batch::{self as batch, Batch, BufferPool, Dtype, Layout};
pub use forebay_image::{
    self as image, BatchTransform, Compose, DecodeOptions, EvalTransform, Mixing, Normalize, Op,
    Output, ResizeLike, TrainTransform, Transform,
};
pub use forebay_options::{
    Class, LabelBase, LoaderOptions, NormalizeSpec, OnError, ShuffleSpec, TransformSpec,
    Transforms, WeightsSpec,
};
pub use forebay_shard::{self as shard, Dataset, Split};
pub use loader::{EpochBatches, Loader, Monitor};
pub use mix::{Mix, MixLabels};
pub use options::{DEFAULT_MEMORY_BYTES, Options};
pub use plan::Shuffle;
pub use sampling::{Sampling, Weights};
pub use schema::MAX_BATCH_BYTES;
pub use source::{DEFAULT_READERS, PageCache};
pub use stats::{
    Bottleneck, Bound, CoresElsewhere, CpuTaker, DeviceCopy, MachineCpu, Network, Queues,
    READ_BOUNDS_S, RankPace, ReadLevel, ReadTimes, StageStats, Stats, Straggler,
};
