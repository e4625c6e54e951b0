//! Plans a copy, prints the plan or executes it, and reports the result.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use clap::Args as ClapArgs;
use forebay_pack::copy::{
    Compare, CopyAction, CopyError, CopyMode, CopyObserver, CopyOptions, CopyPlan, CopySummary,
    CopyTarget,
};
use forebay_store::{Cancel, Limiter, Location, ObjectOrTree, StoreOptions, Traffic};
use serde_json::json;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::paint::printable;
use crate::progress::Bar;
use crate::quantity::{self, parse_size};
use crate::store_args::{Setting, StoreArgs, parse_pair};

/// Options of how objects are copied.
#[derive(Debug, ClapArgs)]
pub(super) struct How {
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,

    /// How to detect unchanged objects: by stored checksums, or by reading objects that have none
    #[arg(
        long,
        value_name = "WHICH",
        default_value = "stored",
        hide_possible_values = true,
        help = "How to detect unchanged objects: by stored checksums, or by reading objects that have none [stored, read]"
    )]
    checksum: Checksum,

    /// Replace another dataset at DST; its readers will notice
    #[arg(long)]
    overwrite: bool,

    /// Bytes a second at most, of all transfers together
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    bandwidth: Option<u64>,

    /// Number of concurrent transfers of objects and parts of objects
    #[arg(short, long, value_name = "N", default_value = "16")]
    jobs: NonZeroUsize,

    /// Directory for objects on the way from store to store [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,

    /// A setting of DST's store, where it is not that of SRC's
    #[arg(
        long = "to-storage-option",
        value_name = "KEY=VALUE",
        value_parser = parse_pair,
        help_heading = "Destination"
    )]
    to_storage_options: Vec<(String, Setting)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Checksum {
    Stored,
    Read,
}

/// The arguments of a copy.
pub(super) struct Job<'a> {
    pub(super) source: &'a Path,
    pub(super) destination: &'a Path,
    /// Whether to copy directories that are not datasets.
    pub(super) recursive: bool,
    pub(super) delete: bool,
    pub(super) how: &'a How,
    pub(super) store: &'a StoreArgs,
}

impl Job<'_> {
    fn options(&self) -> CopyOptions {
        let mut options = CopyOptions::default();
        options.mode = match self.delete {
            true => CopyMode::Sync,
            false => CopyMode::Copy,
        };
        options.compare = match self.how.checksum {
            Checksum::Stored => Compare::Stored,
            Checksum::Read => Compare::Read,
        };
        options.delete = self.delete;
        options.overwrite = self.how.overwrite;
        options.parallel = self.how.jobs.get();
        options.limiter = self.how.bandwidth.map(|rate| Limiter::new(Some(rate)));
        options.scratch.clone_from(&self.how.scratch);
        options
    }

    /// Returns the store options of the destination: those of the source, overridden by `--to-storage-option`.
    fn target_options(&self, from: &Location, to: &Location, console: &Console) -> StoreOptions {
        let mut options = self.store.options_until(console);
        // An endpoint or region is valid for one kind of store only.
        if from.is_remote() && from.scheme() != to.scheme() {
            (options.endpoint, options.region) = (None, None);
        }
        for (name, value) in &self.how.to_storage_options {
            match name.as_str() {
                "endpoint" => options.endpoint = Some(value.get()),
                "region" => options.region = Some(value.get()),
                _ => options = options.with(name, value.get()),
            }
        }
        options
    }

    /// Returns an error for a directory that is no dataset, unless `-r` was given.
    fn refuse_plain_directory(
        &self,
        plan: &CopyPlan,
        source: &ObjectOrTree,
    ) -> Result<(), Failure> {
        if self.recursive || source.object().is_some() || plan.datasets().any(|d| d.root.is_empty())
        {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{} is a directory, and not a dataset",
            printable(&self.source.display().to_string())
        ))
        .hint("-r copies everything below it"))
    }
}

/// Shows the progress of a copy.
struct Watch<'a> {
    console: &'a Console,
    bar: Bar,
    noun: &'static str,
    /// Time of the last `progress` event.
    told: Mutex<Instant>,
}

impl<'a> Watch<'a> {
    fn new(console: &'a Console, stage: &str, noun: &'static str, total: Option<u64>) -> Self {
        Self {
            console,
            bar: console.bar(stage, total),
            noun,
            told: Mutex::new(Instant::now()),
        }
    }

