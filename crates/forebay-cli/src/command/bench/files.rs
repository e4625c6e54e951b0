//! `forebay bench pack` and `forebay bench read`.

use std::path::PathBuf;

use clap::Args;
use forebay_bench::{BenchReport, PackBenchOptions};

use super::Experiment;
use super::cold_args::ColdArgs;
use crate::console::Console;
use crate::failure::Failure;

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
