//! E7: whether reading ahead hides the storage from training.

use crate::experiment::lab::Lab;
use crate::experiment::waits::trial;
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E7",
    title: "Prefetch on and off",
    question: "Does reading one batch ahead hide the cost of I/O from training, and down to which step time?",
    is_default: true,
    trials: |options| options.prefetch.len() * options.steps.len(),
    run,
    ..Experiment::OTHER
};

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let options = lab.options;
    let mut trials = Vec::new();
    for medium in &lab.media {
        for &prefetch in &options.prefetch {
            for &step in &options.steps {
                trials.push(trial(lab, medium, prefetch, step, options.batch_size)?);
            }
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    let each = options.prefetch.len() * options.steps.len();
    for (figures, medium) in found.figures.chunks(each).zip(&lab.media) {
        let series = figures.chunks(options.steps.len()).zip(&options.prefetch).map(|(figures, prefetch)| {
            let steps = options.steps.iter().map(|step| 1e3 * step.as_secs_f64());
            Series::of(format!("prefetch {prefetch}"), FigureClass::StandIn, steps, figures)
        });
        found.plots.push(Plot {
            title: format!("{}, share of time that the consumer waits", medium.name),
            x: "step time, ms".to_owned(),
            scale: Scale::Linear,
            y: "% of time".to_owned(),
            series: series.collect(),
        });
    }
    found.notes.push(format!(
        "Stand-in: a consumer that sleeps in place of training; {} threads read and decode single files. A step that takes the CPU as well waits longer.",
        lab.most_threads()
    ));
    Ok(found)
}
