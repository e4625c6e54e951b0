//! Local files, with datasets that may refer to locations in stores.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_shard::{LocalFiles, ReadAt, ReadProfile, Storage};
use forebay_store::Location;

use super::{ReadError, ReadOptions, read_storage};

/// Local files. Mapped shards may have their records in a store.
#[derive(Debug)]
pub struct LocalStorage {
    files: LocalFiles,
    options: ReadOptions,
}

impl LocalStorage {
    /// Creates a storage that reads locations in stores with these options.
    pub fn new(options: ReadOptions) -> Self {
        Self {
            files: LocalFiles::within_limits(),
            options,
        }
    }
}

impl Storage for LocalStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        self.files.open(path)
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.files.read(path, limit)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.files.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.files.list(dir)
    }

    fn open_location(&self, location: &str) -> io::Result<(PathBuf, Arc<dyn Storage>)> {
        let place = Location::parse(location).map_err(ReadError::io)?;
        read_storage(&place, &self.options).map_err(io::Error::other)
    }

    fn read_profile(&self) -> ReadProfile {
        self.files.read_profile()
    }
}
