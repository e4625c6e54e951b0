//! Destinations of datasets: the interface through which packs and conversions write.
//!
//! Shards are written to a [`WorkDir`]. For a [`LocalDestination`], this directory is the final destination; a staged
//! destination uploads finished shards to a store (`upload`). Both begin, continue and publish in the same way.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod journal;
mod local;
mod locks;
mod names;
mod plan_file;
mod unfinished;
mod work_dir;

pub(crate) use forebay_shard::manifest::FILE_NAME as MANIFEST;
pub(crate) use journal::{
    Header, Identity, Journal, JournalContents, PlanDifference, ShardLine, Sidecar,
};
pub(crate) use local::LocalDestination;
pub(crate) use names::{LAST_FILES, is_shard_name, is_split_index, split_dir, split_of_numbered};
pub(crate) use plan_file::{Outline, PlanFile, SharedPlan, encode as encode_plan, parse_plan};
pub use unfinished::UnfinishedBy;
pub(crate) use work_dir::{State, UnfinishedPack, WorkDir, read_report};

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::options::Part;
use crate::report::Uploaded;
use forebay_shard::Manifest;
use forebay_staging::Reservation;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// Directory of sidecar indexes. They are not next to the shards, because readers glob `train-*`.
pub(crate) const INDEX_DIR: &str = "index";
/// Directory of the report.
pub(crate) const PACK_DIR: &str = "pack";
/// Name of the report in [`PACK_DIR`].
pub(crate) const REPORT: &str = "report.jsonl";
/// Directory of the journal of an unfinished pack.
const WORK_DIR: &str = ".forebay-pack";

/// Reserved space for a shard and its sidecars; `None` if files are not staged.
#[derive(Debug, Default)]
pub(crate) struct SpaceReservation(pub(crate) Option<Reservation>);

/// Destination of the shards of a dataset, which publishes the dataset when all shards are written.
pub(crate) trait Destination: Debug + Send + Sync {
    /// Returns the locked directory to which shards are written.
    fn dir(&self) -> &WorkDir;

