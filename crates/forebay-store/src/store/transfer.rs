//! How a file is sent or fetched.

use crate::{Cancel, Limiter};
use std::fmt;

/// Parts of this size, in bytes. Large enough that a request's latency is small beside it, small enough that eight of them
/// in memory are nothing.
const PART_BYTES: u64 = 8 << 20;
/// Parts on their way at once. Object stores give one connection some 50 to 100 MB/s.
const PARALLEL: usize = 8;

/// How [`Store::upload_file`](crate::Store::upload_file) and [`Store::download_file`](crate::Store::download_file) work.
///
/// ```
/// use forebay_store::{Cancel, Transfer};
/// let cancel = Cancel::new();
/// let transfer = Transfer::new(&cancel).with_crc32c(Some(0x1234_5678)).with_parallel(4);
/// assert_eq!(transfer.parallel, 4);
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Transfer<'a> {
    /// The CRC-32C that the file must have. Without it an upload reads the file once more to know it.
    pub crc32c: Option<u32>,
    /// Ends the transfer.
    pub cancel: &'a Cancel,
    /// Called with bytes that are through and were not before, on the thread that called. They add up to the size;
    /// an upload that has to start over counts nothing twice.
    pub progress: &'a dyn Fn(u64),
    /// Bytes of a part. Larger files than 10,000 of them get larger parts.
    pub part_bytes: u64,
    /// Parts on their way at once.
    pub parallel: usize,
    /// A bandwidth that is shared with other transfers.
    pub limiter: Option<&'a Limiter>,
}

impl<'a> Transfer<'a> {
    /// A transfer that `cancel` can end.
    pub fn new(cancel: &'a Cancel) -> Self {
        Self {
            crc32c: None,
            cancel,
            progress: &|_| {},
            part_bytes: PART_BYTES,
            parallel: PARALLEL,
            limiter: None,
        }
    }

    /// Takes the CRC-32C that the file must have.
    #[must_use]
    pub fn with_crc32c(mut self, crc32c: Option<u32>) -> Self {
        self.crc32c = crc32c;
        self
    }

    /// Takes what is called with bytes that are through.
    #[must_use]
    pub fn with_progress(mut self, progress: &'a dyn Fn(u64)) -> Self {
        self.progress = progress;
        self
    }

    /// Takes the bytes of a part.
    #[must_use]
    pub fn with_part_bytes(mut self, bytes: u64) -> Self {
        self.part_bytes = bytes.max(1);
        self
    }

    /// Takes how many parts are on their way at once.
    #[must_use]
    pub fn with_parallel(mut self, parallel: usize) -> Self {
        self.parallel = parallel.max(1);
        self
    }

    /// Takes a bandwidth that is shared with other transfers.
    #[must_use]
    pub fn with_limiter(mut self, limiter: Option<&'a Limiter>) -> Self {
        self.limiter = limiter;
        self
    }
}

impl fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("crc32c", &self.crc32c)
            .field("part_bytes", &self.part_bytes)
            .field("parallel", &self.parallel)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
