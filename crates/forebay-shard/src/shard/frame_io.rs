//! Reads a frame with one call, with the payload directly in its destination.

use std::io::{self, IoSliceMut};

use crate::error::Corruption;
use crate::frame::{self, HEAD_BYTES, OVERHEAD_BYTES};
use crate::storage::ReadAt;

/// Reads a frame at `offset`: head and tail into `ends`, the payload into `payload`, with one call.
/// Returns the number of bytes read.
pub(super) fn read_frame_at(
    file: &dyn ReadAt,
    ends: &mut [u8; OVERHEAD_BYTES],
    payload: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let (head, tail) = ends.split_at_mut(HEAD_BYTES);
    let mut parts = [
        IoSliceMut::new(head),
        IoSliceMut::new(payload),
        IoSliceMut::new(tail),
    ];
    file.read_parts_at(&mut parts, offset)
}

/// As [`frame::check`], for a frame whose head and tail are separate from its payload.
pub(super) fn check_split_frame(
    ends: &[u8; OVERHEAD_BYTES],
    payload: &[u8],
    read: usize,
    offset: u64,
    verify: bool,
) -> Result<(), Corruption> {
    let total = payload.len() + OVERHEAD_BYTES;
    if read < total {
        let expected = format_args!("{total} bytes");
        return Err(Corruption::truncated(
            offset,
            "frame is cut short",
            expected,
            read,
        ));
    }
    let (Some(head), Some(tail)) = (ends.first_chunk(), ends.last_chunk()) else {
        return Ok(());
    };
    let len = frame::decode_head(head, offset)?;
    if len != payload.len() as u64 {
        let expected = format_args!("{} as the index says", payload.len());
        return Err(Corruption::new(offset, "record length", expected, len));
    }
    if verify {
        frame::check_payload(payload, *tail, offset)
    } else {
        Ok(())
    }
}
