//! The summary of a pack, as text and as an event for `--json`.

use std::path::Path;
use std::time::Duration;

use forebay_pack::{Action, Finding, Summary};
use serde_json::json;

use crate::account;
use crate::command::images::fast_in_words;
use crate::console::Console;
use crate::failure::Outcome;
use crate::input::{MANIFEST, show};
use crate::paint::printable;
use crate::quantity;
use crate::staging_args;
use crate::table::{Align, Table};

/// A summary of a pack to print.
pub(crate) struct Packed<'a> {
    summary: &'a Summary,
    /// Whether the dataset was published from parts by `--finish`.
    joined: bool,
}

impl<'a> Packed<'a> {
    pub(crate) fn new(summary: &'a Summary) -> Self {
        let joined = false;
        Self { summary, joined }
    }

    pub(crate) fn joined(summary: &'a Summary) -> Self {
        let joined = true;
        Self { summary, joined }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        match self.summary.skipped() {
            0 => account::outcome(self.summary.account.as_ref()),
            _ => Outcome::SomeUnreadable,
        }
    }

    /// Prints the summary on stdout, and warnings on stderr.
    pub(crate) fn print(&self, console: &Console) {
        let summary = self.summary;
        for warning in &summary.warnings {
            console.warning(printable(warning));
        }
        self.print_for_people(console);
        self.event(console);
    }

    fn print_for_people(&self, console: &Console) {
        let summary = self.summary;
        let root = show(&summary.root);
        console.heading(if summary.already_complete {
            format!("{root} is complete already: the same pack of the same source")
        } else {
            format!(
                "Packed {} of {} into {root}",
                quantity::counted(summary.records(), "image", "images"),
                quantity::counted(summary.classes, "class", "classes"),
            )
        });
        console.blank();
        let mut table = Table::new(&[
            ("split", Align::Left),
            ("records", Align::Right),
            ("shards", Align::Right),
            ("bytes", Align::Right),
        ]);
        for split in &summary.splits {
            table.row([
                split.name.clone(),
                quantity::count(split.records),
                quantity::count(split.shards),
                quantity::bytes(split.bytes),
            ]);
        }
        console.table(&table);
        console.blank();
        let mut facts = Table::new(&[("", Align::Left), ("", Align::Left)]);
        if self.joined && !summary.already_complete {
            facts.row([
                "joined".to_owned(),
                format!(
                    "{} of all parts checked in {}",
                    quantity::counted(summary.resumed_shards, "shard", "shards"),
                    quantity::duration(summary.write_time),
                ),
            ]);
        } else if !summary.already_complete {
            let (files, bytes) = (summary.packed_files, summary.packed_bytes);
            let time = time(summary.census_time, summary.write_time, files, bytes);
            facts.row(["time".to_owned(), time]);
        }
        if summary.resumed_shards > 0 && !self.joined {
            facts.row([
                "continued".to_owned(),
                format!(
                    "{} of an earlier run checked and kept",
                    quantity::counted(summary.resumed_shards, "shard", "shards")
                ),
            ]);
        }
        if let Some(uploaded) = &summary.uploaded {
            facts.row(["uploaded".to_owned(), staging_args::in_words(uploaded)]);
        }
        if let Some(line) = fast_in_words(&summary.fast) {
            facts.row(["images".to_owned(), line]);
        }
        let progressive = summary.progressive;
        if progressive.changed + progressive.left > 0 {
            facts.row([
                "progressive".to_owned(),
                format!(
                    "{} made baseline, {} left alone",
                    quantity::count(progressive.changed),
                    quantity::count(progressive.left),
                ),
            ]);
        }
        let points = summary.seek_points;
        if points.images > 0 {
            facts.row([
                "seek points".to_owned(),
                format!(
                    "of {}, {} ({:.1} % of the images)",
                    quantity::counted(points.images, "image", "images"),
                    quantity::bytes(points.bytes),
                    points.bytes as f64 * 100.0 / summary.image_bytes.max(1) as f64,
                ),
            ]);
        }
        if let Some(report) = &summary.report {
            facts.row(["report".to_owned(), self.findings(report)]);
        }
        facts.row(["manifest".to_owned(), show(&summary.root.join(MANIFEST))]);
        facts.row(["fingerprint".to_owned(), summary.fingerprint.clone()]);
        console.table(&facts);
        if let Some(account) = &summary.account {
            console.blank();
            account::print(account, &summary.class_names, console);
        }
        print_skipped(summary.skipped(), &summary.skipped_examples, console);
    }

