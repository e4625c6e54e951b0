//! A local directory as the final destination of shards.

use super::{
    BeginState, Destination, PlanFile, Publication, Request, SharedPlan, State, WorkDir, take,
};
use crate::error::Result;
use crate::observer::{Cancel, Observer, Stage};
use crate::options::Part;
use forebay_store::{Durability, write_file};
use std::path::{Path, PathBuf};

/// A destination that is a directory on this machine.
#[derive(Debug)]
pub(crate) struct LocalDestination(WorkDir);

impl LocalDestination {
    /// Locks the directory, creating it if necessary.
    pub(crate) fn open(root: &Path, durability: Durability) -> Result<Self> {
        Ok(Self(WorkDir::open(root, durability)?))
    }

    /// Locks the directory for one part; other processes may write other parts concurrently.
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

    fn state(&self) -> Result<State> {
        self.0.state()
    }

    fn has_plan(&self) -> Result<bool> {
        Ok(self.0.has_plan())
    }

    fn publish_plan(&self, plan: &SharedPlan<'_>) -> Result<PlanFile> {
        self.0.publish_plan(plan)
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
        // The last run may have been killed after publishing and before this call.
        self.0.finish()
    }
}
