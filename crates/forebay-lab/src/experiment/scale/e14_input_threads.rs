//! E14: how many threads the consumers need.

use crate::experiment::consumers::feed;
use crate::experiment::lab::{Cache, Lab, Trial};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E14",
    title: "Input threads of a node",
    question: "How many CPU threads feed the accelerators of a node?",
    trials: |options| options.threads.len(),
    run,
    ..Experiment::OTHER
};

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let options = lab.options;
    let mut trials = Vec::new();
    for medium in &lab.media {
        let split = medium.tfrecord()?;
        for &threads in &options.threads {
            let (files, split) = (footprint(&split), split.clone());
            let name = format!("{threads} {}", if threads == 1 { "thread" } else { "threads" });
            let run = move || feed(lab, &split, true, threads);
            let trial = Trial::new(&medium.name, name, "images/s", run);
            trials.push(trial.reading(files, Cache::Emptied).standing_in());
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    let series = found.figures.chunks(options.threads.len()).map(|figures| {
        let threads = options.threads.iter().map(|&threads| threads as f64);
        Series::of(&figures[0].medium, FigureClass::StandIn, threads, figures)
    });
    found.plots.push(Plot {
        title: format!("{} consumers", lab.most_ranks()),
        x: "threads".to_owned(),
        scale: Scale::Logarithmic,
        y: "images/s".to_owned(),
        series: series.collect(),
    });
    let per_core = found.figures.iter().filter_map(|figure| figure.more.get("images/s a core").copied());
    let per_core = per_core.fold(0.0, f64::max);
    let consumer = &options.consumer;
    found.notes.push(consumer.note());
    found.notes.push(format!(
        "A core prepares up to {per_core:.0} images/s: a consumer needs {:.1} cores. Cores are CPU seconds by seconds, of all threads of the process; {} are here, hyper-threads counted.",
        consumer.images_per_s() / per_core.max(1e-9),
        crate::experiment::cores()
    ));
    Ok(found)
}
