//! `forebay bench storage`: the reads of an epoch without the loader, beside the loader.

use std::path::PathBuf;

use clap::Args;
use forebay_bench::{BenchReport, ReplayOptions};
use forebay_cache::ReadOptions;
use forebay_store::Location;

use super::Experiment;
use super::cold_args::ColdArgs;
use crate::cache_args::CacheArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::store_args::StoreArgs;

#[derive(Debug, Args)]
pub(super) struct Storage {
    /// Locations of the dataset: a directory, a URL of a store, synthetic://
    #[arg(required = true, value_name = "DATASET")]
    datasets: Vec<PathBuf>,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Directory of the same images as single files, as it was packed: reads them in the same order
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Further numbers of reads in flight to compare, 1 to 256; the loader's own is always measured
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: Vec<u16>,
    /// Decoding threads [default: what the machine allows]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Threads that read [default: 4, or what suits the store]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    readers: usize,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// Write the same reads as a job of fio, with logs beside it
    #[arg(long, value_name = "FILE")]
    emit_fio: Option<PathBuf>,
    #[command(flatten)]
    cold: ColdArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl Experiment for Storage {
    fn measure(self, runs: usize, console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let places: Vec<Location> = self
            .datasets
            .iter()
            .map(Location::parse)
            .collect::<Result<_, _>>()?;
        let options = ReplayOptions {
            split: self.split,
            batch_size: self.batch_size,
            threads: self.threads,
            readers: self.readers,
            depths: self.depth.into_iter().map(usize::from).collect(),
            files: self.files,
            cold: self.cold.cold,
            read: ReadOptions::new(self.store.options())
                .with_cache(self.cache.open_for(&self.datasets, console)?),
            runs,
            emit_fio: self.emit_fio,
        };
        Ok(forebay_bench::replay(&places, &options)?)
    }
}
