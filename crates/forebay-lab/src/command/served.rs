//! Commands that measure servers in their own processes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_bench::BenchReport;
use forebay_cli::frontend::quantity::parse_duration;
use forebay_cli::frontend::{Console, Failure};
use forebay_client::Transport;

use super::Measured;
use crate::clients::{ClientsOptions, clients, fairness};
use crate::failover::{FailoverOptions, failover};
use crate::fleet::Serving;

/// The served dataset, and the batches that clients take.
#[derive(Debug, Args)]
struct ServedArgs {
    /// A dataset, as `serve` takes it
    source: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// Rows and columns of the pictures
    #[arg(long, value_name = "PIXELS", default_value_t = 224)]
    side: u32,
    /// How batches come: shm, tcp, or auto for what trainers do by themselves
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    transport: Transport,
}

impl ServedArgs {
    fn serving(&self) -> Result<Serving, Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(format!(
                "cannot find this program to start servers with: {error}"
            ))
        })?;
        Ok(Serving {
            program,
            source: self.source.clone(),
            arguments: Vec::new(),
        })
    }

    /// Returns options for `active` clients that fetch batches for `time`, each for its own training.
    fn clients(self, active: usize, time: Duration) -> Result<ClientsOptions, Failure> {
        Ok(ClientsOptions {
            serving: self.serving()?,
            split: self.split,
            idle: 0,
            active,
            trainings: active,
            batch_size: self.batch_size,
            side: self.side,
            transport: self.transport,
            time,
            slow: Duration::ZERO,
        })
    }
}

#[derive(Debug, Args)]
pub(super) struct Failover {
    #[command(flatten)]
    served: ServedArgs,
    /// How long the trainer works on a batch
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    step: Duration,
}

impl Measured for Failover {
    fn measure(self, runs: usize, _console: &Console) -> Result<BenchReport, Failure> {
        let served = self.served;
        let options = FailoverOptions {
            serving: served.serving()?,
            split: served.split,
            batch_size: served.batch_size,
            side: served.side,
            transport: served.transport,
            step: self.step,
            rounds: runs,
        };
        Ok(failover(&options)?)
    }
}

#[derive(Debug, Args)]
pub(super) struct Fairness {
    #[command(flatten)]
    served: ServedArgs,
    /// Trainers; one of them is the slow one
    #[arg(long, value_name = "N", default_value_t = 4)]
    active: usize,
    /// How long the slow one works on a batch
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "500ms")]
    slow: Duration,
    /// Duration of each part
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    duration: Duration,
}

impl Measured for Fairness {
    fn measure(self, _runs: usize, _console: &Console) -> Result<BenchReport, Failure> {
        let mut options = self.served.clients(self.active, self.duration)?;
        options.slow = self.slow;
        Ok(fairness(&options)?)
    }
}

#[derive(Debug, Args)]
pub(super) struct Clients {
    #[command(flatten)]
    served: ServedArgs,
    /// Clients that are connected and want nothing
    #[arg(long, value_name = "N", default_value_t = 1000)]
    idle: usize,
    /// Clients that take batches as fast as they come
    #[arg(long, value_name = "N", default_value_t = 64)]
    active: usize,
    /// Trainings that the ranks belong to: each decodes and holds its own batches
    #[arg(long, value_name = "N", default_value_t = 1)]
    trainings: usize,
    /// Duration of each part
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10s")]
    duration: Duration,
}

impl Measured for Clients {
    fn measure(self, _runs: usize, _console: &Console) -> Result<BenchReport, Failure> {
        let mut options = self.served.clients(self.active, self.duration)?;
        options.idle = self.idle;
        options.trainings = self.trainings;
        Ok(clients(&options)?)
    }
}
