//! `forebay verify`: checks that every byte of a dataset is as it was written.

mod against;

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use forebay_image::{DecodeError, Decoder, ImageError, Limits, SeekPointBuilder, check_structure};
use forebay_pack::original_image;
use forebay_pack::{ComparisonReport, RecordFormat, SourceComparison};
use forebay_shard::example::IMAGE_SEEK_POINTS;
use forebay_shard::example::RecordFeatures;
use forebay_shard::verify::{
    VerifyOptions, VerifyProgress, VerifyReport, verify_dataset_in, verify_shard_in,
};
use forebay_shard::{ExampleView, some_of};
use forebay_store::StoreOptions;
use serde_json::json;

use super::checkpoint::{self, AreaArgs, is_checkpoint};
use super::foreign_args::ForeignArgs;
use super::record_files::{self, local_tfrecords};
use super::record_source::foreign_source;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::{Input, Kind, MANIFEST, show};
use crate::paint::printable;
use crate::quantity;
use crate::store_args::StoreArgs;

/// Check every checksum of datasets, shards or checkpoints
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Reads all bytes and compares them with the checksums in records, blocks, indexes and manifest.
Damage is listed with shard, record and byte, and the exit code is 1; `forebay repair` copies what is
whole. Images of a kind that loaders do not read are listed too, as far as their headers show it.

--compare-source SRC proves a dataset against what it was packed from, a directory or archives: the bytes of
every file are in exactly one record. What the pack's report says was left out or rewritten is
counted apart. Files that are missing, extra, doubled or changed make the exit code 1; files that
cannot be read now make it 3.

Examples:
  forebay verify shards/
  forebay verify shards/ --deep               decode every image as well
  forebay verify shards/ --compare-source photos/   is every file in exactly one record
  forebay verify s3://bucket/shards --compare-source s3://bucket/photos
  forebay verify shards/train-00000-of-00004
  forebay verify s3://bucket/shards           everything in a store is read
  forebay verify parquet/ --deep              every record and image of another tool's files
  forebay verify s3://bucket/run/step-1000    a checkpoint")]
pub(crate) struct Args {
    /// Datasets (directories or URLs with forebay.json), single shards, files of another tool, or checkpoints
    #[arg(value_name = "DATASET|SHARD|CHECKPOINT", required = true)]
    paths: Vec<PathBuf>,

    /// Decode every image too
    #[arg(long)]
    deep: bool,

    /// Compare every image with its file in the directory or archives that the dataset was packed from
    #[arg(long, value_name = "SRC")]
    compare_source: Option<PathBuf>,

    /// Shards read at the same time [default: the cores of the machine or container]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    #[command(flatten)]
    area: AreaArgs,

    #[command(flatten)]
    store: StoreArgs,
}

/// The result of verifying a dataset or a shard.
pub(crate) struct Verified {
    pub(crate) report: VerifyReport,
    pub(crate) decoded: u64,
    pub(crate) elapsed: Duration,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let store = args.store.options_until(console);
    let jobs = args.jobs.map_or(0, NonZeroUsize::get);
    let foreign = ForeignArgs::default();
    let (mut inputs, mut failed) = (Vec::new(), None);
    for path in &args.paths {
        if is_checkpoint(path)
            && let Some(found) = args.area.find(path, &store)?
        {
            failed = failed.or(checkpoint::verify(&found, console).err());
            continue;
        }
        let tfrecords = || Some((RecordFormat::TFRECORD, local_tfrecords(path)?));
        let found = foreign_source(std::slice::from_ref(path), None, &foreign, &store);
        match found.map(|found| found.or_else(tfrecords)) {
            Ok(Some((format, _))) if args.compare_source.is_some() => {
                return Err(Failure::usage(format!(
                    "--compare-source compares datasets, and {} has {}",
                    show(path),
                    format.title()
                )));
            }
            Ok(Some((format, input))) => {
                let verified = record_files::verify(path, format, input, args.deep, jobs, console);
                failed = failed.or(verified.err());
            }
            _ => match Input::recognise(path, &store) {
                Ok(input) => inputs.push(input),
                Err(failure) => {
                    let found = args.area.instead(path, &store, failure)?;
                    failed = failed.or(checkpoint::verify(&found, console).err());
                }
            },
        }
    }
    let outcome = match inputs.is_empty() {
        true => Outcome::Done,
        false => verify_datasets(&inputs, &args, &store, jobs, console)?,
    };
    failed.map_or(Ok(outcome), Err)
}

