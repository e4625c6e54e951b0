//! Counts the memory of the decoded pages of a row group before it is allocated: a page of a few bytes may claim gigabytes.
//!
//! A page that takes at most `FREE_RATIO` times its stored bytes is not counted. All other pages of a row group together may
//! take as much memory as the largest record.

use super::page_header::PageHeader;
use flate2::read::MultiGzDecoder;
use forebay_shard::MAX_RECORD_BYTES;
use parquet::basic::{Compression, Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A page that takes at most this many times its stored bytes is not counted.
const FREE_RATIO: u64 = 4;
/// Bytes of a decoded value that shares the memory of its page, and bytes of its levels.
const BYTES_VALUE: u64 = 32;
const LEVELS: u64 = 4;
/// Bytes of rows that are decoded at once if values take more than their page.
const PREFIX_BYTES: u64 = 16 << 20;
/// Magic bytes of an LZ4 frame.
const LZ4_FRAME: &[u8] = &[0x04, 0x22, 0x4d, 0x18];
/// Upper bound for the compression ratio of deflate and LZ4.
const MAX_RATIO: u64 = 1032;

/// The bytes of the counted pages of a row group.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupMemory(Arc<AtomicU64>);

/// The pages of a column in a row group.
#[derive(Debug)]
pub(super) struct ColumnMemory {
    group: GroupMemory,
    compression: Compression,
    /// Bytes of a decoded value.
    value_bytes: u64,
    is_list: bool,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Counted bytes of the data pages whose values may be in use, and of the last one of them.
    pages: u64,
    last: u64,
    /// Number of values in all pages up to the last one.
    values: u64,
    /// Most rows of the last page that may be decoded at once.
    most: u64,
}

impl ColumnMemory {
    pub(super) fn new(
        group: &GroupMemory,
        compression: Compression,
        physical_type: Type,
        is_list: bool,
    ) -> Self {
        let value_bytes = match physical_type {
            Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY => BYTES_VALUE,
            _ => 8,
        };
        Self {
            group: group.clone(),
            compression,
            value_bytes,
            is_list,
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a page of `stored` bytes, or refuses it if the limit is exceeded.
    pub(super) fn admit(&self, header: &PageHeader, stored: u64) -> ParquetResult<()> {
        let refused = |what: String| Err(ParquetError::General(what));
        let least = header.expanded / header.values.max(1);
        if least > MAX_RECORD_BYTES {
            return refused(format!(
                "a value of {least} bytes: a record holds at most {MAX_RECORD_BYTES}"
            ));
        }
        // A dictionary is decoded as a whole, and a row of a list may contain all values of a page.
        let decoded = match header.is_dictionary || self.is_list {
            true => header.values.saturating_mul(self.value_bytes + LEVELS),
            false => 0,
        };
        let bytes = header.expanded.max(decoded);
        let counted = match bytes <= stored.saturating_mul(FREE_RATIO) {
            true => 0,
            false => bytes,
        };
        let all = self.group.0.fetch_add(counted, Ordering::Relaxed);
        if all.saturating_add(counted) > MAX_RECORD_BYTES {
            return refused(format!(
                "a page of {stored} bytes takes {bytes} once it is decoded, with those of other columns {}: at most {MAX_RECORD_BYTES} are taken at once; write smaller pages",
                all.saturating_add(counted)
            ));
        }
        if !header.is_dictionary {
            let mut held = self.held();
            held.pages += counted;
            held.last = counted;
            held.most = match header.shares_prefixes {
                true => (PREFIX_BYTES / header.expanded.max(1)).max(1),
                false => u64::MAX,
            };
        }
        Ok(())
    }

    /// Refuses a page that expands to more bytes than its header says. The decoder would continue in that case.
    pub(super) fn check_expanded(&self, header: &PageHeader, stored: &[u8]) -> ParquetResult<()> {
        let levels = usize::try_from(header.levels).unwrap_or(usize::MAX);
        let stored = stored.get(levels..).unwrap_or_default();
        if (stored.len() as u64).saturating_mul(MAX_RATIO) <= MAX_RECORD_BYTES {
            return Ok(());
        }
        let most = header.expanded;
        let expanded = match self.compression {
            Compression::GZIP(_) => count(MultiGzDecoder::new(stored), most),
            Compression::LZ4 if stored.starts_with(LZ4_FRAME) => {
                count(lz4_flex::frame::FrameDecoder::new(stored), most)
            }
            _ => 0,
        };
        match expanded > most {
            true => Err(ParquetError::General(format!(
                "a page expands to more than the {most} bytes that its header says"
            ))),
            false => Ok(()),
        }
    }

    /// Adds the number of values of a page.
    pub(super) fn pass_page(&self, values: u64) {
        let mut held = self.held();
        held.values = held.values.saturating_add(values);
    }

    /// Returns the number of values up to the last page, and the number of rows that may be decoded at once.
    pub(super) fn position(&self) -> (u64, u64) {
        let held = self.held();
        (held.values, held.most)
    }

    /// Releases the pages whose values are not used any more: all, or all but the last one.
    pub(super) fn release(&self, is_last_used: bool) {
        let mut held = self.held();
        let kept = if is_last_used { held.last } else { 0 };
        let freed = held.pages.saturating_sub(kept);
        self.group.0.fetch_sub(freed, Ordering::Relaxed);
        (held.pages, held.last) = (kept, kept);
    }
}

/// Returns the number of bytes that a decoder produces up to its first error, but at most `most` + 1.
fn count(decoder: impl Read, most: u64) -> u64 {
    let mut sink = Counted(0);
    // Errors are ignored: decoding the page reports them.
    let _ = io::copy(&mut decoder.take(most.saturating_add(1)), &mut sink);
    sink.0
}

struct Counted(u64);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
