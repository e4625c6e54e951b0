//! `inspect` and `verify` of files of other tools' formats.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_image::{Decoder, Limits};
use forebay_pack::{OnBadRecord, RecordFile, RecordFormat, RecordInput, SourceError};
use forebay_shard::ExampleView;
use forebay_shard::parallel::for_each_parallel;
use serde_json::json;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::histogram::Histogram;
use crate::input::show;
use crate::paint::printable;
use crate::quantity;
use crate::table::{Align, Table};

/// Width of the histogram's bars, in characters.
const BAR_WIDTH: usize = 32;
/// Classes that are shown to a person who did not ask for all.
const SHOWN_CLASSES: usize = 12;
/// Records between two updates of the bar.
const STEP_RECORDS: u64 = 256;

/// Prints splits, columns and sizes, as far as they are known without reading the records.
pub(super) fn inspect(
    path: &Path,
    format: RecordFormat,
    input: &RecordInput,
    all_classes: bool,
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
    let mut columns = Table::new(&[
        ("column", Align::Left),
        ("type", Align::Left),
        ("feature", Align::Left),
    ]);
    let schema = facts.columns();
    for column in schema.columns() {
        columns.row([
            printable(&column.name),
            column.column_type.to_string(),
            printable(&column.feature),
        ]);
    }
    for table in [splits, columns] {
        console.blank();
        table
            .lines(console.paint())
            .iter()
            .for_each(|line| console.line(line));
    }
    let shown = match all_classes || facts.classes.len() <= SHOWN_CLASSES + 1 {
        true => facts.classes.len(),
        false => SHOWN_CLASSES,
    };
    if shown > 0 {
        console.blank();
        let mut table = Table::new(&[("label", Align::Right), ("class", Align::Left)]);
        for (label, class) in (facts.label_base..).zip(&facts.classes[..shown]) {
            table.row([label.to_string(), printable(&class.name)]);
        }
        table
            .lines(console.paint())
            .iter()
            .for_each(|line| console.line(line));
        if shown < facts.classes.len() {
            let more = (facts.classes.len() - shown) as u64;
            console.line(console.paint().dim(format!(
                "  ... {} more; --all-classes lists them",
                quantity::counted(more, "class", "classes")
            )));
        }
    }
    if records > 0 {
        console.blank();
        console.heading("Record sizes, about, image and features");
        sizes
            .lines(BAR_WIDTH)
            .iter()
            .for_each(|line| console.line(line));
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

/// Reads every record; with `deep` every image is decoded. Damage is listed, and an error.
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
    let bar = console.bar("verifying", None);
    let left_out = source.facts.findings.iter().map(ToString::to_string);
    let findings = Mutex::new(left_out.collect::<Vec<String>>());
    let (records, read, decoded) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let damaged = |what: String| {
        let mut findings = findings.lock().unwrap_or_else(|error| error.into_inner());
        findings.push(what);
    };
    let features = &source.facts.record_features;
    let interrupted = console.interrupt().answer().flag();
    let check = |decoder: &mut Decoder, file: &dyn RecordFile| {
        let shown = show(file.path());
        let mut reader = match file.read(0..file.records()) {
            Ok(reader) => reader,
            Err(error) => return damaged(error.to_string()),
        };
        loop {
            if interrupted.load(Ordering::Relaxed) {
                return;
            }
            let record = match reader.next_record() {
                Ok(Some(record)) => record,
                Ok(None) => return,
                Err(error @ SourceError::Record { .. }) => {
                    damaged(error.to_string());
                    continue;
                }
                // The place of the next record is unknown.
                Err(error) => return damaged(error.to_string()),
            };
            let number = record.number;
            let image = ExampleView::parse(record.bytes)
                .map_err(|error| error.to_string())
                .and_then(|example| features.image(example).map_err(|error| error.to_string()));
            match image {
                Ok(Some(image)) if deep => match decoder.decode(image) {
                    Ok(_) => _ = decoded.fetch_add(1, Ordering::Relaxed),
                    Err(error) => damaged(format!("{shown}: record {number}: {error}")),
                },
                Ok(_) => {}
                Err(what) => damaged(format!("{shown}: record {number}: {what}")),
            }
            let all = records.fetch_add(1, Ordering::Relaxed) + 1;
            let len = record.bytes.len() as u64;
            let all_bytes = read.fetch_add(len, Ordering::Relaxed) + len;
            if all.is_multiple_of(STEP_RECORDS) {
                bar.update(all_bytes, all, "records", all_bytes);
            }
        }
    };
    let jobs = match jobs {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        jobs => jobs,
    };
    let ended = for_each_parallel(
        &files,
        jobs.min(files.len()).max(1),
        || Decoder::new(Limits::default()),
        |decoder, file| {
            check(decoder, &***file);
            Ok::<(), ()>(())
        },
    );
    drop(bar);
    if ended.is_err() {
        return Err(Failure::new("cannot start threads"));
    }
    let elapsed = started.elapsed();
    let (records, read) = (records.into_inner(), read.into_inner());
    if interrupted.load(Ordering::Relaxed) {
        let what = format!("{records} of {total} records were verified");
        return Err(Failure::interrupted(what));
    }
    let mut findings = findings
        .into_inner()
        .unwrap_or_else(|error| error.into_inner());
    findings.sort();
    report(&findings, console);
    let words = format!(
        "{}, {}, {}, {}{} in {} ({})",
        format.title(),
        quantity::counted(files.len() as u64, "file", "files"),
        quantity::counted(records, "record", "records"),
        quantity::bytes(read),
        match deep {
            true => format!(
                ", {} decoded",
                quantity::counted(decoded.load(Ordering::Relaxed), "image", "images")
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
            "files": files.len(),
            "records": records,
            "bytes": read,
            "decoded": decoded.into_inner(),
            "damage": findings.len(),
            "seconds": elapsed.as_secs_f64(),
        }),
    );
    match findings.len() as u64 {
        0 => Ok(Outcome::Done),
        count => Err(damage(count, path)),
    }
}

/// Lists damage.
fn report(findings: &[String], console: &Console) {
    for finding in findings {
        let label = console.paint().red("damaged");
        console.line(format!("{label}  {}", printable(finding)));
        console.event("finding", &json!({"what": finding}));
    }
}

fn damage(count: u64, path: &Path) -> Failure {
    let findings = quantity::counted(count, "finding", "findings");
    Failure::new(format!("{findings} in {}", show(path)))
        .hint("`forebay convert --on-bad-record skip` leaves records out that cannot be read, and lists them")
}
