//! E10: the cost of checkpoints that are written to each medium directly, or staged on a fast one.

use crate::experiment::data::image_files;
use crate::experiment::lab::{Cache, Lab, Trial};
use crate::experiment::training::{DIRECT, Target, Training, pairs};
use crate::experiment::{CharacterizeOptions, Experiment, Findings};
use crate::Result;
use crate::report::{Figure, FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E10",
    title: "Checkpoints: direct, and staged",
    question: "What does a synchronous checkpoint cost on each medium, and what does staging on a fast one save?",
    trials,
    run,
    ..Experiment::OTHER
};

pub(super) const STAGED: &str = "staged, drained to ";
/// Factor of the estimated time: saving and draining take more than the training itself.
const TIMES: usize = 3;

/// Returns the trials of a medium: its staged variants, the direct one, and one without checkpoints.
fn trials(options: &CharacterizeOptions) -> usize {
    TIMES * (options.media.len().saturating_sub(1).max(1) + 2)
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let Some(first) = lab.media.first() else {
        return Ok(Findings::default());
    };
    let files = first.images()?;
    let training = Training::new(lab, &files);
    let mut variants = vec![(&first.name, "no checkpoints".to_owned(), Target::None)];
    for medium in &lab.media {
        variants.push((&medium.name, DIRECT.to_owned(), Target::Direct(medium)));
    }
    for (fast, slow) in pairs(lab.media.len()) {
        let (fast, slow) = (&lab.media[fast], &lab.media[slow]);
        variants.push((&fast.name, format!("{STAGED}{}", slow.name), Target::Staged { fast, slow }));
    }
    let trials = variants.into_iter().map(|(medium, name, target)| {
        let training = &training;
        let trial = Trial::new(medium, name, "s of runtime", move || Ok(training.run(target)?.sample()));
        trial.reading(image_files(&files), Cache::Emptied).standing_in()
    });
    let mut found = Findings::measured(lab, trials.collect())?;
    found.plots.push(plot(&found.figures));
    found.notes.push(training.note());
    found.notes.push(format!(
        "Images are read from {}. A direct save ends with fsync of the file and its directory; a staged one when it is durable on the fast medium, and its copy is checked while it is drained.",
        first.name
    ));
    if lab.media.len() == 1 {
        found.notes.push("There is one medium: what is staged on it is drained to it.".to_owned());
    }
    let in_memory = lab.media.iter().filter(|medium| medium.is_memory());
    found.notes.extend(in_memory.map(|medium| format!("{} is memory: not durable", medium.name)));
    Ok(found)
}

/// Plots the runtime, and the part of it that saving takes.
fn plot(figures: &[Figure]) -> Plot {
    Plot {
        title: "Runtime with checkpoints".to_owned(),
        x: "variant".to_owned(),
        scale: Scale::Names(figures.iter().map(|figure| format!("{}, {}", figure.medium, figure.name)).collect()),
        y: "s".to_owned(),
        series: vec![
            Series::bars("runtime", FigureClass::StandIn, figures),
            Series::bars_of("saving", FigureClass::StandIn, figures, "s saving"),
        ],
    }
}
