//! Copies objects and whole datasets between any two locations.
//!
//! [`CopyPlan::make`] lists the source and the destination, compares them, and plans an action for each object.
//! [`CopyPlan::run`] executes the plan. A directory or prefix that contains a manifest is a dataset, and a tree may contain
//! several datasets. The guarantees for datasets:
//!
//! - A manifest is written last, once all of its shards and indexes are copied: no process opens an incomplete dataset.
//! - Shards are verified with the checksums of the manifest during the copy: a damaged shard is never published.
//! - Two datasets are never mixed. If the destination has a different dataset, the copy needs [`CopyOptions::overwrite`]. It
//!   deletes the old manifest first, or, if no file of the old dataset has to change, replaces the manifest atomically.
//! - Repeating a copy that was interrupted continues it: objects with the right checksum stay.
//!
//! | module | content |
//! | --- | --- |
//! | `target` | the place that is written to |
//! | `listing` | the objects of the source, and the datasets among them |
//! | `compare` | whether an object exists at the destination already |
//! | `plan` | the action for each object, and the refusals |
//! | `scratch` | temporary files for copies from one store to another |
//! | `transfer` | the copy of one object |
//! | `run` | the execution in order: objects, manifests, deletions |

mod compare;
mod error;
mod listing;
mod plan;
mod run;
mod scratch;
mod target;
#[cfg(test)]
mod tests;
mod transfer;

pub use compare::Why;
pub use error::CopyError;
pub use listing::{DatasetFound, SourceListing};
pub use plan::{CopyAction, CopyPlan, PlannedItem};
pub use run::CopySummary;
pub use target::CopyTarget;

use forebay_store::Limiter;
use std::path::PathBuf;

/// How to detect objects that exist unchanged at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compare {
    /// By known checksums (from the manifest, or stored with the object). A local file is read to compute its checksum if the
    /// checksum of the other side is known. If neither is known, [`CopyMode`] decides.
    #[default]
    Stored,
    /// By checksums; an object without a stored checksum is read, also over the network.
    Read,
}

/// The purpose of the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyMode {
    /// Copies all objects except those whose checksum shows that they exist at the destination.
    #[default]
    Copy,
    /// Updates the destination: if no checksum is known, an object stays that has the same size as the source's and is not
    /// older.
    Sync,
}

/// How a tree is copied. Start from the default and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Whether objects without a known checksum are copied again.
    pub mode: CopyMode,
    /// How unchanged objects are detected.
    pub compare: Compare,
    /// Removes objects at the destination that are not in the source, after everything is copied.
    pub delete: bool,
    /// Replaces a different dataset at the destination.
    pub overwrite: bool,
    /// Objects and parts of objects in flight at once.
    pub parallel: usize,
    /// The bandwidth limit of all transfers together.
    pub limiter: Option<Limiter>,
    /// The directory for temporary files of copies from one store to another; `None` uses the system's temporary directory.
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

/// Receives progress events of a copy. Methods may be called from any thread; by default they do nothing.
pub trait CopyObserver: Sync {
    /// A stage begins: "listing", "comparing", "copying", "publishing", "deleting".
    fn stage(&self, _stage: &'static str) {}
    /// This many more bytes of an object were read to compare it.
    fn compared(&self, _bytes: u64) {}
    /// This many more bytes of objects were copied.
    fn moved(&self, _bytes: u64) {}
    /// The action for an object is finished.
    fn done(&self, _key: &str, _bytes: u64, _action: CopyAction) {}
    /// An object of the source is damaged and was not copied.
    fn damaged(&self, _key: &str, _problem: &str) {}
}

impl CopyObserver for () {}
