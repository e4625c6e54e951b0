//! Command `forebay-lab size-cluster`: prints the results of the cluster model.

use forebay_cli::frontend::quantity;
use forebay_cli::frontend::{Align, Console, Failure, Outcome as Ended, Table};
use serde::Serialize;

use crate::simulate::{self, ClusterPlan, OneMore, Outcome, PlanError, one_more};

#[derive(Serialize)]
struct Event<'a> {
    plan: &'a ClusterPlan,
    outcome: &'a Outcome,
    one_more: &'a [OneMore],
}

pub(super) fn run(plan: &ClusterPlan, console: &Console) -> Result<Ended, Failure> {
    let wrong = |error: PlanError| Failure::usage(format!("--{error}"));
    let outcome = simulate::run(plan).map_err(wrong)?;
    let more = one_more(plan, &outcome).map_err(wrong)?;
    print(plan, &outcome, &more, console);
    console.event(
        "simulation",
        &Event {
            plan,
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
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(images(2_500_000.0), "2.50 million");
        assert_eq!(images(909_090.0), "909 thousand");
        assert_eq!(images(12.4), "12");
        assert_eq!(images(f64::INFINITY), "any");
    }
}
