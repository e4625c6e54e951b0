//! E13: how much of the rate without input is left with real input and default settings.

use forebay_synthetic::Recipe;

use crate::experiment::consumers::{MEMORY, feed, no_input};
use crate::experiment::lab::{Cache, Lab, Trial};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E13",
    title: "Real input against none, default settings",
    question: "How much does real input lose untuned, and which stage costs most?",
    trials: |_| ROWS.len() + 2,
    run,
    ..Experiment::OTHER
};

/// Names of the rows of each medium, their caches, and whether images are decoded.
const ROWS: [(&str, Cache, bool); 4] = [
    (COLD, Cache::Emptied, true),
    (WARM, Cache::Filled, true),
    ("TFRecords, cold, encoded", Cache::Emptied, false),
    ("TFRecords, warm, encoded", Cache::Filled, false),
];
pub(super) const COLD: &str = "TFRecords, cold, decoded";
const WARM: &str = "TFRecords, warm, decoded";

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let ranks = lab.most_ranks();
    let mut trials = vec![no_input(lab, ranks)];
    let generated = Recipe::parse(&format!("synthetic://imagenet?records={}", lab.options.files))?.open()?.split("train")?;
    let run = move || feed(lab, &generated, true, 0);
    trials.push(Trial::new(MEMORY, "generated images, decoded", "images/s", run).standing_in());
    for medium in &lab.media {
        let split = medium.tfrecord()?;
        for (name, cache, decode) in ROWS {
            let files = footprint(&split);
            let split = split.clone();
            let run = move || feed(lab, &split, decode, 0);
            let trial = Trial::new(&medium.name, name, "images/s", run);
            trials.push(trial.reading(files, cache).standing_in());
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    let names = found.figures.iter().map(|figure| figure.name.clone());
    found.plots.push(Plot {
        title: format!("{ranks} consumers"),
        x: "input".to_owned(),
        scale: Scale::Names(names.collect()),
        y: "images/s".to_owned(),
        series: vec![Series::bars(lab.options.consumer.name(), FigureClass::StandIn, &found.figures)],
    });
    found.notes.push(lab.options.consumer.note());
    found.notes.push(format!("{ranks} consumers; the loader's defaults, {} cores.", crate::experiment::cores()));
    Ok(found)
}
