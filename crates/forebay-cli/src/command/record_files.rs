//! `inspect` and `verify` for record files in the formats of other tools.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_image::{Decoder, Limits};
use forebay_pack::{OnBadRecord, RecordFile, RecordFormat, RecordInput, SourceError, SourceFacts};
use forebay_shard::ExampleView;
use forebay_shard::dataset::INDEX_DIRECTORY;
use forebay_shard::example::RecordFeatures;
use forebay_store::{DirLock, for_each_parallel_with};
use serde_json::json;

use super::index::names;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::histogram::Histogram;
use crate::input::{MANIFEST, show};
use crate::paint::printable;
use crate::progress::Bar;
use crate::quantity;
use crate::table::{Align, Table};
use crate::tfrecord_names::is_compressed;

/// Width of the histogram's bars, in characters.
const BAR_WIDTH: usize = 32;
/// Maximum number of classes to print without --verbose.
const SHOWN_CLASSES: usize = 12;
/// Number of records between two updates of the progress bar.
const STEP_RECORDS: u64 = 256;

/// Returns the TFRecord files of a local directory if any of them is compressed, since compressed files cannot be indexed.
/// Returns `None` if the directory has files of Forebay: it may be a damaged dataset.
pub(super) fn local_tfrecords(path: &Path) -> Option<RecordInput> {
    tfrecords_of(path, is_compressed)
}

/// Returns the TFRecord files of a local directory if `is_sign` holds for the name of any of them. Returns `None` if the
/// directory has files of Forebay.
pub(super) fn tfrecords_of(path: &Path, is_sign: fn(&str) -> bool) -> Option<RecordInput> {
    let own = [
        MANIFEST,
        INDEX_DIRECTORY,
        ".forebay-pack",
        DirLock::FILE_NAME,
    ];
    if !path.is_dir() || own.iter().any(|name| path.join(name).exists()) {
        return None;
    }
    let files = names::shards_in(path).ok()?;
    let mut names = files.iter().filter_map(|file| file.file_name()?.to_str());
    if !names.any(is_sign) {
        return None;
    }
    let mut input = RecordInput::new(path);
    // Without a label base, label 0 is an error. The base does not matter here, since labels are not converted.
    input.features.label_base = Some(0);
    input.splits = names::by_split(&files, None).ok()?;
    Some(input)
}

/// Prints the splits, columns and sizes that are known without reading the records.
pub(super) fn inspect(
    path: &Path,
    format: RecordFormat,
    input: &RecordInput,
    console: &Console,
) -> Result<Outcome, Failure> {
    let source = format.open(input)?;
    let (mut records, mut bytes, mut files) = (0, 0, 0);
    let mut splits = Table::new(&[
        ("split", Align::Left),
        ("records", Align::Right),
        ("files", Align::Right),
        ("bytes", Align::Right),
    ]);
    let mut listed = Vec::new();
    let mut sizes = Histogram::default();
    for split in &source.splits {
        let own_records: u64 = split.files.iter().map(|file| file.records()).sum();
        let own_bytes: u64 = split.files.iter().map(|file| file.bytes()).sum();
        for file in &split.files {
            (0..file.records()).for_each(|record| sizes.add(file.record_bytes(record)));
        }
        splits.row([
            printable(&split.name),
            quantity::count(own_records),
            quantity::count(split.files.len() as u64),
            quantity::bytes(own_bytes),
        ]);
        listed.push(json!({
            "name": split.name, "records": own_records, "bytes": own_bytes, "files": split.files.len(),
        }));
        records += own_records;
        bytes += own_bytes;
        files += split.files.len() as u64;
    }
    console.heading(format!(
        "{}: {}, {}, {}, {}",
        show(path),
        format.title(),
        quantity::counted(files, "file", "files"),
        quantity::counted(records, "record", "records"),
        quantity::bytes(bytes)
    ));
    let facts = &source.facts;
    let schema = facts.columns();
    let mut columns = Table::new(&[
        ("column", Align::Left),
        ("type", Align::Left),
        ("feature", Align::Left),
    ]);
    for column in schema.columns() {
        columns.row([
            printable(&column.name),
            column.column_type.to_string(),
            printable(&column.feature),
        ]);
    }
    for table in [splits, columns] {
        console.blank();
        print(table.lines(console.paint()), console);
    }
    print_classes(facts, console);
    if records > 0 {
        console.blank();
        console.heading("Record sizes, about, image and features");
        print(sizes.lines(BAR_WIDTH), console);
    }
    for finding in &facts.findings {
        console.warning(printable(&finding.to_string()));
    }
    console.event(
        "summary",
        &json!({
            "command": "inspect",
            "exit_code": 0,
            "kind": "records",
            "path": path.display().to_string(),
            "format": format.name(),
            "records": records,
            "bytes": bytes,
            "files": files,
            "splits": listed,
            "columns": schema,
            "label_base": facts.label_base,
            "classes": facts.classes,
            "record_sizes": sizes.buckets(),
        }),
    );
    Ok(Outcome::Done)
}

