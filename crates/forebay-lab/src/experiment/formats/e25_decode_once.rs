//! E25: whether it pays to decode before training.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_image::{EvalTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::Split;

use crate::experiment::data::{MediumData, pack_tree};
use crate::experiment::requests::limited;
use crate::experiment::feed::Feed;
use crate::experiment::stored::first_split;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::SIDE;
use crate::experiment::{CharacterizeOptions, Experiment, Findings, Scratch};
use crate::Result;
use crate::cold::Footprint;
use crate::random::Random;
use crate::read::{footprint, record_bytes};
use crate::report::{Figure, FigureClass, Plot, Scale, Series};
use crate::storage::{self, Medium, ReadJob};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E25",
    title: "Do the work once",
    question: "Does it pay to shrink, decode or normalize images before training?",
    // Encoded images of two sizes and pixels of two types, each cold and warm, and an epoch that writes pixels.
    trials: |_| 9,
    run,
    scratch: Scratch::More(scratch_bytes),
    ..Experiment::OTHER
};

/// Maximum number of images whose pixels are stored, so that each file stays below 1 GB.
const IMAGES: u64 = 1024;
/// Bytes of an image as pixels.
const PIXELS: u32 = 3 * SIDE * SIDE;
/// Bytes of a normalized channel value.
const FLOAT: u32 = 4;
/// Short side of the smaller images.
const SHORT: u32 = 256;
/// Mean and standard deviation of ImageNet's channels, on a scale of 0 to 255.
const MEAN: [f32; 3] = [123.675, 116.28, 103.53];
const DEVIATION: [f32; 3] = [58.395, 57.12, 57.375];
/// Maximum number of passes over the pixels in a warm run.
const PASSES: usize = 64;
const CACHES: [(&str, Cache); 2] = [("cold", Cache::Emptied), ("warm", Cache::Filled)];

/// Returns the bytes that this experiment writes to a medium in addition to the images and their shards.
fn scratch_bytes(options: &CharacterizeOptions) -> u64 {
    // uint8 pixels count twice, because the trial of the first epoch writes its own file.
    options.files.min(IMAGES).saturating_mul(u64::from(PIXELS) * u64::from(2 + FLOAT))
}

/// A file of pixels.
struct Pixels {
    path: PathBuf,
    rows: u64,
    /// Bytes of an image.
    row: u32,
    /// Bytes of encoded images that were read to create the file.
    read: u64,
    /// Seconds that creating the file took.
    seconds: f64,
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    for medium in &lab.media {
        let smaller = medium.scratch().join("smaller");
        medium.images()?;
        let begin = Instant::now();
        pack_tree(&medium.tree(), &smaller, |options| {
            options.format = forebay_pack::DatasetFormat::INDEXED;
            options.resize_short = Some(SHORT);
        })?;
        let shrinking = begin.elapsed().as_secs_f64();
        let encoded = medium.indexed()?;
        let smaller = first_split(&smaller)?;
        let bytes = write_pixels(lab, &encoded, &medium.scratch().join("uint8"), false, None)?;
        let floats = write_pixels(lab, &encoded, &medium.scratch().join("float32"), true, None)?;

        let mut trials = Vec::new();
        for (name, split) in [(ENCODED, &encoded), (SMALLER, &smaller)] {
            trials.extend(CACHES.map(|cache| decoded(lab, medium, name, split, cache)));
        }
        for (name, pixels) in [(BYTES, &bytes), (FLOATS, &floats)] {
            for cache in CACHES {
                trials.push(rows(lab, medium, name, pixels, cache)?);
            }
        }
        let (target, of) = (medium.scratch().join("first-epoch"), encoded.clone());
        let first = move || {
            let made = write_pixels(lab, &of, &target, false, Some(lab.options.limit))?;
            std::fs::remove_file(&target)?;
            let encoded = record_bytes(&of) as f64 / of.len().max(1) as f64;
            let rate = made.rows as f64 / made.seconds;
            let more = [("MB/s", rate * encoded / 1e6), (SIZE, encoded / 1e3), ("MB/s written", rate * f64::from(PIXELS) / 1e6)];
            Ok(Sample::new(rate, made.read, more))
        };
        let name = "first epoch that keeps uint8 pixels, cold";
        trials.push(Trial::new(&medium.name, name, "images/s", first).reading(footprint(&encoded), Cache::Emptied));
        let figures = lab.in_turns(trials)?;
        let images = encoded.len() as f64;
        let all = |pixels: &Pixels| pixels.seconds * images / pixels.rows.max(1) as f64;
        let made = [("Smaller images", SMALLER, shrinking), ("Pixels as uint8", BYTES, all(&bytes)), ("Pixels as float32", FLOATS, all(&floats))];
        found.notes.extend(break_even(&figures, images, &made));
        found.plots.push(plot(medium, &figures));
        found.figures.extend(figures);
    }
    found.notes.push(format!(
        "Encoded images are decoded to {SIDE} x {SIDE} pixels with {} threads by Forebay's loader. Pixels are rows of one file, of {} images, read in random order with as many reads in flight, each row once in a cold run; they are not put together into batches, and a pixel file has one crop of an image for all epochs. Later epochs of a cache that the first one fills are the rows of uint8 pixels. What that epoch writes is not forced to disk within its time.",
        lab.most_threads(),
        lab.options.files.min(IMAGES),
    ));
    Ok(found)
}