    fn advance(&self, objects: u64, bytes: u64) {
        let (objects, bytes) = self.bar.add(objects, bytes, self.noun);
        if !self.console.is_json() {
            return;
        }
        if let Ok(mut told) = self.told.try_lock()
            && told.elapsed() >= Console::EVENT_INTERVAL
        {
            *told = Instant::now();
            self.console
                .event("progress", &json!({"objects": objects, "bytes": bytes}));
        }
    }
}

impl CopyObserver for Watch<'_> {
    fn stage(&self, stage: &'static str) {
        self.console.event("stage", &json!({"stage": stage}));
    }

    fn compared(&self, bytes: u64) {
        self.advance(0, bytes);
    }

    fn moved(&self, bytes: u64) {
        self.advance(0, bytes);
    }

    fn done(&self, key: &str, bytes: u64, action: CopyAction) {
        if action != CopyAction::Keep {
            self.advance(1, 0);
        }
        let line = format!("{} {}", verb(action), printable(key));
        // Deletions are printed even without --verbose.
        if action == CopyAction::Delete {
            self.console.line(&line);
        } else {
            self.console.detail(&line);
        }
        self.console.event(
            "object",
            &json!({
                "action": action,
                "key": key,
                "bytes": bytes,
                "why": null,
            }),
        );
    }

    fn damaged(&self, key: &str, problem: &str) {
        self.console.warning(format!(
            "{} is damaged and was not copied: {problem}",
            printable(key)
        ));
        self.console
            .event("damaged", &json!({"key": key, "problem": problem}));
    }
}

fn verb(action: CopyAction) -> &'static str {
    match action {
        CopyAction::Copy => "copy",
        CopyAction::Keep => "keep",
        CopyAction::Publish => "publish",
        CopyAction::Delete => "delete",
    }
}

pub(super) fn run(job: &Job<'_>, console: &Console) -> Result<Outcome, Failure> {
    let from = Location::parse(job.source)?;
    let to = Location::parse(job.destination)?;
    let target_options = job.target_options(&from, &to, console);
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    let before = Traffic::of_this_process();
    let source = ObjectOrTree::find(&from, &job.store.options_until(console))?;
    let target = CopyTarget::find(&to, &source, &target_options)?;
    let plan = {
        let watch = Watch::new(console, "comparing", "objects", None);
        CopyPlan::make(source.clone(), target, job.options(), &watch, &cancel)?
    };
    job.refuse_plain_directory(&plan, &source)?;
    for left in plan.left_out() {
        console.warning(format!(
            "{} is not copied: {}",
            printable(&left.path),
            left.why
        ));
        let (path, why) = (left.path.as_str(), left.why);
        console.event("left_out", &json!({"path": path, "why": why}));
    }
    let outcome = match plan.left_out().is_empty() {
        true => Outcome::Done,
        false => Outcome::SomeUnreadable,
    };
    for (root, goes_first) in plan.replaced() {
        let place = if root.is_empty() {
            String::new()
        } else {
            format!(" in {}", printable(root))
        };
        console.warning(if goes_first {
            format!("another dataset is replaced{place}: its manifest goes first, and readers that have it open will find other bytes")
        } else {
            format!("another dataset is replaced{place}: readers that have it open go on, as long as its files stay")
        });
    }
    if job.how.dry_run {
        show(&plan, outcome, console);
        return Ok(outcome);
    }
    let (_, bytes) = plan.to_move();
    let watch = Watch::new(console, "copying", "objects", Some(bytes));
    let done = plan.run(&watch, &cancel);
    drop(watch);
    let summary = done?;
    print(&summary, &plan, &Traffic::since(&before), outcome, console);
    Ok(outcome)
}

/// Returns the fingerprints of the datasets to copy.
fn fingerprints(plan: &CopyPlan) -> Vec<String> {
    plan.datasets()
        .map(|dataset| dataset.manifest.fingerprint.clone())
        .collect()
}

