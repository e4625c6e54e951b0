//! Reads and verifies the frames of a stream one by one.

use std::io::{self, Read};

use super::input::Input;
use crate::checksum::{crc32c, mask};
use crate::compress::{Compression, Decoder};
use crate::error::Corruption;
use crate::frame::{HEAD_BYTES, OVERHEAD_BYTES, check_payload, decode_head, split_head};

/// The reason why there is no frame.
pub(super) enum FrameError {
    Damage(Corruption),
    Io(io::Error),
}

impl From<Corruption> for FrameError {
    fn from(damage: Corruption) -> Self {
        Self::Damage(damage)
    }
}

/// Reads frames from an input.
pub(super) struct Frames<'a, R: Read> {
    pub(super) input: &'a mut Input<Decoder<R>>,
    /// Length of the stream, if known.
    pub(super) limit: Option<u64>,
    pub(super) max_record: u64,
    pub(super) verify: bool,
    /// Payload bytes that salvage has checksummed in vain so far.
    pub(super) vain: &'a mut u64,
}

impl<R: Read> Frames<'_, R> {
    /// Ensures that bytes are buffered. An error of the decoder counts as damage.
    pub(super) fn fill(&mut self, len: usize) -> Result<usize, FrameError> {
        let compression = self.input.reader().compression();
        self.input.fill(len).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof
                if compression != Compression::None =>
            {
                let at = self.input.position() + self.input.window().len() as u64;
                let what = format!("{compression} stream (byte of what it expands to)");
                Corruption::new(at, what, "a valid stream", error).into()
            }
            _ => FrameError::Io(error),
        })
    }

    /// Consumes the next frame; returns its offset and the length of its payload.
    pub(super) fn next(&mut self) -> Result<Option<(u64, u64)>, FrameError> {
        let offset = self.input.position();
        let Some(len) = self.check()? else {
            return Ok(None);
        };
        self.input.consume(len + OVERHEAD_BYTES);
        Ok(Some((offset, len as u64)))
    }

    /// Verifies the frame at the current position without consuming it; `None` at the end of the
    /// stream.
    pub(super) fn check(&mut self) -> Result<Option<usize>, FrameError> {
        let Some(len) = self.check_head()? else {
            return Ok(None);
        };
        let offset = self.input.position();
        let frame = len + OVERHEAD_BYTES;
        let found = self.fill(frame)?;
        let window = self.input.window();
        let (Some(payload), Some(tail)) = (
            window.get(HEAD_BYTES..HEAD_BYTES + len),
            window.get(HEAD_BYTES + len..).and_then(<[u8]>::first_chunk),
        ) else {
            let what = "frame is cut short";
            return Err(Corruption::truncated(
                offset,
                what,
                format_args!("{frame} bytes"),
                format_args!("{found} bytes before the end"),
            )
            .into());
        };
        if self.verify {
            check_payload(payload, *tail, offset)?;
        }
        Ok(Some(len))
    }

    /// Verifies the head at the current position.
    pub(super) fn check_head(&mut self) -> Result<Option<usize>, FrameError> {
        let offset = self.input.position();
        let found = self.fill(HEAD_BYTES)?;
        let Some(head) = self.input.window().first_chunk::<HEAD_BYTES>() else {
            if found == 0 {
                return Ok(None);
            }
            return Err(Corruption::truncated(
                offset,
                "head of the frame is cut short",
                format_args!("{HEAD_BYTES} bytes"),
                format_args!("{found} bytes before the end"),
            )
            .into());
        };
        let len = decode_head(head, offset)?;
        let remain = self.limit.map_or(u64::MAX, |limit| {
            limit
                .saturating_sub(offset)
                .saturating_sub(OVERHEAD_BYTES as u64)
        });
        if len > remain {
            let expected = format_args!("at most the {remain} bytes that remain");
            return Err(Corruption::new(offset, "record length", expected, len).into());
        }
        match usize::try_from(len) {
            Ok(usable) if len <= self.max_record => Ok(Some(usable)),
            _ => {
                let expected = format_args!("at most {} bytes (max_record)", self.max_record);
                Err(Corruption::new(offset, "record length", expected, len).into())
            }
        }
    }

    /// Returns the claimed length of a frame if its head is valid.
    pub(super) fn plausible(&self, head: &[u8; HEAD_BYTES]) -> Option<u64> {
        let (len, stored) = split_head(head);
        // The cheap check comes first, and nothing is allocated: this runs at every byte of a
        // damaged range.
        (len <= self.max_record && stored == mask(crc32c(&head[..8]))).then_some(len)
    }
}