const ENCODED: &str = "encoded";
const SMALLER: &str = "encoded, short sides of 256";
const BYTES: &str = "uint8 pixels";
const FLOATS: &str = "normalized float32 pixels";
const SIZE: &str = "KB an image";

/// Decodes at most [`IMAGES`] images, or as many as `limit` allows, and writes their pixels to `path`.
fn write_pixels(lab: &Lab<'_>, split: &Split, path: &Path, is_float: bool, limit: Option<Duration>) -> Result<Pixels> {
    let begin = Instant::now();
    let mut options = Options::new(lab.options.batch_size, Transform::Eval(EvalTransform::new(SHORT, SIDE)));
    (options.threads, options.drop_last) = (lab.most_threads(), false);
    let mut loader = Loader::new(split.clone(), options)?;
    let mut file = BufWriter::new(File::create(path)?);
    let (mut rows, mut normalized) = (0, Vec::new());
    while let Some(batch) = loader.next_batch()? {
        for place in 0..batch.len() {
            let is_padding = batch.flags[place] & forebay_loader::batch::FLAG_PADDING != 0;
            let Some(pixels) = batch.image(place).filter(|_| !is_padding) else {
                continue;
            };
            if is_float {
                normalized.clear();
                for (number, &value) in pixels.iter().enumerate() {
                    let channel = number % 3;
                    let value = (f32::from(value) - MEAN[channel]) / DEVIATION[channel];
                    normalized.extend_from_slice(&value.to_le_bytes());
                }
                file.write_all(&normalized)?;
            } else {
                file.write_all(pixels)?;
            }
            rows += 1;
            if rows == IMAGES {
                break;
            }
        }
        if rows == IMAGES || limit.is_some_and(|limit| begin.elapsed() > limit) {
            break;
        }
    }
    file.flush()?;
    if limit.is_none() {
        // The page cache can only drop pages that are on disk. The fsync counts as part of creating the file.
        file.get_ref().sync_all()?;
    }
    let row = if is_float { PIXELS * FLOAT } else { PIXELS };
    let all = record_bytes(split);
    let delivered = all / split.len().max(1) * rows;
    Ok(Pixels {
        path: path.to_owned(),
        rows,
        row,
        read: loader.stats().bytes_read.clamp(delivered, all.max(delivered)),
        seconds: begin.elapsed().as_secs_f64(),
    })
}

/// Returns a trial that decodes encoded images.
fn decoded<'t>(lab: &Lab<'_>, medium: &MediumData, name: &str, split: &Split, cache: (&str, Cache)) -> Trial<'t> {
    let (batch, limit, threads) = (lab.options.batch_size, lab.options.limit, lab.most_threads());
    let (files, split) = (footprint(split), split.clone());
    let run = move || {
        let feed = Feed {
            threads,
            ..Feed::new(&split, Transform::Eval(EvalTransform::new(SHORT, SIDE)), batch, limit)
        };
        let fed = feed.run()?;
        let more = [
            ("MB/s", fed.bytes as f64 / 1e6 / fed.seconds),
            (SIZE, fed.bytes as f64 / 1e3 / fed.images.max(1) as f64),
        ];
        Ok(Sample::new(fed.images_per_s(), fed.read, more))
    };
    Trial::new(&medium.name, format!("{name}, {}", cache.0), "images/s", run).reading(files, cache.1)
}

