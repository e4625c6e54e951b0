//! E5 and what E6 shares with it: images a second by the number of threads, with and without decoding.

use std::time::{Duration, Instant};

use forebay_image::{EvalTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::Split;

use super::data::MediumData;
use super::lab::{Lab, Sample, Trial};
use super::mini_app::MiniApp;
use super::{CharacterizeOptions, Experiment, Findings};
use crate::Result;
use crate::cold::Footprint;
use crate::report::{FigureClass, Figure, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E5",
    title: "Threads that read and decode",
    question: "How does ingestion scale with threads on each medium, and how much is preprocessing?",
    is_default: true,
    trials,
    run: |lab| run(lab, true),
};

/// Pixels of a side of the decoded images.
const SIDE: u32 = 224;

/// The form in which images are stored.
#[derive(Clone, Copy)]
enum Source {
    Files,
    TfRecord,
    Indexed,
}

impl Source {
    const ALL: [Source; 3] = [Source::Files, Source::TfRecord, Source::Indexed];

    fn name(self) -> &'static str {
        match self {
            Source::Files => "single files",
            Source::TfRecord => "TFRecords, Forebay's loader",
            Source::Indexed => "indexed shards, Forebay's loader",
        }
    }
}

pub(super) fn trials(options: &CharacterizeOptions) -> usize {
    Source::ALL.len() * options.threads.len()
}

pub(super) fn run(lab: &Lab<'_>, decode: bool) -> Result<Findings> {
    let mut trials = Vec::new();
    for medium in &lab.media {
        for source in Source::ALL {
            for &threads in &lab.options.threads {
                trials.push(trial(lab, medium, source, threads, decode)?);
            }
        }
    }
    let mut found = Findings {
        figures: lab.in_turns(trials)?,
        ..Findings::default()
    };
    let counts = &lab.options.threads;
    for (figures, medium) in found.figures.chunks_mut(Source::ALL.len() * counts.len()).zip(&lab.media) {
        let mut series = Vec::new();
        for (figures, source) in figures.chunks_mut(counts.len()).zip(Source::ALL) {
            let first = figures[0].value;
            for figure in figures.iter_mut() {
                figure.more.insert("speed-up".to_owned(), figure.value / first);
            }
            series.push(Series {
                name: source.name().to_owned(),
                class: FigureClass::Measured,
                points: points(counts, figures),
            });
        }
        found.plots.push(Plot {
            title: format!("{}, {}", medium.name, if decode { "with decoding" } else { "reading only" }),
            x: "threads".to_owned(),
            scale: Scale::Logarithmic,
            y: "images/s".to_owned(),
            series,
        });
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    found.notes.push(match decode {
        true => format!("Images are decoded and resized to {SIDE} x {SIDE} pixels; more than {cores} threads share the {cores} cores."),
        false => "Single files are opened and read whole; the loader hands over encoded images.".to_owned(),
    });
    Ok(found)
}

fn points(counts: &[usize], figures: &[Figure]) -> Vec<(f64, f64)> {
    let counts = counts.iter().map(|&count| count as f64);
    counts.zip(figures.iter().map(|figure| figure.value)).collect()
}

fn trial<'t>(
    lab: &'t Lab<'_>,
    medium: &'t MediumData,
    source: Source,
    threads: usize,
    decode: bool,
) -> Result<Trial<'t>> {
    let limit = lab.options.limit;
    let batch_size = lab.options.batch_size;
    let (reads, run): (_, Box<dyn FnMut() -> Result<Sample>>) = match source {
        Source::Files => {
            let files = medium.images()?;
            let reads = Footprint::files(files.iter().map(|file| &file.path));
            let run = move || {
                let app = MiniApp {
                    files: &files,
                    threads,
                    batch_size,
                    prefetch: 0,
                    decode,
                    step: Duration::ZERO,
                    limit,
                };
                let ran = app.run()?;
                Ok(per_second(ran.images, ran.bytes, ran.read, ran.seconds))
            };
            (reads, Box::new(run))
        }
        Source::TfRecord | Source::Indexed => {
            let split = match source {
                Source::TfRecord => medium.tfrecord()?,
                _ => medium.indexed()?,
            };
            let paths = split.shards().iter().map(|shard| shard.path().to_owned());
            let reads = Footprint::files(paths.collect::<Vec<_>>());
            (reads, Box::new(move || load(&split, threads, batch_size, decode, limit)))
        }
    };
    let name = format!("{}, {threads} {}", source.name(), if threads == 1 { "thread" } else { "threads" });
    Ok(Trial {
        medium: medium.name.clone(),
        name,
        unit: "images/s",
        reads: Some(reads),
        direct: false,
        run,
    })
}

/// Batches of the loader until an epoch ends or the time is up.
fn load(split: &Split, threads: usize, batch_size: u64, decode: bool, limit: Duration) -> Result<Sample> {
    let transform = match decode {
        true => Transform::Eval(EvalTransform::new(SIDE, SIDE)),
        false => Transform::KeepEncoded,
    };
    let mut options = Options::new(batch_size, transform);
    options.threads = threads;
    let begin = Instant::now();
    let mut loader = Loader::new(split.clone(), options)?;
    let mut images = 0;
    while let Some(batch) = loader.next_batch()? {
        images += batch.samples.len() as u64;
        if begin.elapsed() > limit {
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let read = loader.stats().bytes_read;
    let all: u64 = split.shards().iter().map(|shard| shard.index().data_len()).sum();
    let bytes = all / split.len().max(1) * images;
    // Reads ahead for the next epoch come from the page cache, and no batch of this run holds them.
    Ok(per_second(images, bytes, read.clamp(bytes, all), seconds))
}

fn per_second(images: u64, bytes: u64, read: u64, seconds: f64) -> Sample {
    Sample {
        value: images as f64 / seconds,
        bytes: read,
        more: [("MB/s".to_owned(), bytes as f64 / 1e6 / seconds)].into(),
    }
}
