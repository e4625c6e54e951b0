//! Continues reading after damage.
//!
//! An invalid frame is left out. If its length is intact and another frame (or the end of the file) follows at
//! exactly that distance, only its payload is damaged. Otherwise salvage searches for the next
//! position at which a length, its checksum, a payload and its checksum are consistent.

use std::io::Read;

use super::frames::{FrameError, Frames};
use crate::compress::Compression;
use crate::error::Corruption;
use crate::frame::{HEAD_BYTES, OVERHEAD_BYTES};

/// Payload bytes per file that may be checksummed in vain, in addition to [`VAIN_FACTOR`] per
/// byte of the file. Only a crafted file exceeds this; further candidates are then skipped, so that
/// the work stays linear in the file's length.
const VAIN_BYTES: u64 = 1 << 30;
/// Payload bytes that may be checksummed in vain per byte of the file.
const VAIN_FACTOR: u64 = 8;
/// Maximum number of decompressed bytes of a compressed file that are searched without finding a valid frame, in
/// addition to twice the longest record. The limit is needed because a few kilobytes can expand to any number of zeros.
const BARREN_BYTES: u64 = 64 << 20;

/// A range that salvage had to leave out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LostRange {
    /// The first byte left out.
    pub offset: u64,
    /// Length of the range.
    pub len: u64,
    /// Number of records found before the range.
    pub records_before: u64,
    /// The damage at the start of the range.
    pub cause: Corruption,
}

impl<R: Read> Frames<'_, R> {
    /// Returns the next valid frame; the bytes before it are added to `lost`.
    pub(super) fn next_valid(
        &mut self,
        lost: &mut Vec<LostRange>,
    ) -> Result<Option<(u64, u64)>, FrameError> {
        let start = self.input.position();
        let cause = match self.check() {
            Ok(Some(len)) => {
                self.input.consume(len + OVERHEAD_BYTES);
                return Ok(Some((start, len as u64)));
            }
            Ok(None) => return Ok(None),
            Err(FrameError::Io(error)) => return Err(FrameError::Io(error)),
            Err(FrameError::Damage(cause)) => cause,
        };
        let found = self.resume();
        let end = self.input.position();
        lost.push(LostRange {
            offset: start,
            len: end - start,
            records_before: 0,
            cause,
        });
        match found? {
            Some(len) => {
                self.input.consume(len + OVERHEAD_BYTES);
                Ok(Some((end, len as u64)))
            }
            None => Ok(None),
        }
    }

    /// Moves to the next valid frame, or to the end. Returns the frame's length.
    fn resume(&mut self) -> Result<Option<usize>, FrameError> {
        let start = self.input.position();
        loop {
            match self.skip_frame_with_bad_payload() {
                Ok(false) => {}
                Ok(true) => match self.check() {
                    // The next frame is intact, or its payload is damaged too.
                    Ok(found) => return Ok(found),
                    Err(FrameError::Damage(_)) => continue,
                    Err(error) => return Err(error),
                },
                // The compressed stream itself is damaged here.
                Err(FrameError::Damage(_)) => return Ok(self.abandon()),
                Err(error) => return Err(error),
            }
            match self.search(start) {
                Ok(found) => return Ok(found),
                Err(FrameError::Damage(_)) => return Ok(self.abandon()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Skips all buffered bytes, because nothing more can be read.
    fn abandon(&mut self) -> Option<usize> {
        let rest = self.input.window().len();
        self.input.consume(rest);
        None
    }

    /// If there is a valid head here, and another head or the end follows at its length, skips the frame.
    fn skip_frame_with_bad_payload(&mut self) -> Result<bool, FrameError> {
        let Ok(Some(len)) = self.check_head() else {
            return Ok(false);
        };
        let frame = len + OVERHEAD_BYTES;
        let found = self.fill(frame + HEAD_BYTES)?;
        let follows = match self
            .input
            .window()
            .get(frame..)
            .and_then(<[u8]>::first_chunk)
        {
            Some(head) => self.plausible(head).is_some(),
            None => found == frame,
        };
        if follows {
            self.input.consume(frame);
        }
        Ok(follows)
    }

    /// Tries every following byte. `start` is the beginning of the damage.
    fn search(&mut self, start: u64) -> Result<Option<usize>, FrameError> {
        self.fill(1)?;
        self.input.consume(1);
        loop {
            let found = self.fill(HEAD_BYTES)?;
            let barren = self.input.position() - start;
            if found < HEAD_BYTES || barren > self.barren_limit() {
                return Ok(self.abandon());
            }
            let candidate = candidate(self.input.window(), |head| self.plausible(head));
            let Some((at, len)) = candidate else {
                let tried = self.input.window().len() + 1 - HEAD_BYTES;
                self.input.consume(tried);
                continue;
            };
            self.input.consume(at);
            let most = self.input.position().saturating_mul(VAIN_FACTOR);
            if *self.vain + len <= VAIN_BYTES.saturating_add(most) {
                match self.check() {
                    Ok(Some(len)) => return Ok(Some(len)),
                    Ok(None) | Err(FrameError::Damage(_)) => *self.vain += len,
                    Err(error) => return Err(error),
                }
            }
            self.input.consume(1);
        }
    }

    /// Returns the maximum number of bytes to search without finding a valid frame.
    fn barren_limit(&self) -> u64 {
        match self.input.reader().compression() {
            Compression::None => u64::MAX,
            _ => self
                .max_record
                .saturating_mul(2)
                .saturating_add(BARREN_BYTES),
        }
    }
}

/// Returns the first position in the window with a plausible head, and the length that it claims.
fn candidate(
    window: &[u8],
    mut plausible: impl FnMut(&[u8; HEAD_BYTES]) -> Option<u64>,
) -> Option<(usize, u64)> {
    let mut at = 0;
    while let Some(head) = window.get(at..).and_then(<[u8]>::first_chunk) {
        if *head == [0; HEAD_BYTES] {
            // Lost pages often read as zeros, which cannot contain a valid head.
            let run = window[at..].iter().position(|&byte| byte != 0);
            at += run.unwrap_or(window.len() - at) + 1 - HEAD_BYTES;
            continue;
        }
        if let Some(len) = plausible(head) {
            return Some((at, len));
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum of a head is not computed at every zero, only before other bytes.
    #[test]
    fn zeros_are_skipped_without_checks() {
        let mut window = vec![0; 1 << 20];
        window.extend([7; HEAD_BYTES]);
        let mut checks = 0;
        let found = candidate(&window, |head| {
            checks += 1;
            (*head == [7; HEAD_BYTES]).then_some(3)
        });
        assert_eq!(found, Some((1 << 20, 3)));
        assert!(checks <= HEAD_BYTES, "{checks}");
    }
}
