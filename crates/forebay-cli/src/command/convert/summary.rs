//! The summary that `convert` and `index` print.

use forebay_pack::{Account, ConvertSummary};
use serde_json::json;

use crate::account;
use crate::command::images::fast_in_words;
use crate::console::Console;
use crate::input::show;
use crate::paint::printable;
use crate::quantity;
use crate::staging_args;

/// The verb of the summary: `convert` or `index` did the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Converted,
    Indexed,
}

/// Prints the summary as text, and as an event for `--json`.
pub(crate) fn print(summary: &ConvertSummary, verb: Verb, console: &Console) {
    let records = summary.splits.iter().map(|split| split.records).sum();
    let shards = summary.splits.iter().map(|split| split.shards).sum();
    text(summary, verb, (records, shards), console);
    event(summary, verb, (records, shards), console);
}

fn text(summary: &ConvertSummary, verb: Verb, (records, shards): (u64, u64), console: &Console) {
    let root = show(&summary.root);
    console.heading(if summary.already_complete {
        format!("{root} is complete already: the same conversion of the same source")
    } else {
        format!(
            "{verb:?} {} of {} into {} in {} ({})",
            quantity::counted(records, "record", "records"),
            quantity::bytes(summary.source_bytes),
            quantity::counted(shards, "shard", "shards"),
            quantity::duration(summary.time),
            quantity::byte_rate(summary.source_bytes, summary.time),
        )
    });
    for split in &summary.splits {
        console.line(format!(
            "  {}: {} in {}, {}",
            split.name,
            quantity::counted(split.records, "record", "records"),
            quantity::counted(split.shards, "shard", "shards"),
            quantity::bytes(split.bytes),
        ));
    }
    if summary.resumed_shards > 0 {
        console.line(format!(
            "  {} of an earlier run checked and kept",
            quantity::counted(summary.resumed_shards, "shard", "shards"),
        ));
    }
    if summary.seek_points.images > 0 {
        console.line(format!(
            "  seek points of {}, {}",
            quantity::counted(summary.seek_points.images, "image", "images"),
            quantity::bytes(summary.seek_points.bytes),
        ));
    }
    if let Some(uploaded) = &summary.uploaded {
        console.line(format!("  uploaded {}", staging_args::in_words(uploaded)));
    }
    let progressive = summary.progressive;
    if progressive.changed + progressive.left > 0 {
        console.line(format!(
            "  {} made baseline, {} left alone",
            quantity::counted(
                progressive.changed,
                "progressive image",
                "progressive images"
            ),
            quantity::count(progressive.left),
        ));
    }
    if let Some(line) = fast_in_words(&summary.fast) {
        console.line(format!("  {line}"));
    }
    let report = show(&summary.root.join("pack/report.jsonl"));
    if summary.changed_keys > 0 {
        console.line(format!(
            "  {} with other keys than before, since the format cannot hold those: see {report}",
            quantity::counted(summary.changed_keys, "record", "records"),
        ));
    }
    for warning in &summary.warnings {
        console.warning(printable(warning));
    }
    if let Some(account) = &summary.account {
        account::print(account, &summary.classes, console);
        for example in &summary.examples {
            console.warning_detail(printable(&example.to_string()));
        }
        if account.left_out_count() > 0 {
            console.warning_detail(format!("all are listed in {report}"));
        }
    }
    if summary.unread_files > 0 {
        console.line(format!(
            "  {} that no index names not read: see {}",
            quantity::counted(summary.unread_files, "file", "files"),
            show(&summary.root.join("pack/report.jsonl")),
        ));
    }
    console.line(format!(
        "  manifest {}",
        show(&summary.root.join(summary.manifest))
    ));
    console.line(format!("  fingerprint {}", summary.fingerprint));
}

fn event(summary: &ConvertSummary, verb: Verb, (records, shards): (u64, u64), console: &Console) {
    let command = match verb {
        Verb::Converted => "convert",
        Verb::Indexed => "index",
    };
    let mut event = json!({
        "command": command,
        "exit_code": account::outcome(summary.account.as_ref()).exit_code(),
        "root": summary.root.display().to_string(),
        "fingerprint": summary.fingerprint,
        "records": records,
        "shards": shards,
        "source_bytes": summary.source_bytes,
        "shard_bytes": summary.splits.iter().map(|split| split.bytes).sum::<u64>(),
        "seek_point_images": summary.seek_points.images,
        "seek_point_bytes": summary.seek_points.bytes,
        "progressive_changed": summary.progressive.changed,
        "progressive_left": summary.progressive.left,
        "fast_images": summary.fast.images,
        "fast_left": summary.fast.left,
        "skipped": summary.account.as_ref().map_or(0, Account::left_out_count),
        "unread_files": summary.unread_files,
        "account": summary.account,
        "warnings": summary.warnings,
        "changed_keys": summary.changed_keys,
        "notes": summary.notes,
        "already_complete": summary.already_complete,
        "resumed_shards": summary.resumed_shards,
        "seconds": summary.time.as_secs_f64(),
    });
    if let Some(uploaded) = &summary.uploaded {
        event["uploaded"] = json!({"files": uploaded.files, "bytes": uploaded.bytes});
    }
    console.event("summary", &event);
}
