//! Reads the payload of a batch, which follows its header, arrives in slices over several connections, or is in shared memory.

use std::sync::Arc;

use forebay_wire::{Buffer, BufferPool, stream, wire};

use crate::connection::Connection;
use crate::parallel;
use crate::sequence::SequenceError;
use crate::slots::Slots;

/// Length of a batch's payload; `framed` bytes of it follow the header.
pub(crate) fn len_of(
    header: &wire::Batch,
    shared: Option<&wire::SharedPayload>,
    framed: u64,
    more: usize,
) -> Result<u64, SequenceError> {
    let bad = |expected: String, found: String| SequenceError {
        what: "payload",
        expected,
        found,
    };
    match shared {
        Some(shared) if framed == 0 && header.parts.is_empty() => Ok(shared.bytes),
        Some(_) => {
            let expected = "one, in shared memory or in the frame".to_owned();
            Err(bad(expected, "both".to_owned()))
        }
        None if header.parts.is_empty() => Ok(framed),
        None => parallel::total(&header.parts, framed, more).ok_or_else(|| {
            let most = more + 1;
            let expected = format!("at most {most} parts, the first of {framed} bytes");
            let found = header.parts.get(..header.parts.len().min(20));
            bad(expected, format!("{:?}", found.unwrap_or_default()))
        }),
    }
}

/// An error of reading a payload.
pub(crate) enum Unread {
    Wire(forebay_wire::Error),
    Memory(std::io::Error),
    Shared(SequenceError),
}

/// Returns a payload in shared memory. Nothing was transferred, so no checksum is requested by
/// default; if one is present, it is verified against the memory's current content.
pub(crate) fn find(
    slots: &Arc<Slots>,
    shared: &wire::SharedPayload,
    connection: &Connection,
    header: &wire::Batch,
) -> Result<Buffer, Unread> {
    let images = slots
        .payload(shared, &connection.socket)
        .map_err(|impossible| {
            Unread::Shared(SequenceError {
                what: "shared memory",
                expected: impossible.expected,
                found: impossible.found,
            })
        })?;
    stream::check_payload(&images, header.payload_crc32c).map_err(Unread::Wire)?;
    Ok(images)
}

/// Reads the payload that follows the header.
pub(crate) fn read(
    connection: &mut Connection,
    header: &wire::Batch,
    payload_len: u64,
    pool: &BufferPool,
) -> Result<Buffer, Unread> {
    let len = usize::try_from(payload_len)
        .map_err(|_| Unread::Memory(std::io::ErrorKind::OutOfMemory.into()))?;
    let mut images = pool.try_take(len).map_err(Unread::Memory)?;
    let Connection { reader, more, .. } = connection;
    let read = if header.parts.is_empty() {
        reader.read_payload(&mut images, header.payload_crc32c)
    } else {
        parallel::read(reader, more, header, &mut images)
    };
    read.map_err(Unread::Wire)?;
    Ok(images)
}
