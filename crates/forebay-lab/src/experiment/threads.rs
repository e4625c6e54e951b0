//! Images per second by the number of threads, with and without decoding.

use forebay_image::{EvalTransform, Transform};
use forebay_shard::Split;

use super::data::{MediumData, image_files};
use super::feed::{Fed, Feed};
use super::lab::{Cache, Lab, Sample, Trial};
use super::mini_app::{MiniApp, SIDE};
use super::stores::{Shards, StoreData};
use super::{CharacterizeOptions, Findings};
use crate::Result;
use crate::cold::Footprint;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series};

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
    for store in &lab.stores {
        for source in [Source::TfRecord, Source::Indexed] {
            for &threads in &lab.options.threads {
                trials.push(of_store(lab, store, source, threads, decode));
            }
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    let counts = &lab.options.threads;
    let mut plots: Vec<Plot> = Vec::new();
    for figures in found.figures.chunks_mut(counts.len()) {
        let (first, medium) = (figures[0].value, figures[0].medium.clone());
        for figure in figures.iter_mut() {
            let speed_up = figure.value / first;
            figure.more.insert("speed-up".to_owned(), speed_up);
        }
        let of_source = figures[0]
            .name
            .rsplit_once(", ")
            .map_or("", |(source, _)| source);
        let threads = counts.iter().map(|&count| count as f64);
        let series = Series::of(of_source, FigureClass::Measured, threads, &*figures);
        let title = format!(
            "{medium}, {}",
            if decode {
                "with decoding"
            } else {
                "reading only"
            }
        );
        match plots.last_mut().filter(|plot| plot.title == title) {
            Some(plot) => plot.series.push(series),
            None => plots.push(Plot {
                title,
                x: "threads".to_owned(),
                scale: Scale::Logarithmic,
                y: "images/s".to_owned(),
                series: vec![series],
            }),
        }
    }
    found.plots = plots;
    let cores = super::cores();
    found.notes.push(match decode {
        true => format!("Images are decoded and resized to {SIDE} x {SIDE} pixels; more than {cores} threads share the {cores} cores."),
        false => "Single files are opened and read whole; the loader hands over encoded images.".to_owned(),
    });
    Ok(found)
}

fn trial<'t>(
    lab: &'t Lab<'_>,
    medium: &'t MediumData,
    source: Source,
    threads: usize,
    decode: bool,
) -> Result<Trial<'t>> {
    let (limit, batch_size) = (lab.options.limit, lab.options.batch_size);
    let name = named(source, threads);
    let split = match source {
        Source::Files => {
            let files = medium.images()?;
            let footprint = image_files(&files);
            let run = move || {
                let app = MiniApp {
                    threads,
                    decode,
                    ..MiniApp::new(&files, batch_size, limit)
                };
                let ran = app.run()?;
                Ok(per_second(ran.images, ran.bytes, ran.read, ran.seconds))
            };
            return Ok(
                Trial::new(&medium.name, name, "images/s", run).reading(footprint, Cache::Emptied)
            );
        }
        Source::TfRecord => medium.tfrecord()?,
        Source::Indexed => medium.indexed()?,
    };
    let footprint = footprint(&split);
    let run = move || {
        let fed = feed(lab, &split, threads, decode)?;
        Ok(per_second(fed.images, fed.bytes, fed.read, fed.seconds))
    };
    Ok(Trial::new(&medium.name, name, "images/s", run).reading(footprint, Cache::Emptied))
}

/// Returns a trial that reads shards in a store, which each run opens again.
fn of_store<'t>(
    lab: &'t Lab<'_>,
    store: &'t StoreData,
    source: Source,
    threads: usize,
    decode: bool,
) -> Trial<'t> {
    let shards = match source {
        Source::TfRecord => Shards::TfRecord,
        Source::Files | Source::Indexed => Shards::Indexed,
    };
    let run = move || {
        let (split, storage) = store.open(shards, lab.source()?)?;
        let fed = feed(lab, &split, threads, decode)?;
        let fetched = storage.stats().map(|stats| stats.fetched_bytes);
        Ok(per_second(fed.images, fed.bytes, fed.read, fed.seconds).fetching(fetched))
    };
    let trial = Trial::new(&store.name, named(source, threads), "images/s", run);
    trial.reading(Footprint::Store, Cache::Emptied)
}

fn named(source: Source, threads: usize) -> String {
    format!(
        "{}, {threads} {}",
        source.name(),
        if threads == 1 { "thread" } else { "threads" }
    )
}

/// Runs the loader with a consumer that takes no time.
fn feed(lab: &Lab<'_>, split: &Split, threads: usize, decode: bool) -> Result<Fed> {
    let transform = match decode {
        true => Transform::Eval(EvalTransform::new(SIDE, SIDE)),
        false => Transform::KeepEncoded,
    };
    let options = lab.options;
    let feed = Feed {
        threads,
        ..Feed::new(split, transform, options.batch_size, options.limit)
    };
    feed.run()
}

fn per_second(images: u64, bytes: u64, read: u64, seconds: f64) -> Sample {
    Sample::new(
        images as f64 / seconds,
        read,
        [("MB/s", bytes as f64 / 1e6 / seconds)],
    )
}
