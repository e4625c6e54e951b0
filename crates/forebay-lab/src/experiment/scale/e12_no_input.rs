//! E12: the rate of the consumers if data cost nothing.

use crate::experiment::consumers::no_input;
use crate::experiment::lab::Lab;
use crate::experiment::{Experiment, Findings};
use crate::Result;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E12",
    title: "Consumers without input",
    question: "What do the accelerators take if data cost nothing?",
    trials: |options| options.ranks.len(),
    run,
    ..Experiment::OTHER
};

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let ranks = &lab.options.ranks;
    let trials = ranks.iter().map(|&ranks| no_input(lab, ranks));
    let mut found = Findings::measured(lab, trials.collect())?;
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
