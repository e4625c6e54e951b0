//! `forebay quickstart`: packs, verifies and streams a few images, from files to decoded batches.

mod pictures;
mod place;
mod report;
mod stream;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args as ClapArgs;
use forebay_pack::{Cancel, DatasetFormat, PackOptions, Prepared, Sharding, Summary, prepare};

use super::pack::Watch;
use super::verify::verify;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::{Input, show};
use crate::paint::printable;
use crate::quantity;

use place::OutputDir;
use report::{PackFigures, Report};

/// Sources below this size get [`SMALL_SOURCE_SHARDS`] shards, since automatic sharding would make only one.
const SMALL_SOURCE_BYTES: u64 = 64 << 20;
const SMALL_SOURCE_SHARDS: u32 = 2;

/// Source size in bytes from which quickstart warns about the amount of data that it is going to write.
const LARGE_SOURCE_BYTES: u64 = 4 << 30;

/// Pack, verify and load a few example images
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Packs a directory of images into TFRecord shards and into indexed shards, verifies both,
starts a server on this machine, streams one epoch of decoded batches from it, and shows what
all of that took and a contact sheet of the first batch.

Examples:
  forebay quickstart                      a few generated images
  forebay quickstart photos/              your own: <class>/<file> or <split>/<class>/<file>
  forebay quickstart photos/ --output /tmp/try")]
pub(crate) struct Args {
    /// The directory of images [default: testdata/images if there is one, else generated images]
    #[arg(value_name = "IMAGE_DIR")]
    images: Option<PathBuf>,

    /// Output directory; quickstart replaces only its own files there
    #[arg(long, value_name = "DIR", default_value = "quickstart-out")]
    output: PathBuf,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let interrupt = console.interrupt().answer();
    let named = place::images(args.images.as_deref())?;
    let place = OutputDir::take(&args.output)?;
    let source = match named {
        Some(source) => source,
        None => {
            pictures::write(&place.images())?;
            place.images()
        }
    };
    console.note(format!("Images from {}", show(&source)));

    let mut packs = Vec::new();
    let mut packed = None;
    for (format, name, root) in [
        (DatasetFormat::TfRecord, "TFRecord", place.tfrecord()),
        (DatasetFormat::INDEXED, "indexed", place.indexed()),
    ] {
        console.note(format!("Packing into {name} shards, then verifying them"));
        let (figures, summary) = pack_and_verify(&source, root, format, name, console)?;
        packs.push(figures);
        packed.get_or_insert(summary);
    }
    let Some(packed) = packed else {
        return Err(Failure::new("nothing was packed"));
    };

    console.note("Serving them on this machine, and streaming one epoch");
    let streamed = stream::one_epoch(&place, interrupt, console)?;

    let program = console.program();
    let report = Report {
        records: packed.records(),
        skipped: packed.skipped(),
        classes: packed.classes,
        packs,
        stream: streamed,
        contact_sheet: place.contact_sheet(),
        next: [
            format!("{program} inspect {} --deep", show(&place.tfrecord())),
            format!("{program} serve {}", show(&place.tfrecord())),
            format!("{program} pack YOUR_IMAGES shards"),
        ],
    };
    report.print(console);
    Ok(if report.skipped > 0 {
        for finding in &packed.skipped_examples {
            console.warning(format!("skipped {}", printable(&finding.to_string())));
        }
        Outcome::SomeUnreadable
    } else {
        Outcome::Done
    })
}

fn pack_and_verify(
    source: &Path,
    root: PathBuf,
    format: DatasetFormat,
    name: &'static str,
    console: &Console,
) -> Result<(PackFigures, Summary), Failure> {
    let cancel = Cancel::from_flag(console.interrupt().flag());
    let mut options = PackOptions::new(source, root.as_path());
    options.format = format;
    // `OutputDir::take` has removed the datasets of an earlier run, so only files of quickstart can be overwritten.
    options.overwrite = true;
    let watch = Watch::quiet(console);
    let started = Instant::now();
    let mut prepared = prepare(&options, &watch, &cancel)?;
    if prepared.census().bytes() < SMALL_SOURCE_BYTES {
        options.sharding = Sharding::Count(SMALL_SOURCE_SHARDS);
        prepared = prepare(&options, &watch, &cancel)?;
    }
    warn_if_large(&prepared, console);
    let summary = prepared.run(&watch, &cancel)?;
    drop(watch);
    let elapsed = started.elapsed();
    for warning in &summary.warnings {
        console.warning(printable(warning));
    }

    let verified = verify(&Input::local_dataset(&root), true, 0, console)?;
    if let Some(finding) = verified.report.findings.first() {
        return Err(Failure::new(format!(
            "{} does not verify: {}",
            show(&root),
            printable(&finding.to_string())
        )));
    }
    if console.interrupt().is_asked() {
        return Err(stopped());
    }
    let figures = PackFigures {
        format: name,
        shards: summary.splits.iter().map(|split| split.shards).sum(),
        bytes: summary.shard_bytes(),
        image_bytes: summary.packed_bytes,
        files: summary.packed_files,
        root,
        elapsed,
        verified_in: verified.elapsed,
    };
    Ok((figures, summary))
}

fn warn_if_large(prepared: &Prepared, console: &Console) {
    let bytes = prepared.census().bytes();
    if bytes >= LARGE_SOURCE_BYTES {
        console.warning(format!(
            "{} are going to be packed as they are, twice; Ctrl-C stops it",
            quantity::bytes(bytes)
        ));
    }
}

fn stopped() -> Failure {
    Failure::interrupted("quickstart was stopped").hint("the same command starts again")
}
