//! Copying objects and whole datasets between any two places.
//!
//! A tree is looked at first ([`CopyPlan::make`]): what is in the source, what is at the destination already, what has to
//! be done. Then it is done ([`CopyPlan::run`]). A directory or prefix that holds a manifest is a dataset, and a tree may hold
//! several; what this module promises for them:
//!
//! - A manifest appears last, and only once every shard and index that belongs to it is there: no process opens half a dataset.
//! - Shards are compared with the checksums of the manifest on their way: a damaged one is never published as good.
//! - A dataset is never mixed with another one: where the destination holds a different one, its manifest goes first (and
//!   only if [`CopyOptions::overwrite`] says so), or is replaced in one step where no file of it has to change.
//! - The same call again continues: what exists with the right checksum stays.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `place` | what a location names: one object, or a tree |
//! | `listing` | the objects of the source, and the datasets among them |
//! | `compare` | whether an object is there already |
//! | `plan` | what is to be done, and what is refused |
//! | `scratch` | where an object rests between two stores |
//! | `transfer` | one object from here to there |
//! | `run` | the work in order: objects, manifests, deletions |

mod compare;
mod error;
mod listing;
mod place;
mod plan;
mod run;
mod scratch;
#[cfg(test)]
mod tests;
mod transfer;

pub use error::CopyError;
pub use listing::{DatasetFound, Listing};
pub use place::{CopySource, CopyTarget};
pub use plan::{CopyAction, CopyPlan, PlannedItem, Why};
pub use run::CopySummary;

use crate::Limiter;
use std::path::PathBuf;

/// How much is compared before an object is taken for one that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compare {
    /// Checksums that are known (from a manifest, or stored with the object) and those of local files, which are read where
    /// the other side's is known. Where neither side knows one, [`CopyMode`] decides.
    #[default]
    Stored,
    /// Checksums; what has none stored is read, wherever it is.
    Read,
}

/// The purpose of the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyMode {
    /// Copies all but what is known to be there.
    #[default]
    Copy,
    /// Makes the destination like the source: where no checksum is known, an object that is not older than the source's and
    /// has its size stays.
    Sync,
}

/// How a tree is copied. Start from the default and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Copy, or make like the source.
    pub mode: CopyMode,
    /// How equality is found out.
    pub compare: Compare,
    /// Removes what is at the destination and not in the source, once everything else is done.
    pub delete: bool,
    /// Replaces a different dataset at the destination.
    pub overwrite: bool,
    /// Objects and parts of objects on their way at the same time.
    pub parallel: usize,
    /// The bandwidth of all transfers together.
    pub limiter: Option<Limiter>,
    /// The directory for objects on their way from one store to another; none: the system's temporary directory.
    pub scratch: Option<PathBuf>,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            mode: CopyMode::Copy,
            compare: Compare::Stored,
            delete: false,
            overwrite: false,
            parallel: 16,
            limiter: None,
            scratch: None,
        }
    }
}

/// Receives what happens. Calls may come from any thread; all do nothing by default.
pub trait CopyObserver: Sync {
    /// A stage begins: "listing", "comparing", "copying", "publishing", "deleting".
    fn stage(&self, _stage: &'static str) {}
    /// This many more bytes of an object were read to compare it.
    fn compared(&self, _bytes: u64) {}
    /// This many more bytes of objects are through.
    fn moved(&self, _bytes: u64) {}
    /// An object is dealt with.
    fn done(&self, _key: &str, _bytes: u64, _action: CopyAction) {}
    /// An object of the source is damaged: it was not copied.
    fn damaged(&self, _key: &str, _problem: &str) {}
}

impl CopyObserver for () {}
