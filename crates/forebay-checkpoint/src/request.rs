//! How a staging area is used, and what is to become of what is saved there.

use super::manifest::WORLD_SIZE_MAX;
use super::marker::Orders;
use super::name::{self, Place};
use super::{Error, Result};
use forebay_store::{Location, StoreOptions};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// How a staging area is used.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UploaderOptions {
    /// The area: a directory on a fast local disk.
    pub dir: PathBuf,
    /// Bytes that all files in the area may take, those of packs that go through it counted; none is what the disk has.
    pub max_bytes: Option<u64>,
    /// Bytes a second that draining may take; none does not limit.
    pub bandwidth: Option<u64>,
    /// How many drained checkpoints of a run stay on the fast disk, for loading.
    pub keep_local: u32,
}

impl UploaderOptions {
    /// An area without limits that keeps the last checkpoint.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            max_bytes: None,
            bandwidth: None,
            keep_local: 1,
        }
    }
}

/// Returns the default staging area: `FOREBAY_STAGING`, else `forebay/stage` in `XDG_CACHE_HOME` or
/// `~/.cache`. Never a directory that is emptied at a reboot.
pub fn default_area() -> Result<PathBuf> {
    forebay_staging::lasting_dir().ok_or_else(|| Error::Option {
        what: "there is no staging area: HOME is not set; name a directory on a fast local disk"
            .to_owned(),
    })
}

/// The destination of a draft.
#[derive(Debug, Clone)]
pub struct Request {
    /// The location of the checkpoint.
    pub location: Location,
    /// How its store is reached.
    pub store: StoreOptions,
    /// Whether another checkpoint of that name is replaced.
    pub overwrite: bool,
    /// How many checkpoints of the run stay once this one is complete; none removes nothing.
    pub keep: Option<u32>,
    /// The kind of content, for the loader.
    pub content: String,
    /// The user's metadata.
    pub metadata: Map<String, Value>,
    /// Which of `world_size` parts this is.
    pub rank: u32,
    /// How many parts the checkpoint has.
    pub world_size: u32,
    /// The name of this attempt on all ranks; no other attempt of the checkpoint has had it.
    pub attempt: Option<String>,
}

impl Request {
    /// A checkpoint of one part, which replaces another of its name and removes nothing else.
    pub fn new(location: Location, store: StoreOptions) -> Self {
        Self {
            location,
            store,
            overwrite: true,
            keep: None,
            content: "files".to_owned(),
            metadata: Map::new(),
            rank: 0,
            world_size: 1,
            attempt: None,
        }
    }

    /// Whether it can work, as far as that is known without a request to the store.
    pub fn check(&self) -> Result<()> {
        let orders = self.orders()?;
        forebay_store::Store::open(&orders.place.prefix, &orders.store)?;
        Ok(())
    }

    pub(super) fn orders(&self) -> Result<Orders> {
        let refuse = |what: &str| {
            Err(Error::Option {
                what: what.to_owned(),
            })
        };
        if self.world_size == 0 || self.world_size > WORLD_SIZE_MAX || self.rank >= self.world_size
        {
            return refuse(&format!(
                "rank {} of {} makes no sense",
                self.rank, self.world_size
            ));
        }
        if self.keep == Some(0) {
            return refuse("keep=0 would remove what was just saved: keep at least 1");
        }
        let attempt = match &self.attempt {
            Some(attempt) => {
                name::check_attempt(attempt).map_err(|what| Error::Option { what })?;
                attempt.clone()
            }
            None if self.world_size > 1 => {
                return refuse(
                    "a checkpoint of several ranks needs attempt=: a text that all ranks have and no other attempt had, or \
                     parts of two attempts could be mixed",
                );
            }
            None => String::new(),
        };
        Ok(Orders {
            place: Place::of(&self.location)?,
            store: self.store.clone(),
            overwrite: self.overwrite,
            keep: self.keep,
            attempt: if self.world_size > 1 {
                attempt
            } else {
                String::new()
            },
            rank: self.rank,
            world_size: self.world_size,
        })
    }
}
