//! Locations, object stores, atomic writes of files, and locks.
//!
//! This crate does not know any dataset format. It parses paths and URLs ([`Location`]), reads and writes objects in
//! directories, buckets and web servers ([`Store`]), publishes files atomically ([`AtomicFile`]), locks directories against
//! other processes ([`DirLock`]), and reports free disk space ([`free_bytes`]).
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

pub mod advice;
mod atomic_file;
mod cancel;
mod dir_lock;
mod error;
mod file_lock;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod hub_url;
mod limiter;
mod location;
mod object_or_tree;
mod parallel;
mod prices;
mod scheme;
mod share;
mod store;
mod volume;
mod waits;

pub use atomic_file::{
    AtomicFile, Durability, clean_stale, clean_stale_at, clean_stale_tree, create_temporary_at,
    is_temporary, sync_dir, write_file,
};
pub use cancel::Cancel;
pub use dir_lock::DirLock;
pub use error::{Error, ErrorKind, Result};
pub use file_lock::FileLock;
pub use limiter::Limiter;
pub use location::Location;
pub use object_or_tree::ObjectOrTree;
pub use parallel::{for_each_parallel, for_each_parallel_with, map_parallel, try_map_parallel};
pub use prices::{Cost, Tariff, Usage};
pub use share::{BACKGROUND_PATIENCE, BACKGROUND_PERCENT, BandwidthShare, Reading};
pub use store::{
    LeftOut, Listing, Object, Put, Retry, Store, StoreOptions, Traffic, Transfer, Written,
};
pub use volume::free_bytes;
pub use waits::on_long_wait;