fn print(lines: Vec<String>, console: &Console) {
    lines.iter().for_each(|line| console.line(line));
}

/// Prints the classes of the source, if it has any.
fn print_classes(facts: &SourceFacts, console: &Console) {
    let count = facts.classes.len();
    let shown = match console.is_verbose() || count <= SHOWN_CLASSES + 1 {
        true => count,
        false => SHOWN_CLASSES,
    };
    if shown == 0 {
        return;
    }
    console.blank();
    let mut table = Table::new(&[("label", Align::Right), ("class", Align::Left)]);
    for (label, class) in (facts.label_base..).zip(&facts.classes[..shown]) {
        table.row([label.to_string(), printable(&class.name)]);
    }
    print(table.lines(console.paint()), console);
    if shown < count {
        let more = quantity::counted((count - shown) as u64, "class", "classes");
        console.line(
            console
                .paint()
                .dim(format!("  ... {more} more; -v lists them")),
        );
    }
}

/// The state of a verification, shared by its threads.
struct Check<'a> {
    features: &'a RecordFeatures,
    /// Whether images are decoded.
    deep: bool,
    bar: Bar,
    interrupted: Arc<AtomicBool>,
    findings: Mutex<Vec<String>>,
    records: AtomicU64,
    bytes: AtomicU64,
    decoded: AtomicU64,
}

