//! Going on behind damage.
//!
//! A frame that is not valid is left out. If its length is intact and another
//! frame (or the end) follows exactly where that length says, only its payload
//! is damaged. Otherwise the next place is searched where a length, its
//! checksum, a payload and its checksum fit together.

use std::io::Read;

use super::compress::Compression;
use super::reader::{Frames, Trouble};
use crate::error::Corruption;
use crate::frame::{HEAD_BYTES, OVERHEAD_BYTES};

/// Payload bytes that may be summed in vain for a whole file, besides
/// [`VAIN_FACTOR`] for each byte of it. Only a crafted file has more: further
/// candidates are skipped, so that the work stays linear in the file's length.
const VAIN_BYTES: u64 = 1 << 30;
/// Payload bytes that may be summed in vain for each byte that was passed.
const VAIN_FACTOR: u64 = 8;
/// Expanded bytes of a compressed file to search in one go without a valid
/// frame, besides twice the longest record. A few kilobytes can expand to any
/// number of zeros.
const BARREN_BYTES: u64 = 64 << 20;

/// Bytes that salvage had to leave out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostRange {
    /// The first byte left out.
    pub offset: u64,
    /// How many.
    pub len: u64,
    /// How many records had been found before.
    pub records_before: u64,
    /// The damage at the start of the range.
    pub cause: Corruption,
}

impl<R: Read> Frames<'_, R> {
    /// The next valid frame; what lies before it is added to `lost`.
    pub(super) fn next_valid(
        &mut self,
        lost: &mut Vec<LostRange>,
    ) -> Result<Option<(u64, u64)>, Trouble> {
        let start = self.input.position();
        let cause = match self.check() {
            Ok(Some(len)) => {
                self.input.consume(len + OVERHEAD_BYTES);
                return Ok(Some((start, len as u64)));
            }
            Ok(None) => return Ok(None),
            Err(Trouble::Io(error)) => return Err(Trouble::Io(error)),
            Err(Trouble::Damage(cause)) => cause,
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

    /// Goes to the next valid frame, or to the end. Its length.
    fn resume(&mut self) -> Result<Option<usize>, Trouble> {
        let start = self.input.position();
        loop {
            match self.skip_frame_with_bad_payload() {
                Ok(false) => {}
                Ok(true) => match self.check() {
                    // The neighbour is whole, or damaged in its payload too.
                    Ok(found) => return Ok(found),
                    Err(Trouble::Damage(_)) => continue,
                    Err(error) => return Err(error),
                },
                // The compressed stream itself ends here.
                Err(Trouble::Damage(_)) => return Ok(self.abandon()),
                Err(error) => return Err(error),
            }
            match self.search(start) {
                Ok(found) => return Ok(found),
                Err(Trouble::Damage(_)) => return Ok(self.abandon()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Leaves out all that is at hand, where nothing more can be read.
    fn abandon(&mut self) -> Option<usize> {
        let rest = self.input.window().len();
        self.input.consume(rest);
        None
    }

    /// If a valid head stands here and a head or the end where it says, goes
    /// there.
    fn skip_frame_with_bad_payload(&mut self) -> Result<bool, Trouble> {
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

    /// Tries every byte after this one. `start` is where the damage began.
    fn search(&mut self, start: u64) -> Result<Option<usize>, Trouble> {
        self.fill(1)?;
        self.input.consume(1);
        loop {
            let found = self.fill(HEAD_BYTES)?;
            let barren = self.input.position() - start;
            if found < HEAD_BYTES || barren > self.barren_limit() {
                return Ok(self.abandon());
            }
            let Some((at, len)) = self.candidate() else {
                let tried = self.input.window().len() + 1 - HEAD_BYTES;
                self.input.consume(tried);
                continue;
            };
            self.input.consume(at);
            let most = self.input.position().saturating_mul(VAIN_FACTOR);
            if *self.vain + len <= VAIN_BYTES.saturating_add(most) {
                match self.check() {
                    Ok(Some(len)) => return Ok(Some(len)),
                    Ok(None) | Err(Trouble::Damage(_)) => *self.vain += len,
                    Err(error) => return Err(error),
                }
            }
            self.input.consume(1);
        }
    }

    /// The first place in the window where a valid head stands, and the length that it claims.
    fn candidate(&self) -> Option<(usize, u64)> {
        let window = self.input.window();
        let mut at = 0;
        while let Some(head) = window.get(at..).and_then(<[u8]>::first_chunk) {
            if *head == [0; HEAD_BYTES] {
                // Zeros are what lost pages read as: no head lies in a run of them.
                let run = window[at..].iter().position(|&byte| byte != 0);
                at += run.unwrap_or(window.len() - at) + 1 - HEAD_BYTES;
                continue;
            }
            if let Some(len) = self.plausible(head) {
                return Some((at, len));
            }
            at += 1;
        }
        None
    }

    /// Bytes to search without a valid frame.
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
