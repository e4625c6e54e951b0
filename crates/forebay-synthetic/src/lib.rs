//! Synthetic datasets: `synthetic://imagenet?records=1000000`.
//!
//! To find out whether storage, processor or network limits training, replace one of the three. A
//! synthetic dataset replaces the storage by memory, or by a simulated storage with a known
//! latency, bandwidth and rate of faults: its files are generated as they are read. It is a
//! complete dataset with manifest, TFRecord shards, indexes and checksums, so every reader of
//! datasets can read it, through [`forebay_shard::Storage`].
//!
//! - [`Recipe`]: the options in a URL.
//! - `pictures`: baseline JPEGs with the sizes of ImageNet's images.
//! - `shard`: a shard's bytes, composed from a few images.
//! - `storage`: the files, with delayed and failing reads.
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
