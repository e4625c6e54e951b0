//! E23: whether formats give the right samples with several workers.

use crate::experiment::stored::{Differences, Samples};
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::{Experiment, Findings, Scratch};
use crate::Result;
use crate::read::footprint;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E23",
    title: "Right samples with several workers",
    question: "Does each format give the right labels and images with several workers?",
    // Each trial is a whole epoch.
    trials: |options| crate::experiment::contestants::NAMES.iter().filter(|name| options.has_format(name)).count() * WORKERS.len(),
    run,
    scratch: Scratch::Formats,
    ..Experiment::OTHER
};

const WORKERS: [usize; 4] = [1, 2, 4, 8];
fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    for medium in &lab.media {
        let right = Samples::of(&medium.indexed()?, 1)?;
        let formats = medium.formats(lab.options)?;
        let mut trials = Vec::new();
        for format in formats.iter() {
            for workers in WORKERS {
                let right = &right;
                let run = move || {
                    let samples = Samples::of(&format.split, workers)?;
                    Ok(sample(&samples.differences(right), samples.bytes))
                };
                let trial = Trial::new(&medium.name, name(format.name, workers), UNIT, run);
                trials.push(trial.reading(footprint(&format.split), Cache::Kept));
            }
        }
        found.figures.extend(lab.once(trials)?);
    }
    found.notes.push(
        "Label and bytes of each sample of an epoch are compared with those of indexed shards and one worker. Workers are threads of Forebay's loader."
            .to_owned(),
    );
    Ok(found)
}

const UNIT: &str = "wrong samples";

fn name(format: &str, workers: usize) -> String {
    let noun = if workers == 1 { "worker" } else { "workers" };
    format!("{format}, {workers} {noun}")
}

fn sample(found: &Differences, read: u64) -> Sample {
    let more = [("missing", found.missing as f64), ("repeated", found.repeated as f64)];
    Sample::new(found.wrong as f64, read, more)
}
