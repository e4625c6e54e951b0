//! Commands that measure a server in this process.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_bench::BenchReport;
use forebay_cli::frontend::quantity::parse_duration;
use forebay_cli::frontend::{ColdArgs, Console, Failure};
use forebay_client::Transport;

use super::Measured;
use crate::sharing::{SharingOptions, sharing};
use crate::transport::{TransportOptions, transport};

#[derive(Debug, Args)]
pub(super) struct Sharing {
    /// A dataset
    dataset: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Trainers
    #[arg(long, value_name = "N", default_value_t = 4)]
    trainers: usize,
    /// How long one takes for each batch, where one is slow
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    slow: Duration,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// How batches come: shm, tcp, or auto for what trainers do by themselves
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    transport: Transport,
    /// Duration of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    duration: Duration,
    #[command(flatten)]
    cold: ColdArgs,
}

impl Measured for Sharing {
    fn measure(self, runs: usize, _console: &Console) -> Result<BenchReport, Failure> {
        let options = SharingOptions {
            split: self.split,
            trainers: self.trainers,
            slow: self.slow,
            batch_size: self.batch_size,
            transport: self.transport,
            duration: self.duration,
            cold: self.cold.cold,
            runs,
        };
        Ok(sharing(&self.dataset, &options)?)
    }
}

#[derive(Debug, Args)]
pub(super) struct Handover {
    /// Batches of 38.5 MB a run
    #[arg(long, value_name = "N", default_value_t = 100)]
    batches: u64,
    /// How batches come: shm, tcp, or auto for what trainers do by themselves
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "shm,tcp"
    )]
    transport: Vec<Transport>,
    /// Numbers of TCP connections that a batch comes over at once, to compare
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2"
    )]
    connections: Vec<usize>,
    /// Trainers at the same time, which share the batches
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: u64,
}

impl Measured for Handover {
    fn measure(self, runs: usize, _console: &Console) -> Result<BenchReport, Failure> {
        let options = TransportOptions {
            batches: self.batches,
            ranks: self.ranks,
            transports: self.transport,
            connections: self.connections,
            runs,
        };
        Ok(transport(&options)?)
    }
}
