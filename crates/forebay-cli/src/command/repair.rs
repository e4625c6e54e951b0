//! `forebay repair`: copies the intact records of a damaged dataset into a new dataset.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use forebay_cache::ReadOptions;
use forebay_pack::{Cancel, RepairOptions, RepairSummary, repair};
use forebay_store::Location;
use serde_json::json;

use super::convert::Watch;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::{MANIFEST, show};
use crate::paint::printable;
use crate::quantity;
use crate::staging_args::StagingArgs;
use crate::store_args::StoreArgs;

/// Maximum number of lost ranges of records to print; the report lists all of them.
const LOST_SHOWN: usize = 20;

/// Copy the intact records of a damaged dataset, and list the lost ones
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Reads the dataset in SRC whatever of it is damaged (records, blocks, indexes, missing shards, the
manifest) and writes every intact record into DST: the same splits, shards, format and order. SRC is
not changed. Lost records are listed with shard, number, byte and length here and in
DST/pack/report.jsonl. The result passes `forebay verify`. An interrupted repair continues with the
same command.

Exit codes: 0 when no record is lost, 3 when some are.

Examples:
  forebay repair shards/ repaired/
  forebay repair s3://bucket/shards repaired/
  forebay repair shards/ repaired/ --label-base 0     the manifest is lost, and labels count from 0")]
pub(crate) struct Args {
    /// The damaged dataset: a directory, or a URL of a store
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// The repaired dataset: a directory or a URL that is missing or empty
    #[arg(value_name = "DST")]
    destination: PathBuf,

    /// Label of the first class, if the manifest is lost
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(i64).range(0..=1))]
    label_base: i64,

    /// Shards written at the same time [default: the cores of the machine or container]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Replace the dataset, or the unfinished one, that is in DST
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    staging: StagingArgs,

    #[command(flatten)]
    store: StoreArgs,
}

impl Args {
    fn config(&self, console: &Console) -> Result<RepairOptions, Failure> {
        let (src, dst) = (&self.source, &self.destination);
        let mut options = RepairOptions::new(Location::parse(src)?, Location::parse(dst)?);
        options.label_base = self.label_base;
        let convert = &mut options.convert;
        convert.read = ReadOptions::new(self.store.options_until(console));
        convert.jobs = self.jobs.map(NonZeroUsize::get);
        convert.overwrite = self.overwrite;
        let is_remote = convert.dst.is_remote();
        self.staging.apply(&mut convert.upload, is_remote);
        convert.upload.store = self.store.options_until(console);
        Ok(options)
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let options = args.config(console)?;
    let watch = Watch::start(console, "repairing", None);
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    let summary = repair(&options, &watch, &cancel)?;
    drop(watch);
    let outcome = match summary.lost_places {
        0 => Outcome::Done,
        _ => Outcome::SomeUnreadable,
    };
    print(&summary, outcome, console);
    Ok(outcome)
}

fn print(summary: &RepairSummary, outcome: Outcome, console: &Console) {
    let converted = &summary.converted;
    let root = show(&converted.root);
    let records: u64 = converted.splits.iter().map(|split| split.records).sum();
    let shards: u64 = converted.splits.iter().map(|split| split.shards).sum();
    for note in &summary.notes {
        console.warning(printable(note));
    }
    for lost in summary.lost.iter().take(LOST_SHOWN) {
        console.line(printable(&lost.to_string()));
    }
    if summary.lost.len() > LOST_SHOWN {
        let more = (summary.lost.len() - LOST_SHOWN) as u64;
        console.line(format!(
            "and {} more",
            quantity::counted(more, "place", "places")
        ));
    }
    for lost in &summary.lost {
        console.event("lost", lost);
    }
    console.heading(if converted.already_complete {
        format!("{root} is complete already: the same repair of the same source")
    } else {
        format!(
            "Repaired {} into {root}: {} in {} kept, {} lost",
            quantity::bytes(converted.source_bytes),
            quantity::counted(records, "record", "records"),
            quantity::counted(shards, "shard", "shards"),
            match (summary.lost_records, summary.lost_places) {
                (0, 1..) => "an unknown number".to_owned(),
                (lost, _) => quantity::count(lost),
            },
        )
    });
    if converted.resumed_shards > 0 {
        console.line(format!(
            "  {} of an earlier run checked and kept",
            quantity::counted(converted.resumed_shards, "shard", "shards"),
        ));
    }
    if let Some(report) = &summary.report {
        console.line(format!("  report {}", show(report)));
    }
    console.line(format!(
        "  manifest {}",
        show(&converted.root.join(MANIFEST))
    ));
    console.line(format!("  fingerprint {}", converted.fingerprint));

    console.event(
        "summary",
        &json!({
            "command": "repair",
            "exit_code": outcome.exit_code(),
            "root": converted.root.display().to_string(),
            "fingerprint": &converted.fingerprint,
            "records": records,
            "shards": shards,
            "source_bytes": converted.source_bytes,
            "damage": summary.damage,
            "lost_records": summary.lost_records,
            "lost_places": summary.lost_places,
            "notes": &summary.notes,
            "already_complete": converted.already_complete,
            "resumed_shards": converted.resumed_shards,
            "seconds": converted.time.as_secs_f64(),
        }),
    );
}
