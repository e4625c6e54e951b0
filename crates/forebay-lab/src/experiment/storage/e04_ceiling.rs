//! E4: the rate of one large file, which later figures are compared with.

use crate::experiment::requests::{limited, reads, sample};
use crate::experiment::lab::{Lab, Trial};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::storage::{self, ReadJob, WriteJob};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E4",
    title: "Ceiling of one large file",
    question: "What is the upper bound of each medium for all later figures?",
    is_default: true,
    trials: |_| 3,
    run,
    ..Experiment::OTHER
};

const READ: &str = "read, 4 tasks";
pub(super) const BLOCK: u32 = 1 << 20;
const TASKS: usize = 4;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut trials = Vec::new();
    for medium in &lab.media {
        let large = medium.large()?;
        let job = || ReadJob::sequential([(large.clone(), medium.size())], BLOCK);
        trials.push(reads(lab, medium, "read, 1 task", "MB/s", false, job()?, 1));
        trials.push(reads(lab, medium, READ, "MB/s", false, job()?, TASKS));
        let options = limited(lab, TASKS);
        let written = WriteJob {
            path: medium.scratch_file(),
            bytes: medium.size(),
            block: BLOCK,
            random: false,
            direct: false,
        };
        let run = move || Ok(sample(&storage::write(&written, &options)?, "MB/s", false));
        trials.push(Trial::new(&medium.name, "write with fsync, 4 tasks", "MB/s", run));
    }
    let notes = vec!["Through the page cache, in blocks of 1 MiB; writes end with fsync, within the timing.".to_owned()];
    Ok(Findings {
        figures: lab.in_turns(trials)?,
        plots: Vec::new(),
        notes,
    })
}
