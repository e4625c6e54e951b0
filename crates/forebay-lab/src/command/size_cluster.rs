//! Command `forebay-lab size-cluster`: prints the results of the cluster model.

use std::time::Duration;

use clap::Args as ClapArgs;
use forebay_cli::frontend::quantity::{self, parse_duration, parse_size};
use forebay_cli::frontend::{Align, Console, Failure, Outcome as Ended, Table};
use serde::Serialize;

use crate::simulate::{self, ClusterPlan, OneMore, Outcome, Placement, PlanError, one_more};

/// Parameters of the model; docs/scale.md explains them.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// GPUs that train
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().gpus)]
    gpus: u64,
    /// Images a second that a GPU takes when it never waits
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().gpu_images_per_s)]
    gpu_images: f64,
    /// Trainings that the GPUs are divided among; the GPUs of one take each step together
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().jobs)]
    trainings: u64,
    /// GPUs of a host
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().gpus_per_trainer)]
    gpus_per_trainer: u64,
    /// Network of such a host, Gbit/s
    #[arg(long, value_name = "GBIT", default_value_t = ClusterPlan::default().trainer_gbit)]
    trainer_gbit: f64,
    /// Samples of a GPU's batch
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().batch_size)]
    batch_size: u64,
    /// Size of a sample as it is sent: 224 x 224 x 3 bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value_t = ClusterPlan::default().sample_bytes)]
    sample_bytes: u64,
    /// Size of a sample as it is stored
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "110kB")]
    record_bytes: u64,
    /// Batches that a GPU has asked for ahead
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().ahead)]
    ahead: u64,
    /// Servers
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().servers)]
    servers: u64,
    /// Cores of a server
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().cores)]
    cores: u64,
    /// Images a second that a core decodes: `forebay bench loader` measures it
    #[arg(long, value_name = "N", default_value_t = ClusterPlan::default().core_images_per_s)]
    core_images: f64,
    /// CPU time that sending a GB takes: `forebay-lab transport` measures it
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "210ms")]
    send_cpu: Duration,
    /// Network of a server, Gbit/s in each direction
    #[arg(long, value_name = "GBIT", default_value_t = ClusterPlan::default().server_gbit)]
    server_gbit: f64,
    /// Bytes a second of storage for all servers together: `forebay-lab store` measures it for one
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "100GB")]
    storage: u64,
    /// Time to the first byte from storage
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "20ms")]
    storage_latency: Duration,
    /// Size of the dataset
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "150GB")]
    dataset_bytes: u64,
    /// Size of the warm cache of each server
    #[arg(long, value_name = "SIZE", value_parser = parse_size_or_none, default_value = "100GB")]
    cache: u64,
    /// How streams find servers: even or hash
    #[arg(long, value_name = "HOW", default_value = "even")]
    placement: Placement,
    /// Servers that are slow
    #[arg(long, value_name = "N", default_value_t = 0)]
    slow_servers: u64,
    /// How fast those are, as a part of the others
    #[arg(long, value_name = "PART", default_value_t = ClusterPlan::default().slow_factor)]
    slow_factor: f64,
    /// Servers that die in the first half of the run
    #[arg(long, value_name = "N", default_value_t = 0)]
    failures: u64,
    /// Time until the streams of a dead server continue elsewhere
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    failover: Duration,
    /// Time until a dead server is back
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    restart: Duration,
    /// How much longer or shorter a batch may take to decode than usual, as a part
    #[arg(long, value_name = "PART", default_value_t = ClusterPlan::default().jitter)]
    jitter: f64,
    /// Simulated time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "20s")]
    duration: Duration,
    /// Simulated time before that, which does not count
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    warm_up: Duration,
    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Parses a size, which may be 0.
fn parse_size_or_none(text: &str) -> Result<u64, String> {
    match text.trim() {
        "0" => Ok(0),
        text => parse_size(text),
    }
}

impl Args {
    fn plan(&self) -> ClusterPlan {
        ClusterPlan {
            gpus: self.gpus,
            gpu_images_per_s: self.gpu_images,
            jobs: self.trainings,
            gpus_per_trainer: self.gpus_per_trainer,
            trainer_gbit: self.trainer_gbit,
            batch_size: self.batch_size,
            sample_bytes: self.sample_bytes,
            record_bytes: self.record_bytes,
            ahead: self.ahead,
            servers: self.servers,
            cores: self.cores,
            core_images_per_s: self.core_images,
            send_s_per_gb: self.send_cpu.as_secs_f64(),
            server_gbit: self.server_gbit,
            storage_gb_s: self.storage as f64 / 1e9,
            storage_latency_ms: self.storage_latency.as_secs_f64() * 1e3,
            dataset_bytes: self.dataset_bytes,
            cache_bytes: self.cache,
            placement: self.placement,
            slow_servers: self.slow_servers,
            slow_factor: self.slow_factor,
            failures: self.failures,
            failover_s: self.failover.as_secs_f64(),
            restart_s: self.restart.as_secs_f64(),
            jitter: self.jitter,
            seconds: self.duration.as_secs_f64(),
            warm_up_s: self.warm_up.as_secs_f64(),
            seed: self.seed,
        }
    }
}