/// Returns a trial that reads rows of pixels in random order.
fn rows<'t>(lab: &'t Lab<'_>, medium: &MediumData, name: &str, pixels: &Pixels, cache: (&str, Cache)) -> Result<Trial<'t>> {
    let row = pixels.row;
    let job = job(pixels, if cache.1 == Cache::Emptied { 1 } else { PASSES })?;
    let options = limited(lab, lab.most_threads());
    let run = move || {
        let report = storage::run(&job, &Medium::Local { direct: false }, &options)?;
        let more = [("MB/s", report.mb_per_s()), (SIZE, f64::from(row) / 1e3)];
        Ok(Sample::new(report.reads_per_s(), report.bytes, more))
    };
    let trial = Trial::new(&medium.name, format!("{name}, {}", cache.0), "images/s", run);
    Ok(trial.reading(Footprint::files([pixels.path.clone()]), cache.1))
}

/// Returns `passes` reads of each row; each pass has its own random order.
fn job(pixels: &Pixels, passes: usize) -> Result<ReadJob> {
    let job = ReadJob::sequential([(pixels.path.clone(), pixels.rows * u64::from(pixels.row))], pixels.row)?;
    let mut random = Random::new(25);
    let mut ops = Vec::with_capacity(passes * job.ops().len());
    for _ in 0..passes {
        let mut pass = job.ops().to_vec();
        random.shuffle(&mut pass);
        ops.extend(pass);
    }
    ReadJob::new(job.files().to_vec(), ops)
}

/// Returns notes that say after how many epochs each preparation of the images pays, cold and warm.
fn break_even(figures: &[Figure], images: f64, made: &[(&str, &str, f64)]) -> Vec<String> {
    let epoch = |name: &str| {
        let figure = figures.iter().find(|figure| figure.name == name)?;
        Some(images / figure.value)
    };
    let mut notes = Vec::new();
    for (made, name, seconds) in made {
        for (cache, _) in CACHES {
            let times = epoch(&format!("{ENCODED}, {cache}")).zip(epoch(&format!("{name}, {cache}")));
            let Some((before, after)) = times else {
                continue;
            };
            notes.push(match before - after {
                gain if gain > 0.0 => {
                    format!("{made} take {seconds:.1} s to make for {images} images, and pay after {:.1} epochs, {cache}.", seconds / gain)
                }
                _ => format!("{made} never pay, {cache}: an epoch takes no less time."),
            });
        }
    }
    notes
}

/// Plots the images per second of each form by the rate of the storage, limited by the measured warm rate of this machine.
fn plot(medium: &MediumData, figures: &[Figure]) -> Plot {
    const RATES: [f64; 8] = [25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1600.0, 3200.0];
    let warm = figures.iter().filter(|figure| figure.name.ends_with(", warm"));
    let series = warm.map(|figure| {
        let size = figure.more.get(SIZE).copied().unwrap_or(f64::INFINITY);
        let points = RATES.map(|rate| (rate, (1e3 * rate / size).min(figure.value)));
        Series {
            name: figure.name.trim_end_matches(", warm").to_owned(),
            // Computed, not measured.
            class: FigureClass::StandIn,
            points: points.into(),
        }
    });
    Plot {
        title: format!("{}: computed from sizes and warm rates", medium.name),
        x: "MB/s of the storage".to_owned(),
        scale: Scale::Logarithmic,
        y: "images/s".to_owned(),
        series: series.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn break_even_is_cost_divided_by_gain_per_epoch() {
        let figure = |name: &str, rate: f64| Figure::measured("m", name, "images/s", vec![rate]);
        let figures = [
            figure("encoded, cold", 100.0),
            figure(&format!("{SMALLER}, cold"), 200.0),
            figure("uint8 pixels, cold", 50.0),
        ];
        let notes = break_even(&figures, 1000.0, &[("Smaller images", SMALLER, 20.0), ("Pixels as uint8", BYTES, 10.0)]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("pay after 4.0 epochs, cold"), "{notes:?}");
        assert!(notes[1].contains("never pay, cold"), "{notes:?}");
    }
}
