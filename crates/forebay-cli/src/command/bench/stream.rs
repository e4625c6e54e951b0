//! `forebay bench stream`: measures batches that a server in this process sends to a client.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_bench::BenchReport;
use forebay_client::Transport;

use super::Experiment;
use super::cold_args::ColdArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::quantity::parse_duration;

#[derive(Debug, Args)]
pub(super) struct Stream {
    /// A dataset
    dataset: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Decoding threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// How batches come: shm, tcp, or auto for what trainers do by themselves
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "shm,tcp"
    )]
    transport: Vec<Transport>,
    /// Duration of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    run_time: Duration,
    #[command(flatten)]
    cold: ColdArgs,
}

impl Experiment for Stream {
    fn measure(self, runs: usize, _console: &Console) -> Result<Vec<BenchReport>, Failure> {
        Ok(vec![forebay_bench::stream(
            &self.dataset,
            self.split.as_deref(),
            self.threads,
            &self.transport,
            self.run_time,
            self.cold.cold,
            runs,
        )?])
    }
}
