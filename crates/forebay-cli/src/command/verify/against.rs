//! `forebay verify --compare-source`: compares a dataset with the source from which it was packed.

use std::path::Path;

use forebay_pack::{Cancel, ComparisonReport, DifferenceKind, Observer, SourceComparison, Stage};
use forebay_store::{Location, StoreOptions};
use serde_json::{Value, json};

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::{Input, Kind};
use crate::paint::printable;
use crate::progress::Bar;
use crate::quantity;

/// Maximum number of differences of a kind to print. `--json` lists more of them.
const SHOWN: u64 = 20;

/// Returns the counts of a comparison, for `--json`.
pub(super) fn figures(report: &ComparisonReport) -> Value {
    json!({
        "files": report.files,
        "verbatim": report.verbatim,
        "remade": report.remade,
        "left_out": report.left_out,
        "missing": report.count(DifferenceKind::Missing),
        "extra": report.count(DifferenceKind::Extra),
        "doubled": report.count(DifferenceKind::Doubled),
        "changed": report.count(DifferenceKind::Changed),
        "unreadable": report.count(DifferenceKind::Unreadable),
    })
}

/// Shows the progress of the census.
struct Watch(Bar);

impl Observer for Watch {
    fn stage(&self, _stage: Stage) {}

    fn counted(&self, files: u64, bytes: u64) {
        self.0.add(files, bytes, "files");
    }
}

/// Takes a census of the source, and prepares the comparison. Returns an error unless exactly one dataset is verified.
pub(super) fn open(
    inputs: &[Input],
    source: &Path,
    store: &StoreOptions,
    console: &Console,
) -> Result<SourceComparison, Failure> {
    let [dataset] = inputs else {
        return Err(one_dataset());
    };
    if dataset.kind() != Kind::Dataset {
        return Err(one_dataset());
    }
    let watch = Watch(console.bar("census", None));
    let cancel = Cancel::from_flag(console.interrupt().flag());
    let source = Location::parse(source)?;
    let (root, storage) = (dataset.path(), dataset.shared_storage());
    let opened = SourceComparison::open(root, storage, source, store, &watch, &cancel);
    opened.map_err(|error| match error {
        forebay_pack::Error::Interrupted { .. } => {
            Failure::interrupted("the source was not yet looked at as a whole")
        }
        error => error.into(),
    })
}

fn one_dataset() -> Failure {
    Failure::usage("--compare-source goes with one dataset")
        .hint("name the directory that holds forebay.json")
}

pub(super) fn print(report: &ComparisonReport, console: &Console) {
    let mut shown = (None, 0);
    for difference in &report.differences {
        console.event("difference", difference);
        if shown.0 != Some(difference.kind) {
            shown = (Some(difference.kind), 0);
        }
        shown.1 += 1;
        if shown.1 <= SHOWN {
            let kind = format!("{:<8}", difference.kind.name());
            let line = printable(&difference.to_string());
            console.line(format!("{} {line}", console.paint().red(&kind)));
        } else if shown.1 == SHOWN + 1 {
            let more = report.count(difference.kind) - SHOWN;
            console.line(format!(
                "{:<8} and {} more",
                difference.kind.name(),
                quantity::count(more)
            ));
        }
    }
    let mut figures = vec![format!(
        "{} in one record each, byte for byte",
        quantity::counted(report.verbatim, "file is", "files are")
    )];
    for (count, text) in [
        (report.remade, "rewritten, as the report says"),
        (report.left_out, "left out as the report says"),
    ] {
        if count > 0 {
            figures.push(format!("{} {text}", quantity::count(count)));
        }
    }
    for (kind, count) in &report.counts {
        figures.push(format!("{} {}", quantity::count(*count), kind.name()));
    }
    let figures = format!(
        "of {} in the source: {}",
        quantity::counted(report.files, "file", "files"),
        figures.join(", ")
    );
    if report.counts.is_empty() {
        console.line(format!("{}  {figures}", console.paint().green("ok")));
    } else {
        console.line(figures);
    }
}

/// Returns the outcome of the command: an error if dataset and source differ.
pub(super) fn outcome(report: &ComparisonReport) -> Result<Outcome, Failure> {
    if report.is_ok() {
        return Ok(match report.count(DifferenceKind::Unreadable) {
            0 => Outcome::Done,
            _ => Outcome::SomeUnreadable,
        });
    }
    let wrong: Vec<String> = report
        .counts
        .iter()
        .map(|(kind, count)| format!("{} {}", quantity::count(*count), kind.name()))
        .collect();
    Err(Failure::new(format!(
        "the dataset is not what the source holds: {}",
        wrong.join(", ")
    ))
    .hint("pack again with --overwrite, or name the source that it was packed from"))
}
