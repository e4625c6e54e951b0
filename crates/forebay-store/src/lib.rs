//! Where bytes live: locations, stores, durable publication of files, locks.
//!
//! This crate knows nothing of formats. It answers five questions for the crates above it: what place does
//! this text name ([`Location`]), how do bytes get there and back, wherever it is ([`Store`]), how does a file appear whole
//! or not at all ([`AtomicFile`]), who else is working here ([`DirLock`]), and is there room ([`free_bytes`]). [`stage`] is for files
//! that go to a slow store from a fast disk, behind.
//!
//! ```
//! use forebay_store::{AtomicFile, Durability, Location};
//! use std::io::Write;
//!
//! let dir = tempfile::tempdir()?;
//! let place = Location::parse(dir.path())?;
//! let path = place.local_path()?.join("hello.txt");
//! let mut file = AtomicFile::create(&path)?;
//! file.write_all(b"whole or not at all")?;
//! file.commit(Durability::Synced)?;
//! assert_eq!(std::fs::read(&path)?, b"whole or not at all");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod atomic_file;
pub mod cache;
mod cancel;
pub mod checkpoint;
mod copy;
mod dir_lock;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod limiter;
mod location;
mod remote;
mod share;
pub mod stage;
mod store;
mod volume;

pub use atomic_file::{AtomicFile, Durability, clean_stale, is_temporary, sync_dir};
pub use cancel::Cancel;
pub use copy::{
    Action, Census, Compare, CopyError, CopyMode, CopyObserver, CopyOptions, CopySource,
    CopySummary, CopyTarget, DatasetFound, Plan, PlannedItem, Why,
};
pub use dir_lock::DirLock;
pub use error::{Error, Result, Trouble};
pub use limiter::Limiter;
pub use location::Location;
pub use remote::{
    ReadError, ReadOptions, RemoteStorage, open_dataset, open_shard, read_storage, shard_storage,
};
pub use share::{BACKGROUND_PATIENCE, BACKGROUND_PERCENT, Reading, Share};
pub use store::{
    LeftOut, Listing, Object, Put, Retry, Store, StoreOptions, Traffic, Transfer, Written,
};
pub use volume::free_bytes;
