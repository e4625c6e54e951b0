//! E3: how many image-sized reads per second the storage gives.

use std::collections::BTreeMap;

use crate::experiment::data::MediumData;
use crate::experiment::lab::Lab;
use crate::experiment::requests::{reads, shards};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::storage::{ReadJob, SizeMix};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E3",
    title: "Reads of the dataset's own sizes",
    question: "How many image-sized random reads can the storage give, and what do single files cost?",
    is_default: true,
    trials: |_| 4,
    run,
    ..Experiment::OTHER
};

pub(super) const DEPTH: usize = 128;
const READS: u64 = 500_000;
/// The sizes of the published job in bytes, with their shares in percent.
const PUBLISHED: [(u32, u32); 8] = [
    (2 << 10, 1),
    (4 << 10, 2),
    (8 << 10, 4),
    (16 << 10, 8),
    (32 << 10, 13),
    (64 << 10, 38),
    (128 << 10, 33),
    (256 << 10, 1),
];
/// Sizes are rounded up to this many bytes.
const STEP: u64 = 4096;
/// Bytes per read of a shard.
const SHARD_BLOCK: u32 = 1 << 20;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let mut trials = Vec::new();
    for medium in &lab.media {
        let direct = medium.direct_works()?;
        let large = [(medium.large()?, medium.size())];
        let published = SizeMix::new(PUBLISHED.to_vec())?;
        let published = ReadJob::random(large.clone(), &published, READS, 2)?;
        let own = ReadJob::random(large, &sizes(medium)?, READS, 3)?;
        let files = medium.images()?;
        let files = ReadJob::whole_files(files.iter().map(|file| (file.path.clone(), file.bytes)))?;
        let shards = ReadJob::sequential(shards(medium)?, SHARD_BLOCK)?;
        for (name, job) in [
            ("published sizes in one file", published),
            ("these sizes in one file", own),
            ("these images as single files", files),
        ] {
            trials.push(reads(lab, medium, name, "reads/s", direct, job, DEPTH));
        }
        trials.push(reads(lab, medium, "shards, 1 MiB a read", "MB/s", direct, shards, DEPTH));
    }
    found.figures = lab.in_turns(trials)?;
    found.notes.push(
        "One large file hides open, stat and the placement of many files: the first two rows are upper bounds for single files.".to_owned(),
    );
    Ok(found)
}

/// Returns the sizes of the images with their shares.
pub(super) fn sizes(medium: &MediumData) -> Result<SizeMix> {
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for file in medium.images()?.iter() {
        *counts.entry(file.bytes.div_ceil(STEP) * STEP).or_default() += 1;
    }
    let sizes = counts.into_iter().map(|(size, count)| Ok((u32::try_from(size)?, count)));
    Ok(SizeMix::new(sizes.collect::<Result<_>>()?)?)
}