fn verify_datasets(
    inputs: &[Input],
    args: &Args,
    store: &StoreOptions,
    jobs: usize,
    console: &Console,
) -> Result<Outcome, Failure> {
    let started = Instant::now();
    // From here on, the first Ctrl-C stops the verification, and the findings so far are printed.
    console.interrupt().answer();
    let against = match &args.compare_source {
        None => None,
        Some(source) => Some(against::open(inputs, source, store, console)?),
    };
    let (mut total, mut damaged) = (Totals::default(), Vec::new());
    let mut repairable = None;
    for input in inputs {
        let verified = verify_with(input, args.deep, against.as_ref(), jobs, console)?;
        print(input, &verified, args.deep, console);
        total.add(&verified);
        if verified.report.stopped {
            return Err(stopped(&verified.report));
        }
        if !verified.report.is_ok() {
            damaged.push(show(input.path()));
            let is_mapped = input
                .manifest()
                .is_ok_and(|manifest| manifest.source.is_some());
            if input.kind() == Kind::Dataset && !is_mapped {
                repairable.get_or_insert(show(input.path()));
            }
        }
    }
    let compared = against.map(SourceComparison::finish).transpose()?;
    if let Some(report) = &compared {
        against::print(report, console);
    }
    let outcome = compared
        .as_ref()
        .map_or(Ok(Outcome::Done), against::outcome);
    let exit_code = match (&outcome, damaged.is_empty()) {
        (Ok(outcome), true) => outcome.exit_code(),
        _ => 1,
    };
    total.event(exit_code, compared.as_ref(), started.elapsed(), console);
    if damaged.is_empty() {
        return outcome;
    }
    let lost = match total.lost {
        0 => String::new(),
        n => format!(
            ", {} lost",
            quantity::counted(n, "record is", "records are")
        ),
    };
    Err(Failure::new(format!(
        "{} in {}{lost}",
        quantity::counted(total.damage, "finding", "findings"),
        some_of(damaged),
    ))
    .hint(match repairable {
        Some(root) => format!(
            "`forebay repair {root} DST` copies every intact record and lists the lost ones; or restore the files that are named from a copy, or pack or convert the source again"
        ),
        None => "restore the files that are named from a copy; index changed files again, and let `forebay repair` copy what is whole of a dataset of damaged shards".to_owned(),
    }))
}

fn stopped(report: &VerifyReport) -> Failure {
    Failure::interrupted(format!(
        "{} in {} were verified, and {} found",
        quantity::counted(report.records, "record", "records"),
        quantity::counted(report.shards, "shard", "shards"),
        quantity::counted(report.findings.len() as u64, "finding", "findings"),
    ))
}

/// Verifies a dataset or a shard with a progress bar. Returns an error if Ctrl-C stops it.
pub(crate) fn verify(
    input: &Input,
    deep: bool,
    jobs: usize,
    console: &Console,
) -> Result<Verified, Failure> {
    let verified = verify_with(input, deep, None, jobs, console)?;
    if verified.report.stopped {
        return Err(stopped(&verified.report));
    }
    Ok(verified)
}

fn verify_with(
    input: &Input,
    deep: bool,
    against: Option<&SourceComparison>,
    jobs: usize,
    console: &Console,
) -> Result<Verified, Failure> {
    let started = Instant::now();
    let bar = console.bar("verifying", total_bytes(input));
    let decoded = AtomicU64::new(0);
    // Errors of the manifest are ignored here, and reported by the verification.
    let features = match input.kind() {
        Kind::Dataset => input
            .manifest()
            .ok()
            .map(|manifest| manifest.record_features),
        Kind::Shard => None,
    };
    let features = features.unwrap_or_default();
    let check = |shard: &Path, number: u64, record: &[u8]| {
        if let Some(against) = against {
            against.check(shard, number, record);
        }
        if deep {
            decode_image(record, &features, &decoded)
        } else {
            check_kind(record, &features)
        }
    };
    let stop = || console.interrupt().is_asked();
    let options = VerifyOptions {
        threads: NonZeroUsize::new(jobs),
        record_check: Some(&check),
        stop: Some(&stop),
        ..VerifyOptions::default()
    };
    let observer = |progress: VerifyProgress| {
        bar.add(progress.records, progress.bytes, "records");
    };
    let (path, storage) = (input.path(), input.storage());
    let report = match input.kind() {
        Kind::Dataset => verify_dataset_in(path, storage, &options, &observer)?,
        Kind::Shard => verify_shard_in(path, storage, &options, &observer)?,
    };
    Ok(Verified {
        report,
        decoded: decoded.into_inner(),
        elapsed: started.elapsed(),
    })
}

