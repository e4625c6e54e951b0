//! Experiments on files: packing, reading, an epoch from several places, a store, the first batch.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use forebay_bench::{BenchReport, EpochOptions, PackBenchOptions, StoreBenchOptions};
use forebay_store::{Cancel, Location};

use super::Experiment;
use super::cold_args::ColdArgs;
use super::epoch_args::EpochArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::quantity::parse_size;
use crate::store_args::StoreArgs;

#[derive(Debug, Args)]
pub(super) struct Pack {
    /// A directory of images
    source: PathBuf,
    /// Directory to write to; the command removes its files
    #[arg(long, value_name = "DIR")]
    scratch: PathBuf,
    /// Threads that read and write [default: the cores of the machine or container]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    #[command(flatten)]
    cold: ColdArgs,
}

impl Experiment for Pack {
    fn measure(self, runs: usize, _console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let options = PackBenchOptions {
            scratch: self.scratch,
            jobs: self.jobs,
            cold: self.cold.cold,
            runs,
        };
        Ok(vec![forebay_bench::pack(&self.source, &options)?])
    }
}

#[derive(Debug, Args)]
pub(super) struct Read {
    /// Datasets to compare
    #[arg(required = true, value_name = "DATASET")]
    datasets: Vec<PathBuf>,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    #[command(flatten)]
    cold: ColdArgs,
}

impl Experiment for Read {
    fn measure(self, runs: usize, _console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let roots: Vec<_> = self.datasets.iter().map(PathBuf::as_path).collect();
        Ok(forebay_bench::read(
            &roots,
            self.split.as_deref(),
            self.cold.cold,
            runs,
        )?)
    }
}

#[derive(Debug, Args)]
pub(super) struct Epoch {
    #[command(flatten)]
    epoch: EpochArgs,
}

impl Experiment for Epoch {
    fn measure(self, runs: usize, console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let (places, read) = self.epoch.places(console)?;
        let options = EpochOptions {
            split: self.epoch.split,
            batch_size: self.epoch.batch_size,
            threads: self.epoch.threads,
            read,
            cold: self.epoch.cold.cold,
            runs,
        };
        Ok(vec![forebay_bench::epoch(&places, &options)?])
    }
}

#[derive(Debug, Args)]
pub(super) struct Store {
    /// A prefix of a bucket, or a directory, that can be written to
    location: PathBuf,
    /// Bytes of the object that is sent and fetched
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256MiB")]
    size: u64,
    /// Number of concurrent requests
    #[arg(short, long, value_name = "N", default_value = "8")]
    jobs: NonZeroUsize,
    /// Small reads in each run
    #[arg(long, value_name = "N", default_value_t = 200)]
    reads: u64,
    /// Bytes of a small read
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64KiB")]
    read_size: u64,
    /// Directory of the local file [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
}

impl Experiment for Store {
    fn measure(self, runs: usize, console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let options = StoreBenchOptions {
            store: self.store.options(),
            bytes: self.size,
            parallel: self.jobs.get(),
            reads: self.reads,
            read_bytes: self.read_size,
            scratch: self.scratch,
            runs,
            // An interrupted run still has to remove its objects.
            cancel: Cancel::from_flag(console.interrupt().answer().flag()),
        };
        let location = Location::parse(self.location)?;
        Ok(vec![forebay_bench::store(&location, &options)?])
    }
}

#[derive(Debug, Args)]
pub(super) struct Start {
    /// Directory of the generated dataset, which later runs use again
    #[arg(long, value_name = "DIR")]
    scratch: PathBuf,
    /// Records of the dataset
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    records: u64,
    #[command(flatten)]
    cold: ColdArgs,
}

impl Experiment for Start {
    fn measure(self, runs: usize, _console: &Console) -> Result<Vec<BenchReport>, Failure> {
        Ok(vec![forebay_bench::start(
            &self.scratch,
            self.records,
            self.cold.cold,
            runs,
        )?])
    }
}
