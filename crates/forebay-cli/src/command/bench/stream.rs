//! Experiments with a server in this process.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_bench::{BenchReport, SharingOptions, TransportOptions};
use forebay_client::Transport;

use super::Experiment;
use super::cold_args::ColdArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::quantity::parse_duration;

/// The samples of an experiment.
#[derive(Debug, Args)]
struct Samples {
    /// A dataset
    dataset: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
}

/// Transports to compare.
#[derive(Debug, Args)]
struct Transports {
    /// How batches come: shm, tcp, or auto for what trainers do by themselves
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "shm,tcp"
    )]
    transport: Vec<Transport>,
}

#[derive(Debug, Args)]
pub(super) struct Stream {
    #[command(flatten)]
    samples: Samples,
    /// Decoding threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    #[command(flatten)]
    transports: Transports,
    /// Duration of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    duration: Duration,
    #[command(flatten)]
    cold: ColdArgs,
}

impl Experiment for Stream {
    fn measure(self, runs: usize, _console: &Console) -> Result<Vec<BenchReport>, Failure> {
        Ok(vec![forebay_bench::stream(
            &self.samples.dataset,
            self.samples.split.as_deref(),
            self.threads,
            &self.transports.transport,
            self.duration,
            self.cold.cold,
            runs,
        )?])
    }
}

#[derive(Debug, Args)]
pub(super) struct Sharing {
    #[command(flatten)]
    samples: Samples,
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

impl Experiment for Sharing {
    fn measure(self, runs: usize, _console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let options = SharingOptions {
            split: self.samples.split,
            trainers: self.trainers,
            slow: self.slow,
            batch_size: self.batch_size,
            transport: self.transport,
            duration: self.duration,
            cold: self.cold.cold,
            runs,
        };
        Ok(vec![forebay_bench::sharing(
            &self.samples.dataset,
            &options,
        )?])
    }
}

#[derive(Debug, Args)]
pub(super) struct Handover {
    /// Batches of 38.5 MB a run
    #[arg(long, value_name = "N", default_value_t = 100)]
    batches: u64,
    #[command(flatten)]
    transports: Transports,
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

impl Experiment for Handover {
    fn measure(self, runs: usize, _console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let options = TransportOptions {
            batches: self.batches,
            ranks: self.ranks,
            transports: self.transports.transport,
            connections: self.connections,
            runs,
        };
        Ok(vec![forebay_bench::transport(&options)?])
    }
}
