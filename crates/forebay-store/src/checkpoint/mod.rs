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
//! | `entry` | the staging area's disk: markers and locks |
//! | `draft` | writing, checksums, fsync |
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
mod name;
mod read;
mod reading;
mod retention;
#[cfg(test)]
mod tests;

pub use buffer::{Buffer, BufferOptions, Request, Saved, default_area};
pub use catalog::{Found, State, Status, latest, list, pin, status};
pub use draft::{Draft, DraftFile};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use entry::fuzz as fuzz_marker;
pub(crate) use entry::{AreaHeld, drop_copies, held_in, left_behind};
pub use error::{Error, Result};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use manifest::fuzz as fuzz_manifest;
pub use manifest::{FileEntry, MANIFEST_NAME, Manifest, PIN_NAME, Part, WORLD_SIZE_MAX};
pub use name::step_of;
pub use read::Checkpoint;
