//! Trials of plain requests to files and stores, without any framework.

use std::path::PathBuf;
use std::sync::Arc;

use super::data::MediumData;
use super::lab::{Cache, Lab, Sample, Trial};
use super::stores::{Shards, StoreData};
use crate::Result;
use crate::cold::Footprint;
use crate::storage::{self, Medium, ReadJob, RunOptions, RunReport, SizeMix};

/// More random reads than any storage answers within the longest run.
pub(super) const RANDOM_READS: u64 = 500_000;

/// Returns a trial of reads, which bypass the page cache if `direct` is set.
pub(super) fn reads<'t>(
    lab: &'t Lab<'_>,
    medium: &MediumData,
    name: &str,
    unit: &'static str,
    direct: bool,
    job: ReadJob,
    depth: usize,
) -> Trial<'t> {
    let options = limited(lab, depth);
    let cache = if direct {
        Cache::Bypassed
    } else {
        Cache::Emptied
    };
    let files = job.footprint();
    let run = move || {
        let report = storage::run(&job, &Medium::Local { direct }, &options)?;
        Ok(sample(&report, unit, true))
    };
    Trial::new(&medium.name, name, unit, run).reading(files, cache)
}

/// Returns a trial of random reads of shards in a store, which each run opens again.
pub(super) fn of_store<'t>(
    lab: &'t Lab<'_>,
    store: &'t StoreData,
    name: String,
    unit: &'static str,
    size: u32,
    depth: usize,
) -> Trial<'t> {
    let run = move || {
        let (split, storage) = store.open(Shards::Indexed, lab.source()?)?;
        let shards = split
            .shards()
            .iter()
            .map(|shard| (shard.path().to_owned(), shard.index().data_len()));
        let job = ReadJob::random(shards, &SizeMix::fixed(size), RANDOM_READS, 4)?;
        let report = storage::run(
            &job,
            &Medium::Storage(Arc::clone(&storage)),
            &limited(lab, depth),
        )?;
        let fetched = storage.stats().map(|stats| stats.fetched_bytes);
        Ok(sample(&report, unit, true).fetching(fetched))
    };
    Trial::new(&store.name, name, unit, run).reading(Footprint::Store, Cache::Emptied)
}

/// Returns options that end a run after the time limit.
pub(super) fn limited(lab: &Lab<'_>, depth: usize) -> RunOptions {
    RunOptions {
        limit: Some(lab.options.limit),
        ..RunOptions::at_depth(depth)
    }
}

/// Returns the rate in `unit` with the latencies and, unless it is the value itself, the rate in MB/s.
pub(super) fn sample(report: &RunReport, unit: &str, is_read: bool) -> Sample {
    let (value, other) = match unit {
        "MB/s" => (report.mb_per_s(), None),
        _ => (report.reads_per_s(), Some(report.mb_per_s())),
    };
    let mut more = [
        ("p50 ms", 1e3 * report.latency(0.5)),
        ("p99 ms", 1e3 * report.latency(0.99)),
        ("p99.9 ms", 1e3 * report.latency(0.999)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();
    more.extend(other.map(|rate| ("MB/s".to_owned(), rate)));
    Sample {
        value,
        bytes: if is_read { report.bytes } else { 0 },
        more: more.into_iter().collect(),
        ..Sample::default()
    }
}

/// Returns the files of the indexed shards with their sizes in bytes.
pub(super) fn shards(medium: &MediumData) -> Result<Vec<(PathBuf, u64)>> {
    let split = medium.indexed()?;
    let paths = split.shards().iter().map(|shard| shard.path().to_owned());
    paths
        .map(|path| Ok((path.clone(), path.metadata()?.len())))
        .collect()
}
