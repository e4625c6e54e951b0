//! Checkpoints: saved on a fast disk, drained behind into a store, read back verified.
//!
//! A [`Draft`] is written into a staging area; [`Buffer::save`] returns a [`Saved`] once it is durable there, and a
//! thread brings it where it belongs. A checkpoint is a directory or prefix with files and a manifest, which is published
//! last: see FORMAT.md. [`Checkpoint::open`] reads one, [`list`] and [`latest`] find them.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `manifest` | what makes a checkpoint complete, and where its files are |
//! | `name` | names of files, attempts and steps |
//! | `entry`, `marker` | the staging area's disk: directories and locks, and what is to become of them |
//! | `draft` | writing, checksums, fsync |
//! | `request` | how an area is used, and what is asked of it |
//! | `drain`, `buffer` | one way to the store, and the thread that goes it |
//! | `retention`, `reading` | what goes, and what keeps it |
//! | `read`, `catalog` | back again |

mod buffer;
mod catalog;
mod draft;
mod drain;
mod entry;
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

pub use buffer::{Buffer, Saved};
pub use catalog::{Found, State, Status, latest, list, pin, status};
pub use draft::{Draft, DraftFile};
pub(crate) use entry::{AreaHeld, drop_copies, held_in, left_behind};
pub use error::{Error, Result};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use manifest::fuzz as fuzz_manifest;
pub use manifest::{FileEntry, MANIFEST_NAME, Manifest, PIN_NAME, Part, WORLD_SIZE_MAX};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use marker::fuzz as fuzz_marker;
pub use name::step_of;
pub use read::Checkpoint;
pub use request::{BufferOptions, Request, default_area};
