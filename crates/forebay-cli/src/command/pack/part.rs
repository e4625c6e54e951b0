//! The steps of a pack or conversion that several machines share, and the summaries of parts and plans.

use clap::Args as ClapArgs;
use forebay_pack::{ConversionPlan, Part, PartSummary, Prepared};
use forebay_store::Location;
use serde_json::json;

use super::summary::{print_skipped, time};
use crate::console::Console;
use crate::input::show;
use crate::paint::printable;
use crate::quantity;

/// Steps of a pack or conversion that several machines share.
#[derive(Debug, ClapArgs)]
#[group(id = "step", multiple = false)]
pub(in crate::command) struct StepArgs {
    /// Before the first part: record the plan in DST for all parts
    #[arg(long, help_heading = "Several machines")]
    pub(in crate::command) plan: bool,

    /// Write part I of N into DST, with the same options as all other parts
    #[arg(long, value_name = "I/N", help_heading = "Several machines")]
    pub(in crate::command) part: Option<Part>,

    /// Publish the dataset when all parts are in DST
    #[arg(long, help_heading = "Several machines")]
    pub(in crate::command) finish: bool,
}

/// The command that writes parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::command) enum Verb {
    Pack,
    Convert,
}

/// Prints the summary of a part.
pub(in crate::command) fn print(summary: &PartSummary, verb: Verb, console: &Console) {
    for warning in &summary.warnings {
        console.warning(printable(warning));
    }
    let (part, root) = (summary.part, show(&summary.root));
    if summary.already_complete {
        console.line(format!("{root} is complete already, part {part} included"));
    } else if summary.shards == 0 {
        let all = quantity::counted(summary.all_shards, "shard", "shards");
        console.line(format!("Part {part} has nothing to do: the plan has {all}"));
    } else {
        let (done, records) = match verb {
            Verb::Pack => (
                "Packed",
                quantity::counted(summary.records, "image", "images"),
            ),
            Verb::Convert => (
                "Converted",
                quantity::counted(summary.records, "record", "records"),
            ),
        };
        console.line(format!(
            "{done} part {part} into {root}: {records}, {}, {} of {}",
            quantity::bytes(summary.shard_bytes),
            quantity::counted(summary.shards, "shard", "shards"),
            quantity::count(summary.all_shards),
        ));
        if summary.resumed_shards > 0 {
            let kept = quantity::counted(summary.resumed_shards, "shard", "shards");
            console.line(format!("{kept} of an earlier run checked and kept"));
        }
        let (files, bytes) = (summary.packed_files, summary.packed_bytes);
        console.line(match verb {
            Verb::Pack => time(summary.census_time, summary.write_time, files, bytes),
            Verb::Convert => format!(
                "in {} ({})",
                quantity::duration(summary.write_time),
                quantity::byte_rate(bytes, summary.write_time)
            ),
        });
    }
    print_skipped(summary.skipped(), &summary.skipped_examples, console);
    if !summary.already_complete {
        let program = console.program();
        console.note(match verb {
            Verb::Pack => format!("when all parts are done: {program} pack --finish {root}"),
            Verb::Convert => {
                "when all parts are done: the same command with --finish in place of --part"
                    .to_owned()
            }
        });
    }
    console.event(
        "summary",
        &json!({
            "command": match verb {
                Verb::Pack => "pack",
                Verb::Convert => "convert",
            },
            "exit_code": 0,
            "root": summary.root.display().to_string(),
            "part": part.to_string(),
            "shards": summary.shards,
            "all_shards": summary.all_shards,
            "records": summary.records,
            "shard_bytes": summary.shard_bytes,
            "skipped": summary.skipped(),
            "already_complete": summary.already_complete,
            "resumed_shards": summary.resumed_shards,
            "packed_files": summary.packed_files,
            "packed_bytes": summary.packed_bytes,
            "census_seconds": summary.census_time.as_secs_f64(),
            "write_seconds": summary.write_time.as_secs_f64(),
        }),
    );
}

/// Prints the summary of a recorded plan. `was_there` is whether an earlier run had recorded it.
pub(super) fn print_plan(prepared: &Prepared, was_there: bool, console: &Console) {
    let (census, plan) = (prepared.census(), prepared.plan());
    for warning in census.warnings() {
        console.warning(printable(warning));
    }
    console.line(format!(
        "{}: {}, {}, {} for {}",
        if was_there {
            "The plan is there already"
        } else {
            "Recorded the plan"
        },
        quantity::counted(census.files(), "image", "images"),
        quantity::bytes(census.bytes()),
        quantity::counted(plan.shard_count(), "shard", "shards"),
        show(prepared.destination()),
    ));
    console.event(
        "summary",
        &json!({
            "command": "pack",
            "exit_code": 0,
            "root": prepared.destination().display().to_string(),
            "plan": plan.digest(),
            "was_there": was_there,
            "files": census.files(),
            "bytes": census.bytes(),
            "shards": plan.shard_count(),
            "census_seconds": prepared.census_time().as_secs_f64(),
        }),
    );
}

/// Prints that the plan of a conversion is recorded.
pub(in crate::command) fn print_conversion(
    plan: &ConversionPlan,
    dst: &Location,
    console: &Console,
) {
    let dst = printable(&dst.to_string());
    let done = match plan.was_there {
        true => "The plan is there already",
        false => "Recorded the plan",
    };
    let shards = quantity::counted(plan.shards, "shard", "shards");
    console.line(format!("{done}: {shards} for {dst}"));
    console.event(
        "summary",
        &json!({
            "command": "convert",
            "exit_code": 0,
            "root": dst,
            "was_there": plan.was_there,
            "shards": plan.shards,
            "bytes": plan.bytes,
        }),
    );
}
