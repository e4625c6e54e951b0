//! Datasets that are nowhere: `synthetic://imagenet?records=1000000`.
//!
//! Who wants to know whether storage, processor or network holds a training back takes one of the three away. A synthetic
//! dataset takes storage away, or puts a storage in its place whose latency, bandwidth and faults are known: its files are made
//! as they are read. They are whole datasets all the same, manifest, TFRecord shards, indexes and checksums, so that
//! everything that reads a dataset reads them: the seam is [`forebay_shard::Storage`].
//!
//! - [`Recipe`]: what a URL asks for.
//! - `pictures`: baseline JPEGs with the sizes of ImageNet's.
//! - `shard`: a shard's bytes, put together from few pictures.
//! - `storage`: the files, and the delays and faults of reading them.
//!
//! ```
//! use forebay_synthetic::Recipe;
//!
//! let recipe = Recipe::parse("synthetic://imagenet?records=3000&pictures=2&latency=1ms")?;
//! let dataset = recipe.open()?;
//! let train = dataset.split("train")?;
//! assert_eq!(train.len(), 3000);
//! let mut record = Vec::new();
//! train.read(2999, &mut record)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod pictures;
mod recipe;
mod shard;
mod storage;

pub use recipe::{Error, MAX_RECORDS, Recipe, is_synthetic};
pub use storage::SyntheticStorage;
