//! Destinations of datasets: the seam that packs and conversions write through.
//!
//! Shards are written in a [`WorkDir`]. A [`LocalDestination`] is that directory; a staged one hands finished shards on
//! to a store (`upload`). Both begin, continue and publish the same way.

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
pub(crate) use journal::{Difference, Header, Identity, Journal, ShardLine, Sidecar};
pub(crate) use local::LocalDestination;
pub(crate) use names::{LAST_FILES, is_shard_name, is_split_index, split_dir, split_of_numbered};
pub(crate) use plan_file::{Outline, PlanFile};
pub use unfinished::UnfinishedBy;
pub(crate) use work_dir::{State, UnfinishedPack, WorkDir};

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::report::Uploaded;
use forebay_shard::Manifest;
use forebay_staging::Reservation;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

/// Directory of sidecar indexes: never beside the shards, because readers glob `train-*`.
pub(crate) const INDEX_DIR: &str = "index";
/// Directory of the report.
pub(crate) const PACK_DIR: &str = "pack";
/// The report's name in [`PACK_DIR`].
pub(crate) const REPORT: &str = "report.jsonl";
/// Directory of the journal while the pack is unfinished.
const WORK_DIR: &str = ".forebay-pack";

/// Room for a shard and its sidecars; nothing where files stay where they are written.
#[derive(Debug, Default)]
pub(crate) struct Room(pub(crate) Option<Reservation>);

/// Destination of the shards of a dataset, which publishes the dataset once all are there.
pub(crate) trait Destination: Debug + Send + Sync {
    /// The locked directory that shards are written in.
    fn dir(&self) -> &WorkDir;

    /// Takes the destination, and finds out what earlier runs left there.
    fn begin(&self, request: &Request<'_>, observer: &dyn Observer) -> Result<BeginState>;

    /// Continues with the shards of earlier runs, given by name.
    fn resume(&self, _done: &BTreeMap<String, ShardLine>) -> Result<()> {
        Ok(())
    }

    /// Whether a file that is not in the directory is at its destination.
    fn holds(&self, _key: &str, _bytes: u64, _crc32c: u32) -> Result<bool> {
        Ok(false)
    }

    /// Shards that are written at the same time.
    fn shards_at_once(&self, jobs: usize) -> usize {
        jobs
    }

    /// Waits for room to write a shard of about this many bytes; none if `stopped` says so.
    fn reserve(&self, _bytes: u64, _stopped: &dyn Fn() -> bool) -> Result<Option<Room>> {
        Ok(Some(Room::default()))
    }

    /// Takes a shard whose files are durable in the directory.
    fn put_shard(&self, _line: &ShardLine, _room: Room) -> Result<()> {
        Ok(())
    }

    /// Makes the dataset visible: the manifest last, after all shards and the report.
    fn publish(
        &self,
        dataset: &Publication<'_>,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<()>;

    /// A local copy of the published report, if there is one.
    fn report(&self, cancel: &Cancel) -> Result<Option<PathBuf>>;

    /// Uploads of this run, for a staged destination.
    fn uploaded(&self) -> Option<Uploaded> {
        None
    }

    /// Does the work, and reports uploads to the observer meanwhile.
    fn telling(&self, _observer: &dyn Observer, work: &mut dyn FnMut()) {
        work();
    }

    /// Removes what only an unfinished dataset needs, once the dataset of this plan is published.
    fn end(self: Box<Self>, plan: &str) -> Result<()>;
}

/// A dataset that is about to be written.
pub(crate) struct Request<'a> {
    pub(crate) header: &'a Header,
    /// Replaces any other dataset.
    pub(crate) overwrite: bool,
    /// Begins again where earlier runs had a source that has changed since.
    pub(crate) restarts: bool,
    /// The destination, for messages.
    pub(crate) shown: &'a Path,
    /// Refuses a published dataset that is another one.
    pub(crate) refuse_other: &'a dyn Fn(&Manifest) -> Result<()>,
}

/// State of the destination at the start of a run.
pub(crate) enum BeginState {
    /// The dataset is whole.
    Complete(Box<Manifest>),
    /// These shards were finished by earlier runs, nothing if there were none.
    Lines {
        lines: Vec<ShardLine>,
        /// An earlier run began this very plan.
        is_continued: bool,
    },
}

/// A dataset whose shards are all there.
pub(crate) struct Publication<'a> {
    /// The file that is published last, by which a dataset is whole, and its name.
    pub(crate) manifest: &'a [u8],
    pub(crate) name: &'static str,
    /// Files that are published before it, by name.
    pub(crate) indexes: &'a [(String, Vec<u8>)],
    /// The report in the directory, if there is one.
    pub(crate) report: Option<&'a Path>,
    pub(crate) shards: &'a BTreeMap<String, ShardLine>,
}

/// Does the work, and reports uploads to the observer meanwhile.
pub(crate) fn telling<T>(
    destination: &dyn Destination,
    observer: &dyn Observer,
    work: impl FnOnce() -> T,
) -> T {
    let (mut work, mut result) = (Some(work), None);
    destination.telling(observer, &mut || result = work.take().map(|work| work()));
    result.unwrap_or_else(|| unreachable!("a destination does the work that it is given"))
}

/// Finds out what earlier runs left in the directory, and removes what is to be replaced. `discard` gives up what is on
/// its way from there.
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
        Difference::None => Ok(BeginState::Lines {
            lines: unfinished.into_lines(),
            is_continued: true,
        }),
        Difference::Source(differences) if request.restarts => {
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