    /// Claims the destination, and determines what earlier runs left there.
    fn begin(&self, request: &Request<'_>, observer: &dyn Observer) -> Result<BeginState>;

    /// As [`begin`](Self::begin), for the plan that parts share.
    fn begin_plan(&self, request: &Request<'_>, observer: &dyn Observer) -> Result<BeginState> {
        self.begin(request, observer)
    }

    /// Returns what earlier runs and the parts left. A part sees its own work only, and that of other numbers of parts.
    fn state(&self) -> Result<State>;

    /// Returns whether there is a plan that parts share.
    fn has_plan(&self) -> Result<bool>;

    /// Publishes the plan that parts share, unless there is one; returns the published plan.
    fn publish_plan(&self, plan: &SharedPlan<'_>) -> Result<PlanFile>;

    /// Records that all shards of a part are finished.
    fn put_part(
        &self,
        _part: Part,
        _header: &Header,
        _done: &BTreeMap<String, ShardLine>,
        _cancel: &Cancel,
    ) -> Result<()> {
        Ok(())
    }

    /// Continues with the shards of earlier runs, by name.
    fn resume(&self, _done: &BTreeMap<String, ShardLine>) -> Result<()> {
        Ok(())
    }

    /// Returns whether a file that is missing in the directory is already at its final destination.
    fn holds(&self, _key: &str, _bytes: u64, _crc32c: u32) -> Result<bool> {
        Ok(false)
    }

    /// Returns the number of shards to write concurrently.
    fn shards_at_once(&self, jobs: usize) -> usize {
        jobs
    }

    /// Waits for space to write a shard of about this many bytes; `None` if `stopped` returns true.
    fn reserve(
        &self,
        _bytes: u64,
        _stopped: &dyn Fn() -> bool,
    ) -> Result<Option<SpaceReservation>> {
        Ok(Some(SpaceReservation::default()))
    }

    /// Accepts a shard whose files are durable in the directory.
    fn put_shard(&self, _line: &ShardLine, _room: SpaceReservation) -> Result<()> {
        Ok(())
    }

    /// Publishes the dataset: first all shards and the report, then the manifest.
    fn publish(
        &self,
        dataset: &Publication<'_>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<()>;

    /// Returns the path of a local copy of the published report, if there is one.
    fn report(&self, cancel: &Cancel) -> Result<Option<PathBuf>>;

    /// Returns the uploads of this run, for a staged destination.
    fn uploaded(&self) -> Option<Uploaded> {
        None
    }

    /// Runs `work`, and reports uploads to the observer meanwhile.
    fn telling(&self, _observer: &dyn Observer, work: &mut dyn FnMut()) {
        work();
    }

    /// Removes the files that only an unfinished dataset needs, after the dataset of this plan was published.
    fn end(self: Box<Self>, plan: &str) -> Result<()>;

    /// Leaves the unfinished dataset to other processes, and removes what only this one needs.
    fn leave(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A dataset that is about to be written.
pub(crate) struct Request<'a> {
    pub(crate) header: &'a Header,
    /// Whether to replace any other dataset.
    pub(crate) overwrite: bool,
    /// Whether to start over if the source has changed since earlier runs.
    pub(crate) restarts: bool,
    /// The path of the destination for messages.
    pub(crate) shown: &'a Path,
    /// Returns an error for a published dataset that is a different one.
    pub(crate) refuse_other: &'a dyn Fn(&Manifest) -> Result<()>,
}

/// State of the destination at the start of a run.
pub(crate) enum BeginState {
    /// The dataset is complete.
    Complete(Box<Manifest>),
    /// The shards that earlier runs finished; empty if there were none.
    Lines {
        lines: Vec<ShardLine>,
        /// Whether an earlier run began the same plan.
        is_continued: bool,
    },
}

/// A dataset of which all shards are written.
pub(crate) struct Publication<'a> {
    /// The manifest, which is published last and makes the dataset complete, and its name.
    pub(crate) manifest: &'a [u8],
    pub(crate) name: &'static str,
    /// Files to publish before the manifest, by name.
    pub(crate) indexes: &'a [(String, Vec<u8>)],
    /// The local report, if there is one.
    pub(crate) report: Option<&'a Path>,
    pub(crate) shards: &'a BTreeMap<String, ShardLine>,
}

/// Runs `work`, and reports uploads to the observer meanwhile.
pub(crate) fn telling<T>(
    destination: &dyn Destination,
    observer: &dyn Observer,
    work: impl FnOnce() -> T,
) -> T {
    let (mut work, mut result) = (Some(work), None);
    destination.telling(observer, &mut || result = work.take().map(|work| work()));
    result.unwrap_or_else(|| unreachable!("a destination does the work that it is given"))
}

/// Determines what earlier runs left in the directory, and removes what has to be replaced. `discard` cancels uploads
/// from it.
pub(crate) fn take(
    dir: &WorkDir,
    request: &Request<'_>,
    observer: &dyn Observer,
    discard: &dyn Fn() -> Result<()>,
) -> Result<BeginState> {
    let nothing = BeginState::Lines {
        lines: Vec::new(),
        is_continued: false,
    };
    let state = dir.state()?;
    if request.overwrite {
        dir.clear(state, discard)?;
        return Ok(nothing);
    }
    let unfinished = match state {
        State::Empty => return Ok(nothing),
        State::Complete(manifest) => {
            (request.refuse_other)(&manifest)?;
            return Ok(BeginState::Complete(manifest));
        }
        State::Unfinished(unfinished) => unfinished,
    };
    match unfinished.difference(request.header) {
        PlanDifference::None => Ok(BeginState::Lines {
            lines: unfinished.into_lines(),
            is_continued: true,
        }),
        PlanDifference::Source(differences) if request.restarts => {
            observer.begins_anew(&differences);
            dir.clear(State::Unfinished(unfinished), discard)?;
            Ok(nothing)
        }
        other => Err(Error::DifferentPack {
            path: request.shown.to_path_buf(),
            differences: other.into_words(),
        }),
    }
}
