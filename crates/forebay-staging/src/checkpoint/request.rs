//! Options of an uploader and of a save.

use super::manifest::WORLD_SIZE_MAX;
use super::marker::SaveTarget;
use super::name::{self, CheckpointPath};
use super::{Error, Result};
use forebay_store::{Location, StoreOptions};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Options of an [`Uploader`](super::Uploader).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UploaderOptions {
    /// The area: a directory on a fast local disk.
    pub dir: PathBuf,
    /// Maximum total size in bytes of all files in the area, including those of packs; `None` allows what the disk has.
    pub max_bytes: Option<u64>,
    /// Bandwidth limit of uploads in bytes a second; `None` is unlimited.
    pub bandwidth: Option<u64>,
    /// How many uploaded checkpoints of a run stay on the fast disk for loading.
    pub keep_local: u32,
}

impl UploaderOptions {
    /// Returns options without limits, which keep the last uploaded checkpoint on the fast disk.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            max_bytes: None,
            bandwidth: None,
            keep_local: 1,
        }
    }
}

/// Returns the default staging area: `FOREBAY_STAGING`, else `forebay/stage` in `XDG_CACHE_HOME` or `~/.cache`. It is never a
/// directory that is emptied at a reboot.
pub fn default_area() -> Result<PathBuf> {
    crate::lasting_dir().ok_or_else(|| Error::Option {
        what: "there is no staging area: HOME is not set; name a directory on a fast local disk"
            .to_owned(),
    })
}

/// The destination of a draft, and how to save it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The location of the checkpoint.
    pub location: Location,
    /// Options of the destination's store.
    pub store: StoreOptions,
    /// Whether to replace another checkpoint of the same name.
    pub overwrite: bool,
    /// How many checkpoints of the run stay once this one is complete; `None` removes no others.
    pub keep: Option<u32>,
    /// The kind of content, such as "files" or "torch", by which a reader chooses how to load it.
    pub content: String,
    /// The user's metadata.
    pub metadata: Map<String, Value>,
    /// The rank whose part this is, below `world_size`.
    pub rank: u32,
    /// How many parts the checkpoint has.
    pub world_size: u32,
    /// The name of this attempt: the same on all ranks, and never used for this checkpoint before. Required if `world_size` is
    /// above 1.
    pub attempt: Option<String>,
}

impl Request {
    /// Returns a request for a checkpoint of one part, which replaces another of its name and removes nothing else.
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

    /// Checks the request as far as is possible without contacting the store.
    pub fn check(&self) -> Result<()> {
        if let Some(scheme @ ("http" | "https" | "hf")) = self.location.scheme() {
            let place = &self.location;
            let what =
                format!("{place}: {scheme}:// is read only: save into a bucket or a directory");
            return Err(Error::Option { what });
        }
        let orders = self.orders()?;
        forebay_store::Store::open(&orders.place.prefix, &orders.store)?;
        Ok(())
    }

    pub(super) fn orders(&self) -> Result<SaveTarget> {
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
        Ok(SaveTarget {
            place: CheckpointPath::of(&self.location)?,
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
            superseded: Vec::new(),
        })
    }
}
