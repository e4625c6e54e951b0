//! E8: how the waits of a consumer change with the batch size.

use std::time::Duration;

use crate::experiment::waits::trial;
use crate::experiment::lab::Lab;
use crate::experiment::{Experiment, Findings};
use crate::Result;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E8",
    title: "Batch size",
    question: "How does runtime change with the batch size?",
    trials: |options| SIZES.len() * options.prefetch.len(),
    run,
    ..Experiment::OTHER
};

const SIZES: [u64; 5] = [16, 32, 64, 128, 256];
/// A step takes `STEP`, plus `IMAGE` for each image of the batch.
const STEP: Duration = Duration::from_millis(20);
const IMAGE: Duration = Duration::from_millis(3);

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut trials = Vec::new();
    for medium in &lab.media {
        for &prefetch in &lab.options.prefetch {
            for size in SIZES.into_iter().filter(|&size| size <= lab.options.files) {
                let step = STEP + IMAGE * u32::try_from(size)?;
                let mut trial = trial(lab, medium, prefetch, step, size)?;
                trial.name = format!("batches of {size}, prefetch {prefetch}");
                trials.push(trial);
            }
        }
    }
    Ok(Findings {
        figures: lab.in_turns(trials)?,
        plots: Vec::new(),
        notes: vec![format!(
            "Stand-in: a consumer whose step takes {} ms and {} ms for each image. The batch size changes convergence as well, which this does not measure.",
            STEP.as_millis(),
            IMAGE.as_millis()
        )],
    })
}
