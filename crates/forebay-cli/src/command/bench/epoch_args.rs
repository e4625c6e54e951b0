//! The options of benchmarks that read an epoch of the same dataset from several locations.

use std::path::PathBuf;

use clap::Args;
use forebay_cache::ReadOptions;
use forebay_store::Location;

use super::cold_args::ColdArgs;
use crate::cache_args::CacheArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::store_args::StoreArgs;

/// The locations of a dataset, and how an epoch of it is read.
#[derive(Debug, Args)]
pub struct EpochArgs {
    /// Locations of the dataset, to compare: a directory, a URL of a store, synthetic://
    #[arg(required = true, value_name = "DATASET")]
    datasets: Vec<PathBuf>,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    pub split: Option<String>,
    /// Decoding threads [default: the cores of the machine or container]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub threads: usize,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub batch_size: u64,
    /// How caches are emptied.
    #[command(flatten)]
    pub cold: ColdArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl EpochArgs {
    /// Returns the locations of the dataset, and the store and cache options to read them with.
    pub fn places(&self, console: &Console) -> Result<(Vec<Location>, ReadOptions), Failure> {
        let places: Result<_, _> = self.datasets.iter().map(Location::parse).collect();
        let cache = self.cache.open_for(&self.datasets, console)?;
        Ok((
            places?,
            ReadOptions::new(self.store.options()).with_cache(cache),
        ))
    }
}
