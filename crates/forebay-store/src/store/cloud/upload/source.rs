//! The file of an upload: opened once, and read in parts into reused buffers.

use crate::{Error, Result};
use bytes::Bytes;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Maximum number of free buffers that are kept for reuse. Allocating a fresh buffer costs as much as reading into it.
const SPARE_BUFFERS: usize = 8;

/// The file of an upload.
#[derive(Debug, Clone)]
pub(super) struct Source {
    path: PathBuf,
    file: Arc<File>,
    pub(super) len: u64,
    buffers: Arc<Buffers>,
}

/// Free buffers of parts that were sent.
#[derive(Debug, Default)]
struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A buffer of `len` bytes with arbitrary content.
    fn take(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.lock().pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }
}

/// A buffer that returns to the pool when the last reference to its bytes is dropped.
struct Lent {
    bytes: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut spare = self.buffers.lock();
        if spare.len() < SPARE_BUFFERS {
            spare.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = forebay_shard::storage::open_file(path)
            .map_err(|error| Error::io(path, "open", error))?;
        let meta = file
            .metadata()
            .map_err(|error| Error::io(path, "look at", error))?;
        if !meta.is_file() {
            let error = std::io::Error::from(std::io::ErrorKind::InvalidInput);
            return Err(Error::io(path, "upload, which is no file,", error));
        }
        Ok(Self {
            path: path.to_path_buf(),
            file: Arc::new(file),
            len: meta.len(),
            buffers: Arc::default(),
        })
    }

    /// Reads a part on a thread for blocking calls.
    pub(super) async fn read(self, offset: u64, len: u64) -> Result<Bytes> {
        let path = self.path.clone();
        blocking(path, move || {
            let len = usize::try_from(len).map_err(std::io::Error::other)?;
            let mut bytes = self.buffers.take(len);
            self.file.read_exact_at(&mut bytes, offset)?;
            let buffers = self.buffers;
            Ok(Bytes::from_owner(Lent { bytes, buffers }))
        })
        .await
    }

    pub(super) async fn crc32c(self) -> Result<u32> {
        let path = self.path.clone();
        blocking(path, move || {
            let mut piece = vec![0; 1 << 20];
            let (mut crc32c, mut offset) = (0, 0);
            while offset < self.len {
                let n = piece.len().min((self.len - offset) as usize);
                let now = &mut piece[..n];
                self.file.read_exact_at(now, offset)?;
                crc32c = crc32c::crc32c_append(crc32c, now);
                offset += n as u64;
            }
            Ok(crc32c)
        })
        .await
    }

    pub(super) fn expect(&self, expected: u32, found: u32) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        Err(Error::Checksum {
            object: self.path.display().to_string(),
            what: "the file",
            expected,
            found,
        })
    }
}

async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| Error::io(&path, "read", error)),
        Err(ended) => Err(Error::io(&path, "read", std::io::Error::other(ended))),
    }
}
