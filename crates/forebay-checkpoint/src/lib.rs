//! Checkpoints: saved on a fast disk, drained behind into a store, read back verified.
//!
//! A [`Draft`] is written into a staging area; [`Uploader::save`] returns a [`Saved`] once it is durable there, and a
//! thread uploads it to its destination. A checkpoint is a directory or prefix with files and a manifest, which is published
//! last: see docs/format/checkpoints.md. [`Checkpoint::open`] reads one, [`list`] and [`latest`] find them.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `manifest` | what makes a checkpoint complete, and where its files are |
//! | `name` | names of files, attempts and steps |
//! | `entry`, `marker` | the staging area's disk: directories and locks, and what is to become of them |
//! | `draft` | writing, checksums, fsync |
//! | `request` | how an area is used, and the requests for it |
//! | `drain`, `uploader` | one way to the store, and the thread that goes it |
//! | `retention`, `reading` | what goes, and what keeps it |
//! | `read`, `catalog` | back again |

mod catalog;
mod draft;
mod drain;
mod error;
mod manifest;
mod marker;
mod name;
mod read;
mod reading;
mod request;
mod retention;
#[cfg(test)]
mod tests;
mod uploader;

pub use catalog::{CheckpointEntry, CheckpointStatus, State, latest, list, pin, remove, status};
pub use draft::{Draft, DraftFile};
pub use error::{Error, Result};
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use manifest::fuzz as fuzz_manifest;
pub use manifest::{
    CheckpointManifest, CheckpointPart, FileEntry, MANIFEST_NAME, PIN_NAME, WORLD_SIZE_MAX,
};
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use marker::fuzz as fuzz_marker;
pub use name::step_of;
pub use read::Checkpoint;
pub use request::{Request, UploaderOptions, default_area};
pub use uploader::{Saved, Uploader};
