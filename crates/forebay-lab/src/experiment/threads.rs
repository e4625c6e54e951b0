//! Images per second by the number of threads, with and without decoding.

use super::data::MediumData;
use super::input::{Input, Reading};
use super::lab::{Cache, Lab, Sample, Trial};
use super::mini_app::SIDE;
use super::stores::{Shards, StoreData};
use super::{CharacterizeOptions, Findings};
use crate::Result;
use crate::cold::Footprint;
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
    let input = match source {
        Source::Files => Input::Files(medium.images()?),
        Source::TfRecord => Input::Records(medium.tfrecord()?),
        Source::Indexed => Input::Records(medium.indexed()?),
    };
    let footprint = input.footprint();
    let run = move || read(lab, &input, threads, decode);
    let trial = Trial::new(&medium.name, named(source, threads), "images/s", run);
    Ok(trial.reading(footprint, Cache::Emptied))
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
        let sample = read(lab, &Input::Records(split), threads, decode)?;
        let fetched = storage.stats().map(|stats| stats.fetched_bytes);
        Ok(sample.fetching(fetched))
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

/// Reads images for a consumer that takes no time.
fn read(lab: &Lab<'_>, input: &Input, threads: usize, decode: bool) -> Result<Sample> {
    let how = Reading {
        threads,
        ranks: 1,
        decode,
        steps: None,
    };
    let ran = input.run(lab.options, &how)?;
    Ok(Sample::new(
        ran.images as f64 / ran.seconds,
        ran.read,
        [("MB/s", ran.bytes as f64 / 1e6 / ran.seconds)],
    ))
}
