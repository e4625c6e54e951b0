//! Measures the loader in this process: decoded batches by number of threads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_image::{DecodeOptions, Output, Transform};
use forebay_loader::{Loader, Options, Stats};
use forebay_shard::Split;

use crate::Result;
use crate::cold::{Cold, Evictor};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::read::{footprint, open};
use crate::scaling::{Point, lines, machine, physical_cores};

/// Options of [`load`].
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Split, the first one by default.
    pub split: Option<String>,
    /// Numbers of decoding threads to compare.
    pub threads: Vec<usize>,
    /// Minimum duration of a run; runs are whole epochs.
    pub duration: Duration,
    /// The transforms to compare, with their names.
    pub transforms: Vec<(String, Transform)>,
    /// Other options of the loader; its `transform` and `threads` are replaced by those that are compared.
    pub options: Options,
    /// How the page cache is emptied before each run.
    pub cold: Cold,
    /// Counted runs of each alternative.
    pub runs: usize,
}

/// Measures the images per second of each of the transforms, with each number of threads.
///
/// # Errors
/// The dataset cannot be read or decoded.
pub fn load(root: &Path, options: &LoadOptions) -> Result<BenchReport> {
    let evictor = Evictor::buffered(options.cold)?;
    let split = open(root, options.split.as_deref())?;
    // Bytes that the last run read.
    let read = &Cell::new(0);
    // Counters of the last run of each alternative, by its number.
    let counted: RefCell<BTreeMap<usize, Stats>> = RefCell::default();
    let mut alternatives = Vec::new();
    for (name, transform) in &options.transforms {
        for &threads in &options.threads {
            let (split, transform) = (split.clone(), transform.clone());
            let name = format!(
                "{name}, {threads} thread{}",
                if threads == 1 { "" } else { "s" }
            );
            let files = footprint(&split);
            let (counted, number) = (&counted, alternatives.len());
            let run = move || {
                let (sample, stats, bytes) = epochs(&split, &transform, threads, options)?;
                read.set(bytes);
                counted.borrow_mut().insert(number, stats);
                Ok(sample)
            };
            let one = Alternative::here(name, "images/s", run);
            alternatives.push(one.reading(files, evictor, |_| Delivered::local(read.get())));
        }
    }
    let title = format!(
        "Loading {} ({} records), batches of {}",
        root.display(),
        split.len(),
        options.options.batch_size
    );
    let mut report = side_by_side(title, options.runs, alternatives)?;
    let counted = counted.into_inner();
    for (row, stats) in report.rows.iter().zip(counted.values()) {
        report.notes.extend(account(&row.name, stats));
    }
    if options.threads.len() > 1 {
        explain_scaling(&mut report, options, &counted);
    }
    Ok(report)
}

/// Adds the efficiency of each number of threads to its row, and the reasons for low ones to the notes.
fn explain_scaling(
    report: &mut BenchReport,
    options: &LoadOptions,
    counted: &BTreeMap<usize, Stats>,
) {
    // 0 threads stands for as many as there are cores; the loader counts those that it has.
    let threads = |number: usize| counted[&number].decode.threads;
    let numbers = 0..options.threads.len();
    let machine = machine(&numbers.clone().map(threads).collect::<Vec<_>>());
    for (transform, (name, _)) in options.transforms.iter().enumerate() {
        let mut points: Vec<(usize, Point)> = numbers
            .clone()
            .map(|number| {
                let row = transform * options.threads.len() + number;
                let point = Point {
                    threads: threads(row),
                    images_per_s: report.rows[row].median,
                    stats: counted[&row].clone(),
                    machine: machine[number],
                };
                (row, point)
            })
            .collect();
        points.sort_by_key(|(_, point)| point.threads);
        let (rows, points): (Vec<usize>, Vec<Point>) = points.into_iter().unzip();
        for (row, point) in rows.into_iter().zip(&points) {
            let efficiency = point.efficiency(&points[0]);
            report.rows[row].extra.insert("efficiency", efficiency);
        }
        report.notes.extend(lines(name, &points, physical_cores()));
    }
}

/// Returns the busy and waiting times of each stage of a run, and its bottleneck.
fn account(title: &str, stats: &Stats) -> Vec<String> {
    let mut lines = vec![format!("{title}: {}", stats.bottleneck())];
    if stats.fast_images > 0 {
        let share = 100.0 * stats.fast_images as f64 / stats.images.max(1) as f64;
        lines.push(format!("    fast images {share:.1} %"));
    }
    // Decode and transform share their threads, and decode accounts for the waits of both.
    let work = stats.transform.busy_s;
    for stage in stats.stages() {
        let shared = if stage.name == "decode" { work } else { 0.0 };
        let all = match stage.name {
            "transform" => {
                stats.decode.busy_s + stats.decode.starved_s + stats.decode.blocked_s + work
            }
            _ => stage.busy_s + stage.starved_s + stage.blocked_s + shared,
        };
        let percent = |some: f64| 100.0 * some / all.max(f64::MIN_POSITIVE);
        lines.push(format!(
            "    {:<9} busy {:5.1} %   starved {:5.1} %   blocked {:5.1} %",
            stage.name,
            percent(stage.busy_s),
            percent(stage.starved_s),
            percent(stage.blocked_s),
        ));
    }
    lines
}

/// Loads whole epochs until the time is up. Returns the measurement, and the bytes read since the start. The first batch is
/// taken before the clock starts, so that opening does not count; the readahead at the end compensates for it.
fn epochs(
    split: &Split,
    transform: &Transform,
    threads: usize,
    options: &LoadOptions,
) -> Result<(Measurement, Stats, u64)> {
    let mut asked = options.options.clone();
    asked.transform = transform.clone();
    asked.threads = threads;
    if asked.is_raw() {
        // Encoded images have no pixels, so options for pixels do not apply.
        asked.output = Output::default();
        asked.decode = DecodeOptions::default();
    }
    let mut loader = Loader::new(split.clone(), asked)?;
    loader.next_batch()?;
    let begun = loader.stats();
    let start = Instant::now();
    let mut images = 0;
    loop {
        match loader.next_batch()? {
            Some(batch) => images += batch.samples.len(),
            None if start.elapsed() >= options.duration => break,
            None => {}
        }
    }
    let sample = Measurement {
        amount: images as f64,
        seconds: start.elapsed().as_secs_f64(),
    };
    let stats = loader.stats();
    Ok((sample, stats.since(&begun), stats.bytes_read))
}
