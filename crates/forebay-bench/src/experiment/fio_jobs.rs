//! The accesses of E2, E3 and E4 as job files of fio, which makes files of its own on each medium.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_store::{Durability, write_file};

use super::data::MediumData;
use super::lab::Lab;
use super::{e02_baselines, e03_size_mix, e04_ceiling};
use crate::Result;
use crate::storage::SizeMix;
use crate::storage::fio::{FioAccess, fio_accesses};

/// The experiments that have jobs.
pub(super) const WITH_JOBS: [&str; 3] = ["E2", "E3", "E4"];

/// Writes a job file for each medium and each of the experiments; gives their paths.
pub(super) fn write(lab: &Lab<'_>, ids: &[&str], dir: &Path) -> Result<Vec<PathBuf>> {
    let failed = |path: &Path, error| format!("cannot write \"{}\": {error}", path.display());
    fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    let mut written = Vec::new();
    for (number, medium) in lab.media.iter().enumerate() {
        for id in ids.iter().filter(|id| WITH_JOBS.contains(id)) {
            let direct = medium.direct_works()?;
            let accesses = match *id {
                "E2" => baselines(direct),
                "E3" => sizes(medium, direct)?,
                _ => ceiling(),
            };
            let place = lab.options.media[number].join("forebay-fio");
            let text = fio_accesses(&accesses, &place, medium.size(), lab.options.limit)?;
            let path = dir.join(format!("{id}-{}.fio", number + 1));
            write_file(&path, text.as_bytes(), Durability::Cached)?;
            written.push(path);
        }
    }
    Ok(written)
}

fn baselines(direct: bool) -> Vec<FioAccess> {
    let (large, small) = (
        SizeMix::fixed(e02_baselines::LARGE),
        SizeMix::fixed(e02_baselines::SMALL),
    );
    let access = |name, sizes: &SizeMix, is_random, is_write, depth| FioAccess {
        name,
        sizes: sizes.clone(),
        is_random,
        is_write,
        direct,
        depth,
    };
    let (deep, deeper) = (e02_baselines::LARGE_DEPTH, e02_baselines::SMALL_DEPTH);
    vec![
        access("sequential-read", &large, false, false, deep),
        access("sequential-write", &large, false, true, deep),
        access("random-read", &small, true, false, deeper),
        access("random-write", &small, true, true, deeper),
    ]
}

fn sizes(medium: &MediumData, direct: bool) -> Result<Vec<FioAccess>> {
    let published = SizeMix::new(e03_size_mix::PUBLISHED.to_vec())?;
    let mixes = [
        ("published-sizes", published),
        ("these-sizes", e03_size_mix::sizes(medium)?.in_percent()),
    ];
    let accesses = mixes.map(|(name, sizes)| FioAccess {
        name,
        sizes,
        is_random: true,
        is_write: false,
        direct,
        depth: e03_size_mix::DEPTH,
    });
    Ok(accesses.into())
}

fn ceiling() -> Vec<FioAccess> {
    let access = |name, is_write, depth| FioAccess {
        name,
        sizes: SizeMix::fixed(e04_ceiling::BLOCK),
        is_random: false,
        is_write,
        direct: false,
        depth,
    };
    vec![
        access("read-1-task", false, 1),
        access("read-4-tasks", false, e04_ceiling::TASKS),
        access("write-4-tasks", true, e04_ceiling::TASKS),
    ]
}
