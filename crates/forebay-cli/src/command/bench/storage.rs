//! `forebay bench storage`: compares an epoch of the loader with the same reads without the loader.

use std::path::PathBuf;

use clap::Args;
use forebay_bench::{BenchReport, ReplayOptions};

use super::Experiment;
use super::epoch_args::EpochArgs;
use crate::console::Console;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(super) struct Storage {
    /// Directory of the same images as single files, as it was packed: reads them in the same order
    #[arg(long, value_name = "DIR")]
    files: Option<PathBuf>,
    /// Further numbers of reads in flight to compare, 1 to 256; the loader's own is always measured
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    depth: Vec<u16>,
    #[command(flatten)]
    epoch: EpochArgs,
}

impl Experiment for Storage {
    fn measure(self, runs: usize, console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let (places, read) = self.epoch.places(console)?;
        let options = ReplayOptions {
            split: self.epoch.split,
            batch_size: self.epoch.batch_size,
            threads: self.epoch.threads,
            depths: self.depth.into_iter().map(usize::from).collect(),
            files: self.files,
            cold: self.epoch.cold.cold,
            read,
            runs,
        };
        Ok(forebay_bench::replay(&places, &options)?)
    }
}
