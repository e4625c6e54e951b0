//! `forebay pack --dry-run`: prints the census and the plan, and writes no files.

use forebay_pack::{Cancel, Finding, PackOptions, Prepared, prepare};
use serde::Serialize;
use serde_json::json;

use super::Watch;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::histogram::Histogram;
use crate::input::show as show_path;
use crate::paint::{printable, printable_bytes};
use crate::quantity;
use crate::table::{Align, Table};

/// Maximum number of shards of a split to list; the others are counted.
const SHOWN_SHARDS: usize = 8;

/// Maximum number of findings to list; the others are counted.
const SHOWN_FINDINGS: usize = 10;

/// Width of the histogram's bars, in characters.
const BAR_WIDTH: usize = 32;

#[derive(Serialize)]
struct PlannedShard {
    name: String,
    records: u64,
    /// Estimated size: framing and features are estimated, and compression is not considered.
    bytes: u64,
}

pub(super) fn show(
    options: &PackOptions,
    cancel: &Cancel,
    watch: Watch<'_>,
    console: &Console,
) -> Result<Outcome, Failure> {
    let prepared = prepare(options, &watch, cancel).map_err(super::of_images)?;
    drop(watch);
    for warning in prepared.census().warnings() {
        console.warning(printable(warning));
    }
    let findings: Vec<Finding> = prepared.census().findings().collect();
    print_census(&prepared, &findings, console);
    console.blank();
    print_plan(&prepared, console);
    if cancel.is_cancelled() {
        return Err(Failure::from(forebay_pack::Error::Interrupted {
            finished: 0,
            total: 0,
        }));
    }
    let mut archives = prepared.census().archives().iter();
    if archives.any(|archive| archive.is_compressed_stream()) {
        console.line(format!(
            "A compressed archive is decoded once more before it is packed: about as long as this census, {}.",
            quantity::duration(prepared.census_time()),
        ));
    }
    if let Some((dir, bytes)) = prepared.staging() {
        console.line(format!(
            "Shards wait for their upload in {}, which needs room for {} at least.",
            show_path(&dir),
            quantity::bytes(bytes),
        ));
    }
    console.blank();
    console.line(
        console
            .paint()
            .dim("Nothing was written. Whether a file is a sound image shows when it is packed."),
    );
    console.event(
        "summary",
        &json!({
            "command": "pack",
            "dry_run": true,
            "exit_code": 0,
            "records": prepared.census().files(),
            "image_bytes": prepared.census().bytes(),
            "shard_bytes": prepared.plan().bytes(),
            "shards": prepared.plan().shard_count(),
            "classes": prepared.census().classes().len(),
            "odd_files": findings.len(),
            "warnings": prepared.census().warnings().to_vec(),
            "census_seconds": prepared.census_time().as_secs_f64(),
        }),
    );
    Ok(Outcome::Done)
}

fn print_census(prepared: &Prepared, findings: &[Finding], console: &Console) {
    let census = prepared.census();
    console.heading(format!(
        "{}: {} of {}, {}",
        show_path(census.src()),
        quantity::counted(census.files(), "image file", "image files"),
        quantity::counted(census.classes().len() as u64, "class", "classes"),
        quantity::bytes(census.bytes()),
    ));
    console.blank();
    let mut table = Table::new(&[
        ("split", Align::Left),
        ("files", Align::Right),
        ("bytes", Align::Right),
        ("classes", Align::Right),
        ("files in a class", Align::Left),
    ]);
    let mut sizes = Histogram::default();
    for split in census.splits() {
        let mut split_sizes = Histogram::default();
        for entry in split.iter() {
            split_sizes.add(entry.size);
            sizes.add(entry.size);
        }
        let counts = split.class_counts();
        let each = counts.iter().map(|(_, files)| *files);
        let (least, most) = (each.clone().min().unwrap_or(0), each.max().unwrap_or(0));
        table.row([
            split.name().to_owned(),
            quantity::count(split.len()),
            quantity::bytes(split.bytes()),
            quantity::count(counts.len() as u64),
            if least == most {
                quantity::count(least)
            } else {
                format!("{} to {}", quantity::count(least), quantity::count(most))
            },
        ]);
        console.event(
            "census",
            &json!({
                "name": split.name().to_owned(),
                "files": split.len(),
                "bytes": split.bytes(),
                "classes": counts.len(),
                "sizes": split_sizes.buckets(),
            }),
        );
    }
    console.table(&table);
    if let Some(origin) = census.classes().origin() {
        console.line(format!("  labels follow {}", show_path(origin)));
    }
    if let Some(class) = census.classes().get(0) {
        console.line(format!(
            "  label {} is {}",
            prepared.options().label_base,
            printable_bytes(&class.name)
        ));
    }
    console.blank();
    console.heading("Sizes");
    for line in sizes.lines(BAR_WIDTH) {
        console.line(line);
    }
    print_findings(findings, console);
}

fn print_findings(findings: &[Finding], console: &Console) {
    if findings.is_empty() {
        return;
    }
    console.blank();
    console.heading(format!(
        "{} besides",
        quantity::counted(findings.len() as u64, "file", "files")
    ));
    for finding in findings.iter().take(SHOWN_FINDINGS) {
        let fate = super::fate(finding.action);
        console.line(format!("  {fate}: {}", printable(&finding.to_string())));
    }
    if let Some(more) = findings.len().checked_sub(SHOWN_FINDINGS)
        && more > 0
    {
        console.line(format!("  and {} more", quantity::count(more as u64)));
    }
}

fn print_plan(prepared: &Prepared, console: &Console) {
    let plan = prepared.plan();
    console.heading(format!(
        "Plan: {}, about {}",
        quantity::counted(plan.shard_count(), "shard", "shards"),
        quantity::bytes(plan.bytes()),
    ));
    let mut table = Table::new(&[
        ("shard", Align::Left),
        ("records", Align::Right),
        ("bytes, about", Align::Right),
    ]);
    for index in 0..plan.splits().len() {
        let shards: Vec<PlannedShard> = plan
            .shards()
            .filter(|shard| shard.split == index)
            .map(|shard| PlannedShard {
                name: shard.name,
                records: shard.positions.end - shard.positions.start,
                bytes: shard.bytes,
            })
            .collect();
        let hidden = shards.len().saturating_sub(SHOWN_SHARDS);
        for (number, shard) in shards.iter().enumerate() {
            console.event("planned_shard", shard);
            // The list ends with the last shard, whose name shows the total count.
            if hidden == 0 || number + 1 < SHOWN_SHARDS || number + 1 == shards.len() {
                table.row([
                    shard.name.clone(),
                    quantity::count(shard.records),
                    quantity::bytes(shard.bytes),
                ]);
            } else if number + 1 == SHOWN_SHARDS {
                table.row([
                    format!("... {} more", quantity::count(hidden as u64)),
                    String::new(),
                ]);
            }
        }
    }
    console.table(&table);
}
