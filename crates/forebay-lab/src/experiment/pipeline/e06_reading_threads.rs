//! E6: images per second by the number of threads that read, without decoding.

use crate::experiment::Experiment;
use crate::experiment::threads::{run, trials};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E6",
    title: "Threads that read only",
    question: "How does reading scale with threads on each medium if nothing is decoded?",
    is_default: true,
    trials,
    run: |lab| run(lab, false),
    ..Experiment::OTHER
};
