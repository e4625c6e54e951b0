//! Finding the bytes of a file in the record that was made of them.

use forebay_shard::mapped::{Extent, ExtentStart, MIN_EXTENT_BYTES};
use memchr::memmem;

/// Adds where bytes of a file, which begin at `start` there, are in a record. Returns whether the record has them.
pub(super) fn find(
    record: &[u8],
    bytes: &[u8],
    start: ExtentStart,
    extents: &mut Vec<Extent>,
) -> bool {
    if bytes.len() < MIN_EXTENT_BYTES {
        return false;
    }
    let found = memmem::find(record, bytes);
    extents.extend(found.map(|at| Extent {
        record: at..at + bytes.len(),
        start,
    }));
    found.is_some()
}
