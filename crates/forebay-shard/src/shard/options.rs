//! How a shard is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Shard;
use super::format::{ShardFormat, detect_format, find_sidecar_in};
use crate::error::Result;
use crate::frame::MAX_RECORD_BYTES;
use crate::storage::{self, LocalFiles, Storage};

/// The checks of shards and records while they are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checks {
    /// Maximum length of a record, in bytes.
    pub(crate) max_record: u64,
    /// Whether payloads are verified against their checksums on every read.
    pub(crate) verify: bool,
}

impl Default for Checks {
    fn default() -> Self {
        Self {
            max_record: MAX_RECORD_BYTES,
            verify: true,
        }
    }
}

/// Options for opening a [`Shard`].
#[derive(Debug, Clone, Default)]
pub struct ShardOptions {
    checks: Checks,
    storage: Option<Arc<dyn Storage>>,
    /// Format and sidecar, if they are not to be detected.
    known: Option<(ShardFormat, Option<PathBuf>)>,
}

impl ShardOptions {
    /// Reads from this storage, in which the shard's path is looked up; local files by default.
    #[must_use]
    pub fn storage(mut self, storage: Arc<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Refuses records of more than this many bytes; 256 MiB by default.
    #[must_use]
    pub fn max_record(mut self, bytes: u64) -> Self {
        self.checks.max_record = bytes;
        self
    }

    /// Sets whether payloads are verified against their checksums on every read; true by default.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.checks.verify = verify;
        self
    }

    /// Sets format and sidecar, which are detected by default. An indexed shard contains its index. For a TFRecord file,
    /// `sidecar` is the path of its index (`.fbi`, or DALI's text `.idx`). Without a sidecar, the heads of all frames are
    /// read once, and labels and keys are unknown.
    #[must_use]
    pub fn format(mut self, format: ShardFormat, sidecar: Option<&Path>) -> Self {
        self.known = Some((format, sidecar.map(Path::to_owned)));
        self
    }

    /// Opens the shard at this path of the storage.
    ///
    /// # Errors
    /// As [`Shard::open`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Shard> {
        let path = path.as_ref();
        let local = || Arc::new(LocalFiles::new(2)) as Arc<dyn Storage>;
        let storage = self.storage.unwrap_or_else(local);
        let (format, sidecar) = match self.known {
            Some(known) => known,
            None => {
                let format = detect_format(&*storage, path)?;
                let exists = |sidecar: &Path| storage::exists(&*storage, sidecar);
                let is_indexed = format != ShardFormat::TfRecord;
                let sidecar = (!is_indexed).then(|| find_sidecar_in(path, &exists));
                (format, sidecar.flatten())
            }
        };
        Shard::open_in(path, format, sidecar.as_deref(), self.checks, storage)
    }
}
