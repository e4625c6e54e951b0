//! E7: whether reading ahead hides the storage from training.

use std::time::Duration;

use super::data::{MediumData, image_files};
use super::lab::{Cache, Lab, Sample, Trial};
use super::mini_app::MiniApp;
use super::{Experiment, Findings};
use crate::Result;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E7",
    title: "Prefetch on and off",
    question: "Does reading one batch ahead hide the cost of I/O from training, and down to which step time?",
    is_default: true,
    trials: |options| options.prefetch.len() * options.steps.len(),
    run,
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
    let mut found = Findings {
        figures: lab.in_turns(trials)?,
        ..Findings::default()
    };
    let each = options.prefetch.len() * options.steps.len();
    for (figures, medium) in found.figures.chunks(each).zip(&lab.media) {
        let series = figures.chunks(options.steps.len()).zip(&options.prefetch).map(|(figures, prefetch)| Series {
            name: format!("prefetch {prefetch}"),
            class: FigureClass::StandIn,
            points: options.steps.iter().map(|step| 1e3 * step.as_secs_f64()).zip(figures.iter().map(|figure| figure.value)).collect(),
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

/// Returns a trial that measures the share of time for which the consumer waits for batches.
pub(super) fn trial<'t>(
    lab: &Lab<'_>,
    medium: &MediumData,
    prefetch: u64,
    step: Duration,
    batch_size: u64,
) -> Result<Trial<'t>> {
    let files = medium.images()?;
    let (threads, limit) = (lab.most_threads(), lab.options.limit);
    let footprint = image_files(&files);
    let name = format!("prefetch {prefetch}, step {} ms", 1e3 * step.as_secs_f64());
    let run = move || {
        let app = MiniApp {
            threads,
            prefetch,
            steps: step.into(),
            ..MiniApp::new(&files, batch_size, limit)
        };
        let ran = app.run()?;
        let per_batch = 1e3 / ran.taken.len() as f64;
        let more = [
            ("images/s", ran.images as f64 / ran.seconds),
            ("wait ms a batch", ran.waited() * per_batch),
            ("MB/s demanded", demand(ran.bytes, ran.images, batch_size, step)),
        ];
        Ok(Sample::new(100.0 * ran.waited() / ran.seconds, ran.read, more))
    };
    let trial = Trial::new(&medium.name, name, "% of time waiting", run);
    Ok(trial.reading(footprint, Cache::Emptied).standing_in())
}

/// Returns the MB/s that a consumer demands if it never waits; 0 for a step that takes no time.
fn demand(bytes: u64, images: u64, batch_size: u64, step: Duration) -> f64 {
    match step.is_zero() {
        true => 0.0,
        false => bytes as f64 / images as f64 * batch_size as f64 / 1e6 / step.as_secs_f64(),
    }
}