    fn findings(&self, report: &Path) -> String {
        let count = |action: Action| -> u64 {
            self.summary
                .findings
                .iter()
                .filter(|((found, _), _)| *found == action)
                .map(|(_, files)| files)
                .sum()
        };
        let parts: Vec<String> = [
            (Action::Skipped, "skipped"),
            (Action::Quarantined, "in quarantine"),
            (Action::Resized, "made smaller"),
            (Action::Converted, "converted"),
            (Action::Ignored, "ignored"),
            (Action::Kept, "kept with a remark"),
        ]
        .into_iter()
        .map(|(action, text)| (count(action), text))
        .filter(|(files, _)| *files > 0)
        .map(|(files, text)| format!("{} {text}", quantity::count(files)))
        .collect();
        if parts.is_empty() {
            show(report)
        } else {
            format!("{} ({})", show(report), parts.join(", "))
        }
    }

    fn event(&self, console: &Console) {
        let summary = self.summary;
        let splits = summary.splits.iter().map(|split| {
            json!({
                "name": split.name,
                "records": split.records,
                "shards": split.shards,
                "bytes": split.bytes,
            })
        });
        let findings = summary.findings.iter().map(
            |((action, reason), files)| json!({"action": action, "reason": reason, "files": files}),
        );
        let mut event = json!({
            "command": "pack",
            "exit_code": self.outcome().exit_code(),
            "root": summary.root.display().to_string(),
            "fingerprint": summary.fingerprint,
            "splits": splits.collect::<Vec<_>>(),
            "records": summary.records(),
            "classes": summary.classes,
            "image_bytes": summary.image_bytes,
            "shard_bytes": summary.shard_bytes(),
            "seek_point_images": summary.seek_points.images,
            "seek_point_bytes": summary.seek_points.bytes,
            "progressive_changed": summary.progressive.changed,
            "progressive_left": summary.progressive.left,
            "fast_images": summary.fast.images,
            "fast_left": summary.fast.left,
            "skipped": summary.skipped(),
            "account": summary.account,
            "findings": findings.collect::<Vec<_>>(),
            "report": summary.report.as_ref().map(|path| path.display().to_string()),
            "warnings": summary.warnings,
            "already_complete": summary.already_complete,
            "resumed_shards": summary.resumed_shards,
            "packed_files": summary.packed_files,
            "packed_bytes": summary.packed_bytes,
            "census_seconds": summary.census_time.as_secs_f64(),
            "write_seconds": summary.write_time.as_secs_f64(),
        });
        if let Some(uploaded) = &summary.uploaded {
            event["uploaded"] = json!({"files": uploaded.files, "bytes": uploaded.bytes});
        }
        console.event("summary", &event);
    }
}

/// Formats the durations of census and writing, and the rates of writing.
pub(super) fn time(census: Duration, write: Duration, files: u64, bytes: u64) -> String {
    format!(
        "census {}, writing {} ({} files/s, {})",
        quantity::duration(census),
        quantity::duration(write),
        quantity::rate(files, write),
        quantity::byte_rate(bytes, write),
    )
}

/// Prints skipped files on stderr, since they are the reason for exit code 3.
pub(super) fn print_skipped(skipped: u64, examples: &[Finding], console: &Console) {
    if skipped == 0 {
        return;
    }
    console.warning(format!(
        "{} could not be packed and {} left out:",
        quantity::counted(skipped, "file", "files"),
        if skipped == 1 { "was" } else { "were" },
    ));
    for finding in examples {
        console.warning_detail(printable(&finding.to_string()));
    }
    let more = skipped.saturating_sub(examples.len() as u64);
    if more > 0 {
        console.warning_detail(format!("and {} more, in the report", quantity::count(more)));
    }
}