/// Prints the plan of a dry run.
fn show(plan: &CopyPlan, outcome: Outcome, console: &Console) {
    let mut kept = (0, 0);
    for item in plan.items() {
        let (key, bytes, action, why) = (item.key.as_str(), item.bytes, item.action, item.why);
        if action == CopyAction::Keep {
            kept = (kept.0 + 1, kept.1 + bytes);
        } else {
            console.line(format!("would {} {}", verb(action), printable(key)));
        }
        console.event(
            "object",
            &json!({
                "action": action,
                "key": key,
                "bytes": bytes,
                "why": why,
            }),
        );
    }
    for object in plan.deletions() {
        let (key, bytes, action) = (object.key.as_str(), object.len, CopyAction::Delete);
        console.line(format!("would delete {}", printable(key)));
        console.event(
            "object",
            &json!({
                "action": action,
                "key": key,
                "bytes": bytes,
                "why": null,
            }),
        );
    }
    let (objects, bytes) = plan.to_move();
    let deletions = plan.deletions();
    console.heading(format!(
        "Would copy {} of {}, keep {}, delete {}",
        quantity::counted(objects, "object", "objects"),
        quantity::bytes(bytes),
        quantity::count(kept.0),
        quantity::count(deletions.len() as u64),
    ));
    console.event(
        "summary",
        &json!({
            "command": "cp",
            "exit_code": outcome.exit_code(),
            "dry_run": true,
            "stores": [],
            "objects": objects,
            "bytes": bytes,
            "kept": kept.0,
            "kept_bytes": kept.1,
            "deleted": deletions.len() as u64,
            "deleted_bytes": deletions.iter().map(|object| object.len).sum::<u64>(),
            "datasets": fingerprints(plan),
            "published": 0,
            "seconds": 0.0,
        }),
    );
}

fn print(
    summary: &CopySummary,
    plan: &CopyPlan,
    stores: &[Traffic],
    outcome: Outcome,
    console: &Console,
) {
    let mut line = format!(
        "Copied {} of {} in {} ({})",
        quantity::counted(summary.copied, "object", "objects"),
        quantity::bytes(summary.copied_bytes),
        quantity::duration(summary.time),
        quantity::byte_rate(summary.copied_bytes, summary.time),
    );
    if summary.copied == 0 {
        line = "All of it is there already".to_owned();
    }
    console.heading(line);
    if summary.copied > 0 && summary.kept > 0 {
        console.line(format!(
            "  {} of {} there already",
            quantity::counted(summary.kept, "object", "objects"),
            quantity::bytes(summary.kept_bytes),
        ));
    }
    if summary.deleted > 0 {
        console.line(format!(
            "  {} of {} deleted",
            quantity::counted(summary.deleted, "object", "objects"),
            quantity::bytes(summary.deleted_bytes),
        ));
    }
    for dataset in plan.datasets() {
        let records: u64 = dataset
            .manifest
            .splits
            .iter()
            .map(|split| split.records)
            .sum();
        let at = match dataset.root.as_str() {
            "" => String::new(),
            root => format!(" {}", printable(root)),
        };
        console.line(format!(
            "  dataset{at} of {}, fingerprint {}",
            quantity::counted(records, "record", "records"),
            dataset.manifest.fingerprint,
        ));
    }
    for traffic in stores {
        let usage = &traffic.usage;
        console.line(format!(
            "  {}: {}, {} received, {} sent: {}",
            printable(&traffic.store),
            quantity::counted(usage.requests(), "request", "requests"),
            quantity::bytes(usage.received_bytes),
            quantity::bytes(usage.sent_bytes),
            printable(&traffic.price()),
        ));
    }
    let stores = stores.iter().map(|traffic| {
        json!({
            "store": &traffic.store,
            "requests": traffic.usage.requests(),
            "gets": traffic.usage.gets,
            "puts": traffic.usage.puts,
            "received_bytes": traffic.usage.received_bytes,
            "sent_bytes": traffic.usage.sent_bytes,
            "cost": traffic.cost,
            "prices": traffic.tariff.origin(),
        })
    });
    console.event(
        "summary",
        &json!({
            "command": "cp",
            "exit_code": outcome.exit_code(),
            "dry_run": false,
            "stores": stores.collect::<Vec<_>>(),
            "objects": summary.copied,
            "bytes": summary.copied_bytes,
            "kept": summary.kept,
            "kept_bytes": summary.kept_bytes,
            "deleted": summary.deleted,
            "deleted_bytes": summary.deleted_bytes,
            "datasets": fingerprints(plan),
            "published": summary.published,
            "seconds": summary.time.as_secs_f64(),
        }),
    );
}

impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Self {
        let hint = error.hint().map(str::to_owned);
        match error {
            CopyError::Store(error) => Self::from(error),
            CopyError::Manifest(error) => Self::from(error),
            CopyError::Interrupted { .. } => Self::interrupted(error.to_string()).maybe_hint(hint),
            error => Self::from_error(&error).maybe_hint(hint),
        }
    }
}
