//! Joins the parts of a pack.

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use crate::options::{Part, UploadOptions};
use crate::prepare::Prepared;
use crate::publish::destination::{
    Destination, Header, PlanFile, ShardLine, State, UnfinishedPack, telling,
};
use crate::publish::{self, Tally, resume, upload};
use crate::report::Summary;
use forebay_shard::Manifest;
use forebay_store::{Durability, Location};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

/// Options of [`finish`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FinishOptions {
    /// The destination that the parts were packed into.
    pub dst: Location,
    /// Shards read at the same time; none: what the machine allows.
    pub jobs: Option<usize>,
    /// Whether finished files are forced to disk.
    pub durability: Durability,
    /// How a destination in a store is reached.
    pub upload: UploadOptions,
}

impl FinishOptions {
    /// All cores, and synced.
    pub fn new(dst: impl Into<Location>) -> Self {
        Self {
            dst: dst.into(),
            jobs: None,
            durability: Durability::Synced,
            upload: UploadOptions::default(),
        }
    }
}

/// Joins the parts of a pack: all of them are of one plan, every shard is there with the size and checksum that its part
/// wrote down, and then the manifest is published. The result is that of a pack by one machine, byte for byte.
///
/// Needs no source. With `source`, which is prepared from the arguments that the parts had, the source must also still be
/// what was planned.
///
/// # Errors
/// [`Error::Missing`] names the parts to run again, [`Error::DifferentPart`] what does not fit together. Nothing is
/// published then.
pub fn finish(
    options: &FinishOptions,
    source: Option<&Prepared>,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Summary> {
    let (dst, upload) = (&options.dst, &options.upload);
    if !dst.is_remote() && !dst.local_path()?.is_dir() {
        let what = "there is no such directory: no part has been packed into it";
        return Err(Error::destination(dst.local_path()?, what));
    }
    let step = upload::Step::Finish;
    let destination = upload::open_parts(dst, upload, options.durability, step, 0, 0)?;
    let (summary, plan) = telling(&*destination, observer, || {
        finish_into(&*destination, options, source, observer, cancel)
    })?;
    destination.end(&plan)?;
    Ok(summary)
}

/// As [`finish`]; returns the digest of the plan too.
fn finish_into(
    destination: &dyn Destination,
    options: &FinishOptions,
    source: Option<&Prepared>,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<(Summary, String)> {
    let begin = Instant::now();
    let root = &upload::shown(&options.dst);
    let complete = |manifest: &Manifest| -> Result<(Summary, String)> {
        if let Some(source) = source {
            source.refuse_other(manifest)?;
        }
        let tally = match destination.report(cancel)? {
            Some(report) => Tally::of_report(&report)?,
            None => Tally::default(),
        };
        let plan = publish::plan_of(manifest);
        Ok((publish::summary(root, manifest, tally), plan))
    };
    let unfinished = match destination.state()? {
        State::Complete(manifest) => return complete(&manifest),
        State::Unfinished(unfinished) => unfinished,
        State::Empty => {
            return Err(Error::destination(root, "no part has been packed into it"));
        }
    };
    let counts = unfinished.part_counts();
    let UnfinishedPack { plan, journals } = *unfinished;
    let Some(PlanFile {
        header,
        outline: Some(outline),
        findings,
    }) = plan
    else {
        let what = match plan {
            None => {
                "it holds an unfinished pack without parts: the pack with its paths and options continues it"
            }
            Some(_) => "it holds a conversion in parts, which the conversion joins",
        };
        return Err(Error::destination(root, what));
    };
    if let Some(source) = source {
        let now = Header::new(&source.census, &source.plan);
        let difference = header.difference(&now);
        difference.refuse_part(root, "the source as it is now".into())?;
    }
    let mut lines = Vec::new();
    for (part, found) in journals {
        let name = part.map_or("a run without parts".into(), |part| format!("part {part}"));
        header.difference(&found.header).refuse_part(root, name)?;
        lines.extend(found.shards);
    }
    observer.stage(Stage::Checking);
    let names: BTreeSet<&str> = header.shards.iter().map(String::as_str).collect();
    let machine = || std::thread::available_parallelism().map_or(1, |n| n.get());
    let jobs = options.jobs.unwrap_or_else(machine).max(1);
    let done = resume::check(destination, &names, lines, jobs, cancel)?;
    if done.len() < names.len() {
        // Another process may have joined the parts in the meantime, and removed what they had recorded.
        if let State::Complete(manifest) = destination.state()? {
            return complete(&manifest);
        }
        return Err(missing(root, &header, &done, &counts));
    }
    destination.resume(&done)?;
    let shards = (header.shards.as_slice(), &done);
    let published = publish::publish(destination, &outline, &findings, shards, observer, cancel)?;
    let summary = Summary {
        already_complete: false,
        resumed_shards: done.len() as u64,
        warnings: outline.warnings,
        write_time: begin.elapsed(),
        uploaded: destination.uploaded(),
        ..publish::summary(root, &published.manifest, published.tally)
    };
    Ok((summary, publish::plan_of(&published.manifest)))
}

/// Returns the error that names the shards that are not done, and their parts, if all parts have the same count.
pub(crate) fn missing(
    root: &Path,
    header: &Header,
    done: &BTreeMap<String, ShardLine>,
    counts: &BTreeSet<u32>,
) -> Error {
    let mut parts = BTreeSet::new();
    let mut names = Vec::new();
    for (number, name) in header.shards.iter().enumerate() {
        if !done.contains_key(name) {
            names.push(name.clone());
            if let [count] = counts.iter().copied().collect::<Vec<_>>()[..] {
                parts.extend(Part::of_shard(number, count));
            }
        }
    }
    Error::Missing {
        path: root.to_path_buf(),
        missing: names,
        parts: parts.into_iter().collect(),
        total: header.shards.len() as u64,
    }
}