#[derive(Serialize)]
struct Event<'a> {
    plan: &'a ClusterPlan,
    outcome: &'a Outcome,
    one_more: &'a [OneMore],
}

pub(super) fn run(args: &Args, console: &Console) -> Result<Ended, Failure> {
    let plan = args.plan();
    let wrong = |e: PlanError| {
        let name = if e.name == "jobs" {
            "trainings"
        } else {
            e.name
        };
        Failure::usage(format!("--{name} is {}: expected {}", e.found, e.expected))
    };
    let outcome = simulate::run(&plan).map_err(wrong)?;
    let more = one_more(&plan, &outcome).map_err(wrong)?;
    print(&plan, &outcome, &more, console);
    console.event(
        "simulation",
        &Event {
            plan: &plan,
            outcome: &outcome,
            one_more: &more,
        },
    );
    Ok(Ended::Done)
}

fn print(plan: &ClusterPlan, outcome: &Outcome, more: &[OneMore], console: &Console) {
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    console.heading(format!(
        "{} in {}, {}: {} images/s wanted",
        quantity::counted(plan.gpus, "GPU", "GPUs"),
        quantity::counted(plan.jobs, "training", "trainings"),
        quantity::counted(plan.servers, "server", "servers"),
        images(plan.demand()),
    ));
    let mut table = Table::new(&[
        ("", Align::Left),
        ("could do", Align::Right),
        ("of what is wanted", Align::Right),
        ("busy", Align::Right),
        ("busiest", Align::Right),
    ]);
    for (limit, used) in outcome.limits.iter().zip(&outcome.uses) {
        let first = limit.resource == outcome.first_limit.resource;
        table.row([
            format!(
                "{}{}",
                limit.resource.name(),
                if first { " (first)" } else { "" }
            ),
            images(limit.images_per_s),
            match limit.images_per_s.is_finite() {
                true => format!("{:.2}x", limit.images_per_s / plan.demand()),
                false => String::new(),
            },
            percent(used.mean),
            percent(used.most),
        ]);
    }
    for line in table.lines(console.paint()) {
        console.line(line);
    }
    console.line(format!(
        "Simulated {} s: {} images/s, {} of what is wanted; from {} to {} streams a server",
        plan.seconds,
        images(outcome.images_per_s),
        percent(outcome.of_demand),
        outcome.fewest_streams,
        outcome.most_streams,
    ));
    console.line(format!(
        "GPUs wait for data: p50 {}, p99 {} of their time; a step p50 {:.1} ms, p99 {:.1} ms",
        percent(outcome.stall_p50),
        percent(outcome.stall_p99),
        outcome.wait_ms_p50,
        outcome.wait_ms_p99,
    ));
    console.line(format!(
        "A batch takes p50 {:.0} ms, p99 {:.0} ms from being asked for",
        outcome.batch_ms_p50, outcome.batch_ms_p99,
    ));
    console.line("What more would give:");
    let mut table = Table::new(&[
        ("", Align::Left),
        ("images/s", Align::Right),
        ("gain", Align::Right),
        ("GPUs wait", Align::Right),
    ]);
    for one in more {
        table.row([
            one.what.clone(),
            images(one.images_per_s),
            // Adding 0.0 turns -0.0 into 0.0.
            format!("{:+.1} %", (one.gain * 1000.0).round() / 10.0 + 0.0),
            percent(one.stall_p50),
        ]);
    }
    for line in table.lines(console.paint()) {
        console.line(line);
    }
}

/// Formats a number of images with at most three digits.
fn images(value: f64) -> String {
    match value {
        v if !v.is_finite() => "any".to_owned(),
        v if v >= 999_500.0 => format!("{:.2} million", v / 1e6),
        v if v >= 999.5 => format!("{:.0} thousand", v / 1e3),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn flag_defaults_are_those_of_the_plan() {
        let flags = Flags::try_parse_from(["x"]).unwrap();
        assert_eq!(flags.args.plan(), ClusterPlan::default());
        let flags = Flags::try_parse_from(["x", "--cache", "0", "--placement", "hash"]).unwrap();
        let plan = flags.args.plan();
        assert_eq!((plan.cache_bytes, plan.placement), (0, Placement::Hash));
        assert!(Flags::try_parse_from(["x", "--placement", "random"]).is_err());
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(images(2_500_000.0), "2.50 million");
        assert_eq!(images(909_090.0), "909 thousand");
        assert_eq!(images(12.4), "12");
        assert_eq!(images(f64::INFINITY), "any");
    }
}
