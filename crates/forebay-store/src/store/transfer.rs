//! Options of uploads and downloads.

use super::Object;
use crate::{Cancel, Limiter};
use std::fmt;

/// Bytes of a part: large enough that transferring it takes much longer than the latency of a request, small enough that
/// eight parts in memory do not matter.
const PART_BYTES: u64 = 8 << 20;
/// Parts in flight at once. Object stores serve one connection with some 50 to 100 MB/s.
const PARALLEL: usize = 8;

/// The options of [`Store::upload_file`](crate::Store::upload_file) and [`Store::download_file`](crate::Store::download_file).
///
/// ```
/// use forebay_store::{Cancel, Transfer};
/// let cancel = Cancel::new();
/// let transfer = Transfer { crc32c: Some(0x1234_5678), ..Transfer::new(&cancel) };
/// assert_eq!(transfer.parallel, 8);
/// ```
#[derive(Clone, Copy)]
pub struct Transfer<'a> {
    /// The CRC-32C that the file must have. Without it, an upload reads the file an additional time to compute it.
    pub crc32c: Option<u32>,
    /// Cancels the transfer.
    pub cancel: &'a Cancel,
    /// Called on the caller's thread with the number of newly transferred bytes. The calls add up to the file size, also if
    /// the transfer has to start over.
    pub progress: &'a dyn Fn(u64),
    /// Bytes of a part. Files that would need more parts than a store accepts (10,000) are sent in larger parts.
    pub part_bytes: u64,
    /// Parts in flight at once.
    pub parallel: usize,
    /// A bandwidth limit that other transfers share.
    pub limiter: Option<&'a Limiter>,
    /// The object to download, as a listing had it. Where objects never change, its metadata is not requested again.
    pub listed: Option<&'a Object>,
}

impl<'a> Transfer<'a> {
    /// A transfer with default options that `cancel` can stop.
    pub fn new(cancel: &'a Cancel) -> Self {
        Self {
            crc32c: None,
            cancel,
            progress: &|_| {},
            part_bytes: PART_BYTES,
            parallel: PARALLEL,
            limiter: None,
            listed: None,
        }
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
