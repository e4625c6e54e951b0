//! `forebay verify`: is every byte as it was written.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use forebay_image::{Decoder, Limits, SeekPointBuilder};
use forebay_shard::example::IMAGE_SEEK_POINTS;
use forebay_shard::{ExampleView, image_record};
use forebay_pack::original_image;
use forebay_shard::verify::{Options, Progress, Report, verify_dataset, verify_shard};
use serde::Serialize;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::{Input, MANIFEST, show};
use crate::paint::printable;
use crate::progress::Bar;
use crate::quantity;

/// Check every checksum of datasets or shards
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Reads all bytes and compares them with the checksums in records, blocks, indexes and manifest.
Damage is listed with shard, record and byte, and the exit code is 1.

Examples:
  forebay verify shards/
  forebay verify shards/ --deep               decode every image as well
  forebay verify shards/train-00000-of-00004")]
pub(crate) struct Args {
    /// Datasets (directories with forebay.json) or single shards
    #[arg(value_name = "DATASET|SHARD", required = true)]
    paths: Vec<PathBuf>,

    /// Decode every image too
    #[arg(long)]
    deep: bool,

    /// Shards read at the same time [default: what the machine allows]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

/// What one verification found, and how long it took.
pub(crate) struct Verified {
    pub(crate) report: Report,
    pub(crate) decoded: u64,
    pub(crate) elapsed: Duration,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let inputs: Vec<Input> = args
        .paths
        .iter()
        .map(|path| Input::recognise(path))
        .collect::<Result<_, Failure>>()?;
    let started = Instant::now();
    let jobs = args.jobs.map_or(0, NonZeroUsize::get);
    let (mut total, mut damaged) = (Totals::default(), Vec::new());
    for input in &inputs {
        let verified = verify(input, args.deep, jobs, console)?;
        print(input, &verified, args.deep, console);
        total.add(&verified);
        if !verified.report.is_ok() {
            damaged.push(show(input.path()));
        }
    }
    total.event(started.elapsed(), console);
    if damaged.is_empty() {
        return Ok(Outcome::Done);
    }
    let lost = match total.lost {
        0 => String::new(),
        n => format!(", {} lost", quantity::counted(n, "record is", "records are")),
    };
    Err(Failure::new(format!(
        "{} in {}{lost}",
        quantity::counted(total.damage, "finding", "findings"),
        damaged.join(", "),
    ))
    .hint("restore the files that are named from where they came, or pack again"))
}

/// Verifies a dataset or a shard, with a bar.
pub(crate) fn verify(
    input: &Input,
    deep: bool,
    jobs: usize,
    console: &Console,
) -> Result<Verified, Failure> {
    let started = Instant::now();
    let bar = Watch::start(input, console);
    let decoded = AtomicU64::new(0);
    let decode = |_: &Path, _: u64, record: &[u8]| decode_image(record, &decoded);
    let options = Options {
        threads: jobs,
        record_check: if deep { Some(&decode) } else { None },
        ..Options::default()
    };
    let observer = |progress: Progress| bar.advance(progress);
    let report = match input {
        Input::Dataset(root) => verify_dataset(root, &options, &observer)?,
        Input::Shard(path) => verify_shard(path, &options, &observer)?,
    };
    Ok(Verified {
        report,
        decoded: decoded.into_inner(),
        elapsed: started.elapsed(),
    })
}

fn decode_image(record: &[u8], decoded: &AtomicU64) -> Result<(), String> {
    thread_local! {
        static DECODER: RefCell<Decoder> = RefCell::new(Decoder::new(Limits::default()));
        static SEEK_POINTS: RefCell<SeekPointBuilder> = RefCell::default();
    }
    let bytes = record;
    let record =
        image_record(bytes).map_err(|error| format!("no record of an image: {error}"))?;
    DECODER.with_borrow_mut(|decoder| {
        let decoded = decoder.decode(record.image);
        decoded.map_err(|error| error.to_string())
    })?;
    if let Some(points) = record.seek_points
        && !SEEK_POINTS.with_borrow_mut(|builder| builder.is_right(record.image, points))
    {
        return Err(format!(
            "{IMAGE_SEEK_POINTS} is not of this image: loaders decode it without, slower; `forebay convert` makes new ones"
        ));
    }
    if let Ok(example) = ExampleView::parse(bytes) {
        original_image(&example)?;
    }
    decoded.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

struct Watch {
    bar: Bar,
    records: AtomicU64,
    bytes: AtomicU64,
}

impl Watch {
    fn start(input: &Input, console: &Console) -> Self {
        let total = match input {
            Input::Shard(path) => std::fs::metadata(path).map(|meta| meta.len()).ok(),
            // What is wrong with the manifest is said by the verification.
            Input::Dataset(root) => forebay_shard::Manifest::load(root)
                .ok()
                .map(|manifest| manifest.splits.iter().map(|split| split.bytes).sum()),
        };
        Self {
            bar: console.bar("verifying", total),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    fn advance(&self, progress: Progress) {
        let add = |to: &AtomicU64, n: u64| to.fetch_add(n, Ordering::Relaxed) + n;
        let records = add(&self.records, progress.records);
        let bytes = add(&self.bytes, progress.bytes);
        self.bar.update(bytes, records, "records", bytes);
    }
}

fn print(input: &Input, verified: &Verified, deep: bool, console: &Console) {
    let report = &verified.report;
    for finding in &report.findings {
        console.line(format!(
            "{}  {}",
            console.paint().red("damaged"),
            printable(&finding.to_string())
        ));
        console.event("finding", finding);
    }
    for lost in &report.lost {
        let records = match &lost.records {
            Some(records) if records.end - records.start == 1 => format!("record {}", records.start),
            Some(records) => format!("records {} to {}", records.start, records.end.saturating_sub(1)),
            None => "records that no index tells of".to_owned(),
        };
        console.line(format!(
            "lost     {}: {records}, bytes {} to {}",
            show(&lost.path),
            lost.bytes.start,
            lost.bytes.end
        ));
        console.event("lost", lost);
    }
    let read = format!(
        "{}, {}, {}{} in {} ({})",
        quantity::counted(report.shards, "shard", "shards"),
        quantity::counted(report.records, "record", "records"),
        quantity::bytes(report.bytes),
        if deep {
            format!(", {} decoded", quantity::counted(verified.decoded, "image", "images"))
        } else {
            String::new()
        },
        quantity::duration(verified.elapsed),
        quantity::byte_rate(report.bytes, verified.elapsed),
    );
    if report.is_ok() {
        console.line(format!(
            "{}  {}: {read}",
            console.paint().green("ok"),
            show(input.path())
        ));
    } else {
        console.line(format!("read     {}: {read}", show(input.path())));
    }
    // A TFRecord cut between two records is a valid shorter file: only a manifest can tell.
    if let Input::Shard(path) = input
        && path.parent().is_some_and(|dir| dir.join(MANIFEST).is_file())
    {
        console.note("a single shard is not compared with its manifest: verify the dataset for that");
    }
}

#[derive(Default)]
struct Totals {
    shards: u64,
    records: u64,
    bytes: u64,
    decoded: u64,
    damage: u64,
    lost: u64,
}

impl Totals {
    fn add(&mut self, verified: &Verified) {
        self.shards += verified.report.shards;
        self.records += verified.report.records;
        self.bytes += verified.report.bytes;
        self.decoded += verified.decoded;
        self.damage += verified.report.findings.len() as u64;
        self.lost += verified.report.lost_records();
    }

    fn event(&self, elapsed: Duration, console: &Console) {
        #[derive(Serialize)]
        struct Event {
            command: &'static str,
            exit_code: i32,
            shards: u64,
            records: u64,
            bytes: u64,
            decoded: u64,
            damage: u64,
            lost_records: u64,
            seconds: f64,
        }
        console.event(
            "summary",
            &Event {
                command: "verify",
                exit_code: i32::from(self.damage > 0),
                shards: self.shards,
                records: self.records,
                bytes: self.bytes,
                decoded: self.decoded,
                damage: self.damage,
                lost_records: self.lost,
                seconds: elapsed.as_secs_f64(),
            },
        );
    }
}
