//! E23: whether formats give the right samples with several workers.

use super::contestants::{about, count, right_hashes};
use super::formats::{Differences, Samples};
use super::lab::{Cache, Lab, Sample, Trial};
use super::packages::Reading;
use super::{Experiment, Findings};
use crate::Result;
use crate::read::footprint;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E23",
    title: "Right samples with several workers",
    question: "Does each format give the right labels and images with several workers?",
    is_default: false,
    // Whole epochs of each format.
    trials: |options| count(options) * WORKERS.len(),
    run,
};

const WORKERS: [usize; 4] = [1, 2, 4, 8];
/// The format that gave wrong labels when it was opened before workers were forked.
const SHARED: &str = "hdf5";
const OPENED_FIRST: &str = "opened before the workers";

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    for medium in &lab.media {
        let right = Samples::of(&medium.indexed()?, 1)?;
        let formats = medium.formats(lab.options)?;
        let packages = medium.packages(lab.options)?;
        let right_of_packages = right_hashes(medium, &packages)?;
        let mut trials = Vec::new();
        for format in formats.iter() {
            for workers in WORKERS {
                let right = &right;
                let run = move || {
                    let samples = Samples::of(&format.split, workers)?;
                    Ok(sample(&samples.differences(right), samples.bytes, 0))
                };
                let trial = Trial::new(&medium.name, name(format.name, workers), UNIT, run);
                trials.push(trial.reading(footprint(&format.split), Cache::Kept));
            }
        }
        for package in &packages.stored {
            let right = &right_of_packages[usize::from(package.is_pixels)];
            let kinds = if package.reader == SHARED { &[false, true][..] } else { &[false] };
            for &is_shared in kinds {
                for workers in WORKERS {
                    let reading = Reading {
                        workers,
                        is_shared,
                        // Single samples of large chunks take minutes; E20 and E21 compare them before they measure.
                        by_chunk: true,
                        ..Reading::default()
                    };
                    let run = move || {
                        let (found, ran) = package.differences(reading, right)?;
                        Ok(sample(&found, ran.read, ran.from_storage))
                    };
                    let of = match is_shared {
                        true => format!("{}, {OPENED_FIRST}", package.name),
                        false => package.name.to_owned(),
                    };
                    let trial = Trial::new(&medium.name, name(&of, workers), UNIT, run);
                    trials.push(trial.reading(package.files.clone(), Cache::Kept));
                }
            }
        }
        found.figures.extend(lab.once(trials)?);
        found.notes.extend(about(&packages));
    }
    found.notes.push(
        "Label and bytes of each sample of an epoch are compared with those of indexed shards and one worker. Workers are threads of Forebay's loader, and processes of packages, which open the files after they are forked where nothing else is said. Rows of a chunk of Zarr are read together."
            .to_owned(),
    );
    Ok(found)
}

const UNIT: &str = "wrong samples";

pub(super) fn name(format: &str, workers: usize) -> String {
    let noun = if workers == 1 { "worker" } else { "workers" };
    format!("{format}, {workers} {noun}")
}

fn sample(found: &Differences, read: u64, by_others: u64) -> Sample {
    let more = [("missing", found.missing as f64), ("repeated", found.repeated as f64)];
    Sample {
        by_others,
        ..Sample::new(found.wrong as f64, read, more)
    }
}
