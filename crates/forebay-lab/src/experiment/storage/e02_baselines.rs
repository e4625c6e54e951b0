//! E2: what the storage gives without any framework.

use crate::experiment::data::MediumData;
use crate::experiment::lab::{Lab, Trial};
use crate::experiment::requests::{limited, reads, sample};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::storage::{self, ReadJob, SizeMix, WriteJob};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E2",
    title: "Large sequential and small random requests",
    question: "What can the storage give without any framework?",
    is_default: true,
    trials: |_| 4,
    run,
    ..Experiment::OTHER
};

const LARGE: u32 = 4 << 20;
const LARGE_DEPTH: usize = 16;
const SMALL: u32 = 16 << 10;
const SMALL_DEPTH: usize = 128;
/// More than any storage reads within the longest run.
const SMALL_READS: u64 = 2_000_000;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let mut trials = Vec::new();
    for medium in &lab.media {
        let direct = medium.direct_works()?;
        if !direct {
            found.notes.push(format!(
                "{}: the file system cannot bypass the page cache; requests go through it",
                medium.name
            ));
        }
        let large = medium.large()?;
        let sequential = ReadJob::sequential([(large.clone(), medium.size())], LARGE)?;
        let random = ReadJob::random([(large, medium.size())], &SizeMix::fixed(SMALL), SMALL_READS, 1)?;
        trials.push(reads(lab, medium, "sequential read, 4 MB", "MB/s", direct, sequential, LARGE_DEPTH));
        trials.push(writes(lab, medium, "sequential write, 4 MB", "MB/s", direct, LARGE, LARGE_DEPTH));
        trials.push(reads(lab, medium, "random read, 16 KB", "reads/s", direct, random, SMALL_DEPTH));
        trials.push(writes(lab, medium, "random write, 16 KB", "writes/s", direct, SMALL, SMALL_DEPTH));
    }
    found.figures = lab.in_turns(trials)?;
    Ok(found)
}

fn writes<'t>(
    lab: &'t Lab<'_>,
    medium: &MediumData,
    name: &str,
    unit: &'static str,
    direct: bool,
    block: u32,
    depth: usize,
) -> Trial<'t> {
    let options = limited(lab, depth);
    let job = WriteJob {
        path: medium.scratch_file(),
        bytes: medium.size(),
        block,
        random: block == SMALL,
        direct,
    };
    let run = move || Ok(sample(&storage::write(&job, &options)?, unit, false));
    Trial::new(&medium.name, name, unit, run)
}
