//! Commands that measure reads: an epoch from several locations, a store, and the first batch.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use forebay_bench::BenchReport;
use forebay_cli::frontend::quantity::parse_size;
use forebay_cli::frontend::{ColdArgs, Console, EpochArgs, Failure, StoreArgs};
use forebay_store::{Cancel, Location};

use super::Measured;
use crate::epoch::{EpochOptions, epoch};
use crate::start::start;
use crate::store::{StoreBenchOptions, store};

#[derive(Debug, Args)]
pub(super) struct Epoch {
    #[command(flatten)]
    epoch: EpochArgs,
}

impl Measured for Epoch {
    fn measure(self, runs: usize, console: &Console) -> Result<BenchReport, Failure> {
        let (places, read) = self.epoch.places(console)?;
        let options = EpochOptions {
            split: self.epoch.split,
            batch_size: self.epoch.batch_size,
            threads: self.epoch.threads,
            read,
            cold: self.epoch.cold.cold,
            runs,
        };
        Ok(epoch(&places, &options)?)
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

impl Measured for Store {
    fn measure(self, runs: usize, console: &Console) -> Result<BenchReport, Failure> {
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
        Ok(store(&location, &options)?)
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

impl Measured for Start {
    fn measure(self, runs: usize, _console: &Console) -> Result<BenchReport, Failure> {
        Ok(start(&self.scratch, self.records, self.cold.cold, runs)?)
    }
}
