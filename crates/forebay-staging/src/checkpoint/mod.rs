//! Checkpoints: saved to a fast local disk, uploaded to a store in the background, and verified when they are read.
//!
//! A [`Draft`] is written into a staging area; [`Uploader::save`] returns a [`Saved`] once it is durable there, and a
//! background thread uploads it to its destination. A checkpoint is a directory or prefix with files and a manifest, which is
//! published last: see docs/format/checkpoints.md. [`Checkpoint::open`] opens one for reading; [`list`] and [`latest`] find
//! them.
//!
//! | module | content |
//! | --- | --- |
//! | `manifest` | the manifest, and the keys of the files |
//! | `name` | names of files, attempts and checkpoints |
//! | `marker` | the destination of a staged checkpoint, stored beside its files |
//! | `draft` | writing, checksums, fsync |
//! | `request` | options of an uploader and of a save |
//! | `drain`, `uploader` | the upload of one checkpoint; the queue of uploads |
//! | `retention`, `reading` | removal of old checkpoints; locks of those that are being read |
//! | `read`, `catalog` | reading; listing, pinning and removing |

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
pub(crate) use draft::Sum;
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
