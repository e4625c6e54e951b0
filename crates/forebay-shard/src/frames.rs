//! Records that are framed separately from a shard, and then appended to it unchanged.
//!
//! A shard is one sequence, but several threads can read, check and frame its records concurrently:
//! each fills its own [`Frames`], and the thread with the shard's writer appends them in order,
//! without copying.

use std::ops::Range;

use crate::checksum::{Crc32c, combine};
use crate::error::{Error, Result};
use crate::frame::{FrameBuffer, MAX_RECORD_BYTES, OVERHEAD_BYTES, Payload, too_long};

/// Maximum capacity that a reused buffer keeps, so that one huge record does not occupy its memory until the
/// end.
pub(crate) const KEEP_BYTES: usize = 4 << 20;

/// Finished frames in a reusable buffer.
///
/// ```
/// use forebay_shard::{Frames, RecordMeta, tfrecord};
///
/// let mut frames = Frames::new();
/// frames.begin().push(b"record");
/// frames.commit()?;
/// let mut writer = tfrecord::WriterBuilder::new().from_writer(Vec::new(), "a shard");
/// let spent = writer.append_frames(frames, [RecordMeta::new(7, b"key")])?;
/// assert!(spent.is_some_and(|frames| frames.is_empty()));
/// let (bytes, summary) = writer.finish()?;
/// assert_eq!((bytes.len(), summary.records), (16 + 6, 1));
/// # Ok::<(), forebay_shard::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Frames {
    buffer: FrameBuffer,
    /// The end of each frame, and the checksum of all bytes up to there.
    ends: Vec<(usize, u32)>,
}

impl Frames {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a record, and drops one that was not committed.
    pub fn begin(&mut self) -> Payload<'_> {
        self.buffer.begin()
    }

    /// Ends the record that was started last.
    ///
    /// # Errors
    /// If no record was started, or the record is longer than 256 MiB (then it is dropped).
    pub fn commit(&mut self) -> Result<()> {
        let len = self.buffer.open_len();
        let len = len.ok_or_else(|| Error::invalid("no record was started"))?;
        if len > MAX_RECORD_BYTES {
            self.buffer.rollback();
            return Err(too_long(len));
        }
        self.buffer.commit();
        let end = (self.buffer.bytes().len(), self.buffer.sum().value());
        self.ends.push(end);
        Ok(())
    }

    /// Drops the record that was started and not committed, if any.
    pub fn rollback(&mut self) {
        self.buffer.rollback();
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Removes all records. The buffer keeps a capacity of up to `keep_bytes`.
    pub fn clear(&mut self, keep_bytes: usize) {
        self.buffer.reset(0);
        self.buffer.bytes_mut().shrink_to(keep_bytes);
        self.ends.clear();
    }

    /// Returns the payload length of a record.
    pub(crate) fn record_len(&self, record: usize) -> Option<u64> {
        let end = self.ends.get(record)?.0;
        (end.checked_sub(self.start(record).0)?
            .checked_sub(OVERHEAD_BYTES))
        .map(|len| len as u64)
    }

    /// Returns the start of a frame, and the checksum of all bytes before it.
    fn start(&self, record: usize) -> (usize, u32) {
        let before = record.checked_sub(1).and_then(|last| self.ends.get(last));
        before.copied().unwrap_or((0, 0))
    }

    /// Returns the frames of a range of records with their checksum, at a cost independent of their
    /// number.
    pub(crate) fn part(&self, records: Range<usize>) -> (&[u8], Crc32c) {
        let ((from, before), (to, after)) = (self.start(records.start), self.start(records.end));
        let bytes = self.buffer.bytes().get(from..to).unwrap_or_default();
        let len = bytes.len() as u64;
        let mut sum = Crc32c::default();
        // The checksum of everything combines that of the start, shifted, and that of the rest by XOR, so the latter
        // can be computed from the other two.
        sum.combine(combine(before, after, len), len);
        (bytes, sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::crc32c;

    #[test]
    fn the_checksum_of_any_part_is_that_of_its_bytes() {
        let mut frames = Frames::new();
        for len in [0usize, 5, 3000, 1, 100_000] {
            frames.begin().push(&vec![len as u8; len]);
            frames.commit().unwrap();
            frames.begin().push(b"given up");
        }
        frames.rollback();
        assert_eq!((frames.len(), frames.record_len(2)), (5, Some(3000)));
        for from in 0..=5 {
            for to in from..=5 {
                let (bytes, sum) = frames.part(from..to);
                assert_eq!(
                    (sum.value(), sum.len()),
                    (crc32c(bytes), bytes.len() as u64)
                );
            }
        }
        assert_eq!(frames.part(0..5).0.len(), 103_006 + 5 * OVERHEAD_BYTES);
        assert!(frames.commit().is_err());
        frames.clear(1 << 10);
        assert!(frames.is_empty() && frames.part(0..0).0.is_empty());
    }
}
