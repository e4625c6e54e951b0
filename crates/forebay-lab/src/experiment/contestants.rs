//! Formats that experiments compare: image files, which the mini-application reads, and formats that Forebay's loader reads
//! in place. A format is measured only if its samples equal those of the indexed shards. `tools/peers` compares other data
//! loaders.

use std::time::Duration;

use super::CharacterizeOptions;
use super::data::MediumData;
use super::input::{Delivery, Input, Reading};
use super::lab::{Cache, Lab};
use super::stored::{Differences, Samples};
use crate::cold::Footprint;
use crate::{Result, Steps};

/// Numbers of workers and states of the page cache that each format is measured with.
pub(super) const WORKERS: [usize; 2] = [1, 4];
pub(super) const CACHES: [(&str, Cache); 2] = [("cold", Cache::Emptied), ("warm", Cache::Filled)];
const FILES: &str = "image files";
/// Names of all formats: first that of image files, then the others, sorted.
pub(super) const NAMES: [&str; 7] = [
    "files",
    "arrayrecord",
    "indexed",
    "mds",
    "parquet",
    "tfrecord",
    "webdataset",
];
/// Returns the number of figures of an experiment with all selected formats.
pub(super) fn figures(options: &CharacterizeOptions) -> usize {
    let formats = NAMES.iter().filter(|name| options.has_format(name));
    formats.count() * WORKERS.len() * CACHES.len()
}

pub(super) fn name(format: &str, workers: usize, cache: &str) -> String {
    let noun = if workers == 1 { "worker" } else { "workers" };
    format!("{format}, {workers} {noun}, {cache}")
}

/// A format and its images.
pub(super) struct Contestant<'l> {
    pub(super) name: String,
    pub(super) files: Footprint,
    input: Input,
    options: &'l CharacterizeOptions,
}

impl<'l> Contestant<'l> {
    fn new(name: &str, input: Input, options: &'l CharacterizeOptions) -> Self {
        Self {
            name: name.to_owned(),
            files: input.footprint(),
            input,
            options,
        }
    }

    /// Reads until the time limit of a run. With `step`, the time of a training step, images are decoded; without, they stay
    /// encoded.
    pub(super) fn run(&self, workers: usize, step: Option<Duration>) -> Result<Delivery> {
        let how = Reading {
            threads: workers,
            ranks: 1,
            decode: step.is_some(),
            steps: step.map(Steps::from),
        };
        self.input.run(self.options, &how)
    }
}

/// Returns the formats that give the right samples, and adds a note for each of the others.
pub(super) fn contestants<'l>(
    lab: &'l Lab<'_>,
    medium: &MediumData,
    notes: &mut Vec<String>,
) -> Result<Vec<Contestant<'l>>> {
    let options = lab.options;
    let mut found = Vec::new();
    if options.has_format(NAMES[0]) {
        let input = Input::Files(medium.images()?);
        found.push(Contestant::new(FILES, input, options));
    }
    let most = WORKERS[WORKERS.len() - 1];
    let right = Samples::of(&medium.indexed()?, 1)?;
    for format in medium.formats(options)?.iter() {
        let Differences {
            wrong,
            missing,
            repeated,
        } = Samples::of(&format.split, most)?.differences(&right);
        if wrong + missing + repeated > 0 {
            notes.push(format!(
                "{}: no figures of {}: {wrong} samples are wrong, {missing} missing, {repeated} repeated",
                medium.name, format.name
            ));
            continue;
        }
        let input = Input::Records(format.split.clone());
        found.push(Contestant::new(format.name, input, options));
    }
    Ok(found)
}
