//! E12: the rate of the consumers if data cost nothing.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::lab::{Lab, Sample, Trial};
use super::mini_app::SIDE;
use super::{Experiment, Findings};
use crate::{Result, Steps};
use crate::random::Random;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E12",
    title: "Consumers without input",
    question: "What do the accelerators take if data cost nothing?",
    is_default: false,
    trials: |options| options.ranks.len(),
    run,
};

/// Name of the medium in figures that read nothing.
pub(super) const MEMORY: &str = "memory";

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let ranks = &lab.options.ranks;
    let trials = ranks.iter().map(|&ranks| trial(lab, ranks));
    let mut found = Findings {
        figures: lab.in_turns(trials.collect())?,
        ..Findings::default()
    };
    if let Some(first) = found.figures.first().map(|figure| figure.value) {
        for figure in &mut found.figures {
            figure.more.insert("scaling".to_owned(), figure.value / first);
        }
    }
    found.notes.push(lab.options.consumer.note());
    found.notes.push(
        "Each consumer copies a batch that is in memory before its step, and all begin a step together. All-reduce is not simulated: the scaling is that of the copies."
            .to_owned(),
    );
    Ok(found)
}

/// Returns a trial that measures the images per second of `ranks` consumers whose batches are in memory.
pub(super) fn trial<'t>(lab: &Lab<'_>, ranks: u64) -> Trial<'t> {
    let batch = lab.options.batch_size;
    let (steps, limit) = (lab.options.consumer.steps(batch), lab.options.limit);
    let noun = if ranks == 1 { "consumer" } else { "consumers" };
    let run = move || {
        let (images, seconds) = consume(ranks, batch, &steps, limit);
        Ok(Sample::new(images as f64 / seconds, 0, []))
    };
    Trial::new(MEMORY, format!("{ranks} {noun}, no input"), "images/s", run).standing_in()
}

/// Runs the consumers. Returns the number of images that they took, and the seconds.
fn consume(ranks: u64, batch: u64, steps: &Steps, limit: Duration) -> (u64, f64) {
    let mut pixels = vec![0; (batch * u64::from(SIDE * SIDE) * 3) as usize];
    Random::new(1).fill(&mut pixels);
    let count = (limit.as_secs_f64() / steps.mean().as_secs_f64().max(1e-3)).ceil().clamp(1.0, 1e6) as u64;
    let barrier = Barrier::new(ranks as usize);
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..ranks {
            scope.spawn(|| {
                let mut own = vec![0; pixels.len()];
                for number in 0..count {
                    own.copy_from_slice(&pixels);
                    std::hint::black_box(&own);
                    thread::sleep(steps.at(number));
                    barrier.wait();
                }
            });
        }
    });
    (ranks * batch * count, begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_take_no_more_than_their_step_allows() {
        let (images, seconds) = consume(3, 2, &Duration::from_millis(10).into(), Duration::from_millis(35));
        assert_eq!(images, 3 * 2 * 4);
        assert!(seconds >= 0.04, "{seconds}");
    }
}
