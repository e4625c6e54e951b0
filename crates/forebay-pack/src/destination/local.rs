//! A directory that shards are written into and stay in.

use super::{BeginState, Destination, Publication, Request, WorkDir, take};
use crate::error::Result;
use crate::observer::{Cancel, Observer, Stage};
use crate::part::Part;
use forebay_store::{Durability, write_file};
use std::path::{Path, PathBuf};

/// A destination that is a directory of this machine.
#[derive(Debug)]
pub(crate) struct LocalDestination(WorkDir);

impl LocalDestination {
    /// Locks the directory, which is made if it is not there.
    pub(crate) fn open(root: &Path, durability: Durability) -> Result<Self> {
        Ok(Self(WorkDir::open(root, durability)?))
    }

    /// Locks it for one part; others may be written at the same time.
    pub(crate) fn open_part(root: &Path, durability: Durability, part: Part) -> Result<Self> {
        Ok(Self(WorkDir::open_part(root, durability, part)?))
    }
}

impl Destination for LocalDestination {
    fn dir(&self) -> &WorkDir {
        &self.0
    }

    fn begin(&self, request: &Request<'_>, observer: &dyn Observer) -> Result<BeginState> {
        take(&self.0, request, observer, &|| Ok(()))
    }

    fn publish(
        &self,
        dataset: &Publication<'_>,
        observer: &dyn Observer,
        _cancel: &Cancel,
    ) -> Result<()> {
        observer.stage(Stage::Publishing);
        let durability = self.0.durability();
        for (name, bytes) in dataset.indexes {
            write_file(&self.0.path(name), bytes, durability)?;
        }
        Ok(write_file(
            &self.0.path(dataset.name),
            dataset.manifest,
            durability,
        )?)
    }

    fn report(&self, _cancel: &Cancel) -> Result<Option<PathBuf>> {
        Ok(Some(self.0.report()).filter(|path| path.exists()))
    }

    fn end(self: Box<Self>, _plan: &str) -> Result<()> {
        // The last run may have been killed between publishing and this.
        self.0.finish()
    }
}