impl Check<'_> {
    fn damaged(&self, what: String) {
        let mut findings = self
            .findings
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        findings.push(what);
    }

    /// Checks the records of a file. Damaged records are skipped, until the position of the next record is unknown.
    fn file(&self, decoder: &mut Decoder, file: &dyn RecordFile) {
        let shown = show(file.path());
        let mut reader = match file.read(0..file.records()) {
            Ok(reader) => reader,
            Err(error) => return self.damaged(error.to_string()),
        };
        while !self.interrupted.load(Ordering::Relaxed) {
            let record = match reader.next_record() {
                Ok(Some(record)) => record,
                Ok(None) => return,
                Err(error @ SourceError::Record { .. }) => {
                    self.damaged(error.to_string());
                    continue;
                }
                Err(error) => return self.damaged(error.to_string()),
            };
            if let Err(what) = self.image(decoder, record.bytes) {
                self.damaged(format!("{shown}: record {}: {what}", record.number));
            }
            let all = self.records.fetch_add(1, Ordering::Relaxed) + 1;
            let len = record.bytes.len() as u64;
            let all_bytes = self.bytes.fetch_add(len, Ordering::Relaxed) + len;
            if all.is_multiple_of(STEP_RECORDS) {
                self.bar.update(all_bytes, all, "records", all_bytes);
            }
        }
    }

    /// Parses a record and finds its image; decodes the image if `deep` is set.
    fn image(&self, decoder: &mut Decoder, record: &[u8]) -> Result<(), String> {
        let example = ExampleView::parse(record).map_err(|error| error.to_string())?;
        let image = self.features.image(example);
        let image = image.map_err(|error| error.to_string())?;
        if let (Some(image), true) = (image, self.deep) {
            decoder.decode(image).map_err(|error| error.to_string())?;
            self.decoded.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Reads every record, and decodes every image if `deep` is set. Prints all damage, and returns an error if there is any.
pub(super) fn verify(
    path: &Path,
    format: RecordFormat,
    mut input: RecordInput,
    deep: bool,
    jobs: usize,
    console: &Console,
) -> Result<Outcome, Failure> {
    let started = Instant::now();
    input.on_bad_record = OnBadRecord::Skip;
    let source = match format.open(&input) {
        Ok(source) => source,
        Err(error @ (SourceError::Source { .. } | SourceError::Record { .. })) => {
            report(&[error.to_string()], console);
            return Err(damage(1, path));
        }
        Err(error) => return Err(error.into()),
    };
    let files: Vec<_> = source
        .splits
        .iter()
        .flat_map(|split| &split.files)
        .collect();
    let total: u64 = files.iter().map(|file| file.records()).sum();
    let left_out = source.facts.findings.iter().map(ToString::to_string);
    let check = Check {
        features: &source.facts.record_features,
        deep,
        bar: console.bar("verifying", None),
        interrupted: console.interrupt().answer().flag(),
        findings: Mutex::new(left_out.collect()),
        records: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        decoded: AtomicU64::new(0),
    };
    let jobs = match jobs {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        jobs => jobs,
    };
    let ended = for_each_parallel_with(
        &files,
        jobs.min(files.len()).max(1),
        || Decoder::new(Limits::default()),
        |decoder, file| {
            check.file(decoder, &***file);
            Ok::<(), ()>(())
        },
    );
    if ended.is_err() {
        return Err(Failure::new("cannot start threads"));
    }
    if check.interrupted.load(Ordering::Relaxed) {
        let records = check.records.load(Ordering::Relaxed);
        let what = format!("{records} of {total} records were verified");
        return Err(Failure::interrupted(what));
    }
    conclude(path, format, files.len(), check, started.elapsed(), console)
}

/// Prints the findings and the totals of a verification.
fn conclude(
    path: &Path,
    format: RecordFormat,
    files: usize,
    check: Check<'_>,
    elapsed: Duration,
    console: &Console,
) -> Result<Outcome, Failure> {
    drop(check.bar);
    let (records, read) = (check.records.into_inner(), check.bytes.into_inner());
    let decoded = check.decoded.into_inner();
    let findings = check.findings.into_inner();
    let mut findings = findings.unwrap_or_else(|error| error.into_inner());
    findings.sort();
    report(&findings, console);
    let words = format!(
        "{}, {}, {}, {}{} in {} ({})",
        format.title(),
        quantity::counted(files as u64, "file", "files"),
        quantity::counted(records, "record", "records"),
        quantity::bytes(read),
        match check.deep {
            true => format!(
                ", {} decoded",
                quantity::counted(decoded, "image", "images")
            ),
            false => String::new(),
        },
        quantity::duration(elapsed),
        quantity::byte_rate(read, elapsed),
    );
    let label = match findings.is_empty() {
        true => console.paint().green("ok").to_string(),
        false => "read".to_owned(),
    };
    console.line(format!("{label}  {}: {words}", show(path)));
    let exit_code = i32::from(!findings.is_empty());
    console.event(
        "summary",
        &json!({
            "command": "verify",
            "exit_code": exit_code,
            "path": path.display().to_string(),
            "format": format.name(),
            "files": files,
            "records": records,
            "bytes": read,
            "decoded": decoded,
            "damage": findings.len(),
            "seconds": elapsed.as_secs_f64(),
        }),
    );
    match findings.len() as u64 {
        0 => Ok(Outcome::Done),
        count => Err(damage(count, path)),
    }
}

/// Prints each finding as a line and as an event.
fn report(findings: &[String], console: &Console) {
    for finding in findings {
        let label = console.paint().red("damaged");
        console.line(format!("{label}  {}", printable(finding)));
        console.event("finding", &json!({"what": finding}));
    }
}

fn damage(count: u64, path: &Path) -> Failure {
    let findings = quantity::counted(count, "finding", "findings");
    Failure::new(format!("{findings} in {}", show(path))).hint(
        "`forebay convert --on-bad skip` leaves records out that cannot be read, and lists them",
    )
}
