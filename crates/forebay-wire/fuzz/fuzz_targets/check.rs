//! Properties that hold for any bytes from a peer. The fuzzer generates the bytes; a normal test
//! replays its corpus.

use std::io::Cursor;

use forebay_wire::batch::from_header;
use forebay_wire::frame::{self, FrameLimits, HEAD_LEN};
use forebay_wire::{BufferPool, Error, FrameReader, Layout, Message};

/// Payload limit of the readers.
const PAYLOAD: u64 = 1 << 16;

/// Reads `data` as a server and as a client would: once unchanged, and once with corrected
/// checksums, which a fuzzer does not guess.
pub(crate) fn frames(data: &[u8]) {
    let mended = mend(data);
    for bytes in [data, &mended] {
        for limits in [
            FrameLimits::from_client(),
            FrameLimits::from_server(PAYLOAD),
        ] {
            one_by_one(bytes, &limits);
            as_a_stream(bytes, limits);
        }
    }
}

/// Corrects magic, layout, flags and checksum of each frame, as far as the data reaches.
fn mend(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let mut at = 0;
    while let Some(head) = bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<HEAD_LEN>())
    {
        let header_len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let payload_len = u64::from_le_bytes(std::array::from_fn(|i| head[12 + i]));
        bytes[at..at + 5].copy_from_slice(b"FBRY\x01");
        bytes[at + 6..at + 8].fill(0);
        let header = at + HEAD_LEN..(at + HEAD_LEN).saturating_add(header_len);
        let Some(message) = bytes.get(header.clone()) else {
            break;
        };
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[at..at + 20]), message);
        bytes[at + 20..at + HEAD_LEN].copy_from_slice(&crc.to_le_bytes());
        let Some(end) = usize::try_from(payload_len)
            .ok()
            .and_then(|len| header.end.checked_add(len))
        else {
            break;
        };
        at = end;
    }
    bytes
}

fn one_by_one(mut bytes: &[u8], limits: &FrameLimits) {
    while let Ok(Some((message, payload, rest))) = frame::decode(bytes, limits) {
        assert!(message.kind().is_sent_by(limits.from));
        let mut again = Vec::new();
        frame::encode(&message, payload.len() as u64, &mut again).unwrap();
        again.extend_from_slice(payload);
        let (same, ..) = frame::decode(&again, limits).unwrap().unwrap();
        // Compared as text, because NaN differs from itself.
        assert_eq!(format!("{same:?}"), format!("{message:?}"));
        bytes = rest;
    }
}

fn as_a_stream(bytes: &[u8], limits: FrameLimits) {
    let pool = BufferPool::new(0);
    let mut reader = FrameReader::new(Cursor::new(bytes), limits);
    loop {
        let (message, payload_len) = match reader.read() {
            Ok(read) => read,
            Err(Error::Closed) => return,
            Err(e) => return assert!(!e.to_string().is_empty()),
        };
        assert!(payload_len <= PAYLOAD);
        let mut payload = pool.take(payload_len as usize);
        let crc = match &message {
            Message::Batch(header) => header.payload_crc32c,
            _ => None,
        };
        if reader.read_payload(&mut payload, crc).is_err() {
            return;
        }
        if let Message::Batch(header) = message
            && let Ok(batch) = from_header(header, Layout::Nhwc, payload)
        {
            batch.check().unwrap();
        }
    }
}