/// Checks from the structure of a record's image that loaders support its format and size. Damaged images are left to the
/// checksums and `--deep`, and records without an image are valid.
fn check_kind(record: &[u8], features: &RecordFeatures) -> Result<(), String> {
    let Ok(record) = features.image_record(record) else {
        return Ok(());
    };
    match check_structure(record.image, &Limits::default()) {
        Err(ImageError::Image(
            error @ (DecodeError::Unsupported { .. } | DecodeError::OverLimit { .. }),
        )) => Err(error.to_string()),
        _ => Ok(()),
    }
}

fn decode_image(
    record: &[u8],
    features: &RecordFeatures,
    decoded: &AtomicU64,
) -> Result<(), String> {
    thread_local! {
        static DECODER: RefCell<Decoder> = RefCell::new(Decoder::new(Limits::default()));
        static SEEK_POINTS: RefCell<SeekPointBuilder> = RefCell::default();
    }
    let bytes = record;
    let record = features.image_record(bytes);
    let record = record.map_err(|error| format!("no record of an image: {error}"))?;
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
        original_image(&example, features)?;
    }
    decoded.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Returns the bytes to verify, for the bar. The verification reports errors.
fn total_bytes(input: &Input) -> Option<u64> {
    match input.kind() {
        Kind::Shard => input
            .storage()
            .open(input.path())
            .map(|file| file.len())
            .ok(),
        Kind::Dataset => input
            .manifest()
            .ok()
            .map(|manifest| manifest.splits.iter().map(|split| split.bytes).sum()),
    }
}

fn print(input: &Input, verified: &Verified, deep: bool, console: &Console) {
    let report = &verified.report;
    for finding in &report.findings {
        // An unsupported image is not damaged: its bytes may be as they were written.
        let label = match finding.what.starts_with("unsupported ") {
            true => "refused",
            false => "damaged",
        };
        console.line(format!(
            "{}  {}",
            console.paint().red(label),
            printable(&finding.to_string())
        ));
        console.event("finding", finding);
    }
    for lost in &report.lost {
        let records = match &lost.records {
            Some(records) if records.end - records.start == 1 => {
                format!("record {}", records.start)
            }
            Some(records) => format!(
                "records {} to {}",
                records.start,
                records.end.saturating_sub(1)
            ),
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
            format!(
                ", {} decoded",
                quantity::counted(verified.decoded, "image", "images")
            )
        } else {
            String::new()
        },
        quantity::duration(verified.elapsed),
        quantity::byte_rate(report.bytes, verified.elapsed),
    );
    if report.stopped {
        console.line(format!("stopped  {}: {read}", show(input.path())));
    } else if report.is_ok() {
        console.line(format!(
            "{}  {}: {read}",
            console.paint().green("ok"),
            show(input.path())
        ));
    } else {
        console.line(format!("read     {}: {read}", show(input.path())));
    }
    // A TFRecord file truncated between two records is valid, so only a manifest can reveal the truncation.
    let is_there = |path: &Path| input.storage().exists(path).unwrap_or(false);
    if input.kind() == Kind::Shard
        && input
            .path()
            .parent()
            .is_some_and(|dir| is_there(&dir.join(MANIFEST)))
    {
        console
            .note("a single shard is not compared with its manifest: verify the dataset for that");
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

    fn event(
        &self,
        exit_code: i32,
        compared: Option<&ComparisonReport>,
        elapsed: Duration,
        console: &Console,
    ) {
        let mut event = json!({
            "command": "verify",
            "exit_code": exit_code,
            "shards": self.shards,
            "records": self.records,
            "bytes": self.bytes,
            "decoded": self.decoded,
            "damage": self.damage,
            "lost_records": self.lost,
            "seconds": elapsed.as_secs_f64(),
        });
        if let Some(report) = compared {
            event["against"] = against::figures(report);
        }
        console.event("summary", &event);
    }
}
