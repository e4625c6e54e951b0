//! Mapped shards (`.fbm`): an index of records whose bytes stay in a file of another format.
//!
//! A mapped shard has the labels, keys and offsets of an indexed shard, but no frames. Its pages
//! record for each byte of the frames whether it is in the page itself (heads of frames, small
//! features, seek points) or in the *source*: a tar file, an MDS shard, or a Parquet file. A reader
//! assembles the frames of any range of records and verifies them like those of a TFRecord, so
//! every record has a checksum although the source has none.

mod file;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::index::SourceBlock;
pub use writer::{Extent, ExtentStart, SourceIdentity, Writer};

pub(crate) use file::{MappedFile, SourceFile};

use crate::error::{Error, Result};
use crate::storage::Storage;

/// Minimum length in bytes of a part of a record that is read from the source. Shorter parts are copied into
/// the shard.
pub const MIN_EXTENT_BYTES: usize = 32;

/// Location of the source of the mapped shards of a dataset.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) root: PathBuf,
    pub(crate) storage: Arc<dyn Storage>,
}

impl Source {
    /// Opens the storage of a location: a local directory, or a URL that `storage` supports.
    pub(crate) fn open(location: &str, dataset: &Path, storage: &dyn Storage) -> Result<Self> {
        let (root, storage) = storage
            .open_location(location)
            .map_err(|error| Error::io(dataset, "open the source of", error))?;
        Ok(Self { root, storage })
    }
}

#[cfg(test)]
mod tests;
