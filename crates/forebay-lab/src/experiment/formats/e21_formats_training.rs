//! E21: how much of the difference between formats is left while a network trains.

use std::time::Duration;

use crate::experiment::contestants::{CACHES, WORKERS, contestants, figures, name};
use crate::experiment::input::Delivery;
use crate::experiment::lab::{Lab, Sample, Trial};
use crate::experiment::{Experiment, Findings, Scratch};
use crate::Result;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E21",
    title: "Formats while training",
    question: "How long does training wait for batches of each format?",
    trials: figures,
    run,
    scratch: Scratch::Formats,
    ..Experiment::OTHER
};

const STEP: Duration = Duration::from_millis(75);
pub(super) const SHARE: &str = "% of the step";

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    for medium in &lab.media {
        let formats = contestants(lab, medium, &mut found.notes)?;
        let mut trials = Vec::new();
        for format in &formats {
            for workers in WORKERS {
                for (cache, state) in CACHES {
                    let run = move || Ok(sample(&format.run(workers, Some(STEP))?));
                    let name = name(&format.name, workers, cache);
                    let trial = Trial::new(&medium.name, name, "ms waiting a batch", run);
                    trials.push(trial.reading(format.files.clone(), state).standing_in());
                }
            }
        }
        found.figures.extend(lab.in_turns(trials)?);
    }
    found.notes.push(format!(
        "Stand-in: a consumer that sleeps for {} ms with each batch of {}. Images are decoded. The first batch, for which nothing was made ahead, is part of the mean.",
        STEP.as_millis(),
        lab.options.batch_size
    ));
    Ok(found)
}

fn sample(ran: &Delivery) -> Sample {
    let each = 1e3 * ran.waited / ran.batches.max(1) as f64;
    let more = [(SHARE, 100.0 * each / (1e3 * STEP.as_secs_f64()))];
    Sample::new(each, ran.read, more)
}
