//! `forebay export`: writes the images of a dataset to files, byte for byte as they were packed.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use forebay_cache::ReadOptions;
use forebay_pack::{Cancel, ExportOptions, ExportSummary, Observer, SkippedRecord, export};
use forebay_store::Location;
use serde_json::json;

use super::checkpoint::{self, AreaArgs};
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::{Input, show};
use crate::paint::printable;
use crate::progress::Bar;
use crate::quantity;
use crate::store_args::StoreArgs;

/// Write the images of a dataset, or the files of a checkpoint, into a directory
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Each image goes to the path that its key says, byte for byte as it was packed. Files that are
there already are never overwritten; the same command again writes what is missing. Records that
cannot become files are skipped and listed, and the exit code is 3 (1 if any are damaged).

The files of a checkpoint are compared with their checksums; those of several ranks go to rank-N.

Examples:
  forebay export shards/ photos/
  forebay export shards/ photos/ --split validation
  forebay export s3://bucket/shards photos/
  forebay export s3://bucket/run/step-1000 step-1000/")]
pub(crate) struct Args {
    /// The dataset, the directory or URL that holds forebay.json; or a checkpoint
    #[arg(value_name = "DATASET|CHECKPOINT")]
    dataset: PathBuf,

    /// The directory to write to
    #[arg(value_name = "DST")]
    destination: PathBuf,

    /// Only this split, without a directory of its name
    #[arg(long, value_name = "NAME")]
    split: Option<String>,

    /// Shards read at the same time [default: the cores of the machine or container]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Only the files of this rank of a checkpoint, directly into DST
    #[arg(long, value_name = "N")]
    rank: Option<u32>,

    #[command(flatten)]
    area: AreaArgs,

    #[command(flatten)]
    store: StoreArgs,
}

struct Watch<'a> {
    console: &'a Console,
    bar: Bar,
}

impl Observer for Watch<'_> {
    fn advanced(&self, files: u64, bytes: u64) {
        self.bar.add(files, bytes, "files");
    }

    fn record_skipped(&self, skipped: &SkippedRecord) {
        let word = if skipped.damaged {
            "damaged"
        } else {
            "skipped"
        };
        let line = printable(&skipped.to_string());
        self.console.line(format!("{word}  {line}"));
        self.console.event("skipped", skipped);
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let store = args.store.options_until(console);
    let dataset = match Input::dataset(&args.dataset, &store) {
        Ok(dataset) => dataset,
        Err(failure) => {
            let found = args.area.instead(&args.dataset, &store, failure)?;
            return checkpoint::export(&found, &args.destination, args.rank, console);
        }
    };
    let manifest = dataset.manifest()?;
    let wanted = |name: &str| args.split.as_deref().is_none_or(|split| split == name);
    let splits = manifest.splits.iter().filter(|split| wanted(&split.name));
    let root = Location::parse(dataset.path())?;
    let mut options = ExportOptions::new(root, Location::parse(&args.destination)?);
    options.read = ReadOptions::new(store);
    options.split.clone_from(&args.split);
    options.jobs = args.jobs.map(NonZeroUsize::get);

    let started = Instant::now();
    let watch = Watch {
        console,
        // The total counts whole records, which are about 1 % larger than their images.
        bar: console.bar("exporting", Some(splits.map(|split| split.bytes).sum())),
    };
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    let summary = export(&options, &watch, &cancel)?;
    drop(watch);
    let elapsed = started.elapsed();
    print(&summary, elapsed, console);
    if summary.damaged > 0 {
        let first = summary.first_skipped.as_ref();
        return Err(Failure::new(format!(
            "{} could not be exported because of damage; the first record left out is {}",
            quantity::counted(summary.damaged, "record", "records"),
            first.map_or(String::new(), |first| printable(&first.to_string())),
        ))
        .hint("everything else is there; `forebay verify` shows what is damaged"));
    }
    Ok(match summary.skipped {
        0 => Outcome::Done,
        _ => Outcome::SomeUnreadable,
    })
}

fn print(summary: &ExportSummary, elapsed: Duration, console: &Console) {
    console.line(format!(
        "Exported {} of {} into {} in {} ({})",
        quantity::counted(summary.files, "file", "files"),
        quantity::bytes(summary.bytes),
        show(&summary.root),
        quantity::duration(elapsed),
        quantity::byte_rate(summary.bytes, elapsed),
    ));
    if summary.unchanged > 0 {
        console.line(format!(
            "{} there already, with the same bytes",
            quantity::counted(summary.unchanged, "file was", "files were"),
        ));
    }

    if summary.skipped > 0 {
        console.line(format!(
            "{} skipped, as listed above",
            quantity::counted(summary.skipped, "record was", "records were"),
        ));
    }

    let exit_code = match (summary.damaged, summary.skipped) {
        (0, 0) => 0,
        (0, _) => 3,
        _ => 1,
    };
    console.event(
        "summary",
        &json!({
            "command": "export",
            "exit_code": exit_code,
            "root": summary.root.display().to_string(),
            "files": summary.files,
            "bytes": summary.bytes,
            "unchanged": summary.unchanged,
            "skipped": summary.skipped,
            "damaged": summary.damaged,
            "seconds": elapsed.as_secs_f64(),
        }),
    );
}
