//! Additional connections of a stream, which carry slices of its batches.
//!
//! They carry nothing else: credit, pings and all messages stay on the first connection. If one of
//! them fails, the connection of the stream has failed. So batches stay in order, and a reconnect
//! recovers lost data as usual.

use std::thread;

use forebay_wire::{Buffer, Error as WireError, FrameReader, Kind, Message, Socket, wire};

use crate::connection::Connection;

/// Returns the total length of a payload from the lengths of its slices; `None` if they are invalid. `first` is
/// the length of the slice after the batch's header; the others arrive on up to `more` connections.
pub(crate) fn total(parts: &[u64], first: u64, more: usize) -> Option<u64> {
    let fits = parts.first() == Some(&first) && parts.len() <= more + 1;
    let sum = |sum: u64, &part: &u64| sum.checked_add(part);
    parts.iter().try_fold(0, sum).filter(|_| fits)
}

/// Reads a payload that comes in slices: the first with `reader`, the others in parallel from
/// `more`.
pub(crate) fn read(
    reader: &mut FrameReader<Socket>,
    more: &mut [Connection],
    header: &wire::Batch,
    images: &mut Buffer,
) -> Result<(), WireError> {
    let place = (header.epoch, header.position);
    thread::scope(|scope| {
        let mut rest = &mut images[..];
        let mut parts = Vec::with_capacity(header.parts.len());
        for &part in &header.parts {
            // The slices add up to the buffer's length.
            let len = usize::try_from(part).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = std::mem::take(&mut rest).split_at_mut(len);
            parts.push(part);
            rest = after;
        }
        let mut parts = parts.into_iter();
        let first = parts.next().unwrap_or_default();
        let mut others = Vec::new();
        for (connection, part) in more.iter_mut().zip(parts) {
            let reading = thread::Builder::new().name("forebay-receive".to_owned());
            let reading = reading.spawn_scoped(scope, move || part_of(place, connection, part));
            others.push(reading.map_err(|source| WireError::Io {
                doing: "starting a thread",
                source,
            })?);
        }
        let own = reader.read_payload(first, header.payload_crc32c);
        others.into_iter().fold(own, |result, other| {
            // All input is validated, so the thread does not panic.
            let other = other.join().unwrap_or(Err(WireError::Closed));
            result.and(other)
        })
    })
}

/// Reads one connection's slice.
fn part_of(
    place: (u64, u64),
    connection: &mut Connection,
    part: &mut [u8],
) -> Result<(), WireError> {
    let (message, len) = connection.reader.read()?;
    let Message::Batch(header) = message else {
        return Err(WireError::Unexpected {
            expected: "a part of a batch",
            found: message.kind(),
        });
    };
    if (header.epoch, header.position) != place || len != part.len() as u64 {
        let what = format!(
            "expected {} bytes of the batch at epoch {}, position {}, found {len} bytes of epoch {}, position {}",
            part.len(),
            place.0,
            place.1,
            header.epoch,
            header.position
        );
        return Err(WireError::Invalid {
            kind: Kind::Batch,
            what,
        });
    }
    connection.reader.read_payload(part, header.payload_crc32c)
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn parts_add_up_or_are_refused() {
        assert_eq!(total(&[4, 4, 2], 4, 2), Some(10));
        assert_eq!(total(&[4, 4], 4, 3), Some(8));
        assert_eq!(total(&[4, 4, 2], 4, 1), None);
        assert_eq!(total(&[4, 4], 3, 1), None);
        assert_eq!(total(&[], 0, 1), None);
        assert_eq!(total(&[1, u64::MAX], 1, 1), None);
    }
}
