//! The loader: plan, fetch, decode, transform, batch.
//!
//! - [`plan`]: the order of an epoch as a pure function of seed and epoch, and
//!   which part of it each rank gets.
//! - [`Loader`]: makes the batches of one rank, ahead of whoever takes them, with threads and
//!   memory bounded by [`Options`].
//! - [`Mix`]: several datasets as one, each with its share of the epoch.
//! - [`Stats`]: what each stage did with its time, and the [`Bottleneck`]: what holds the trainer back.
//! - [`Options::from_schema`]: options as every interface reads them; [`Options::to_schema`]: as they travel.
//!
//! `forebay-shard` reads records, `forebay-image` decodes images, and `forebay-wire` sends batches.

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

pub use error::{Error, Place, Result};
pub use fair::{FairQueue, Share};
pub use forebay_options::{LabelBase, OnError};
pub use loader::{Loader, Monitor};
pub use mix::{Mix, MixLabels};
pub use options::{DEFAULT_MEMORY_BYTES, DEFAULT_READERS, Options, PageCache};
pub use plan::Shuffle;
pub use sampling::{Sampling, Weights};
pub use schema::MAX_BATCH_BYTES;
pub use stats::{
    Bottleneck, Bound, CoresElsewhere, Network, Queues, READ_BOUNDS_S, ReadLevel, ReadTimes,
    StageStats, Stats,
};
