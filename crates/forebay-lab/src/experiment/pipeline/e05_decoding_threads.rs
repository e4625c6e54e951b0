//! E5: images per second by the number of threads that read and decode.

use crate::experiment::Experiment;
use crate::experiment::threads::{run, trials};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E5",
    title: "Threads that read and decode",
    question: "How does ingestion scale with threads on each medium, and how much is preprocessing?",
    is_default: true,
    trials,
    run: |lab| run(lab, true),
    ..Experiment::OTHER
};
