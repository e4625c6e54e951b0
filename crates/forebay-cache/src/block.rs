//! The format of block files: encoding, parsing and verification. File I/O is in `disk`.
//!
//! A block file contains one block of one object, and identifies both. All numbers are little-endian.
//!
//! | offset | bytes | |
//! | --- | --- | --- |
//! | 0 | 8 | `89 46 42 43 0d 0a 1a 0a` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | crc32c of the header's 4,096 bytes, with these four as zeros |
//! | 16 | 32 | the object's id: see [`ObjectId`] |
//! | 48 | 8 | length of the object |
//! | 56 | 8 | number of the block: it begins at number × block size |
//! | 64 | 4 | block size: a power of two, 4 KiB to 16 MiB |
//! | 68 | 4 | length of the payload: the block size, or less at the object's end |
//! | 72 | 4 | chunk size: a 256th of a block, at least 4 KiB |
//! | 76 | 2 | length of the location's text |
//! | 78 | 2 | length of the key's text |
//! | 80 | 1,024 | crc32c of each chunk of the payload; then zeros |
//! | 1,104 | 1,496 | the object's location, UTF-8, truncated to this length; then zeros |
//! | 2,600 | 1,496 | the object's key, in the same form |
//! | 4,096 | payload | |
//!
//! A file is accepted as a block only if its length is 4,096 plus the payload's length, the header's checksum is right, and the
//! numbers are consistent. A read verifies each chunk that it touches. A file that a power cut left truncated, half-written or
//! full of zeros is therefore never used, so storing a block needs no fsync: lost blocks are fetched again.

use super::object_id::ObjectId;

/// Bytes before the payload: one page, so that the payload is page-aligned.
pub(super) const HEADER_BYTES: usize = 4096;

/// The smallest block size: blocks below a page save nothing.
pub(super) const MIN_BLOCK_BYTES: u32 = 4 << 10;
/// The largest block size: a reader waits until a whole block is fetched.
pub(super) const MAX_BLOCK_BYTES: u32 = 16 << 20;

const MAGIC: [u8; 8] = *b"\x89FBC\r\n\x1a\n";
const VERSION: u32 = 1;
const MAX_CHUNKS: u32 = 256;
const MIN_CHUNK_BYTES: u32 = 4 << 10;

const CHECKSUM_AT: usize = 12;
const SUMS_AT: usize = 80;
const TEXT_BYTES: usize = 1496;
const LOCATION_AT: usize = SUMS_AT + 4 * MAX_CHUNKS as usize;
const KEY_AT: usize = LOCATION_AT + TEXT_BYTES;

/// Whether this is a valid block size.
pub(super) fn is_block_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&bytes)
}

/// The header of a block file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: ObjectId,
    pub(super) object_len: u64,
    pub(super) number: u64,
    pub(super) block_bytes: u32,
    pub(super) payload_len: u32,
    /// The object's location; this and `key` may be truncated.
    pub(super) location: String,
    pub(super) key: String,
    sums: Vec<u32>,
}

/// Length of a block's payload: the block size, or less for the last block. `None` beyond the object's end.
pub(super) fn payload_len(object_len: u64, number: u64, block_bytes: u32) -> Option<u32> {
    let start = number.checked_mul(u64::from(block_bytes))?;
    let left = object_len.checked_sub(start).filter(|left| *left > 0)?;
    // At most `block_bytes`, which is a u32.
    Some(left.min(u64::from(block_bytes)) as u32)
}

fn chunk_bytes(block_bytes: u32) -> u32 {
    (block_bytes / MAX_CHUNKS).max(MIN_CHUNK_BYTES)
}

impl Header {
    /// The header of a block with this payload.
    pub(super) fn new(
        (id, object_len): (ObjectId, u64),
        (location, key): (&str, &str),
        (number, block_bytes): (u64, u32),
        payload: &[u8],
    ) -> Self {
        let chunks = payload.chunks(chunk_bytes(block_bytes) as usize);
        Self {
            id,
            object_len,
            number,
            block_bytes,
            payload_len: payload.len() as u32,
            location: cut(location).to_owned(),
            key: cut(key).to_owned(),
            sums: chunks.map(crc32c::crc32c).collect(),
        }
    }

    /// The bytes of the header.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(16, self.id.as_bytes());
        put(48, &self.object_len.to_le_bytes());
        put(56, &self.number.to_le_bytes());
        put(64, &self.block_bytes.to_le_bytes());
        put(68, &self.payload_len.to_le_bytes());
        put(72, &chunk_bytes(self.block_bytes).to_le_bytes());
        put(76, &(self.location.len() as u16).to_le_bytes());
        put(78, &(self.key.len() as u16).to_le_bytes());
        for (at, sum) in (SUMS_AT..).step_by(4).zip(&self.sums) {
            put(at, &sum.to_le_bytes());
        }
        put(LOCATION_AT, self.location.as_bytes());
        put(KEY_AT, self.key.as_bytes());
        let sum = crc32c::crc32c(&bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a header; `file_len` is the length of its file. `None` if the file is not a valid block.
    pub(super) fn parse(bytes: &[u8], file_len: u64) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.try_into().ok()?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        if bytes[..8] != MAGIC || u32_at(8)? != VERSION {
            return None;
        }
        let mut unsigned = *bytes;
        unsigned[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        if crc32c::crc32c(&unsigned) != u32_at(CHECKSUM_AT)? {
            return None;
        }
        let (object_len, number) = (u64_at(48)?, u64_at(56)?);
        let (block_bytes, payload) = (u32_at(64)?, u32_at(68)?);
        let is_consistent = is_block_size(block_bytes)
            && payload_len(object_len, number, block_bytes) == Some(payload)
            && u32_at(72)? == chunk_bytes(block_bytes)
            && file_len == HEADER_BYTES as u64 + u64::from(payload);
        if !is_consistent {
            return None;
        }
        let text = |at: usize, len: u16| {
            let text = bytes.get(at..at + TEXT_BYTES)?.get(..usize::from(len))?;
            Some(std::str::from_utf8(text).ok()?.to_owned())
        };
        let chunks = payload.div_ceil(chunk_bytes(block_bytes)) as usize;
        let sums = (SUMS_AT..).step_by(4).take(chunks);
        Some(Self {
            id: ObjectId::from_bytes(bytes.get(16..48)?.try_into().ok()?),
            object_len,
            number,
            block_bytes,
            payload_len: payload,
            location: text(LOCATION_AT, u16_at(76)?)?,
            key: text(KEY_AT, u16_at(78)?)?,
            sums: sums.map(u32_at).collect::<Option<_>>()?,
        })
    }

    /// Bytes per checksum; the last chunk of a payload may be shorter.
    pub(super) fn chunk_bytes(&self) -> usize {
        chunk_bytes(self.block_bytes) as usize
    }

    /// Whether the checksums of `bytes` match; `bytes` are whole chunks of the payload, from chunk `first` on.
    pub(super) fn are_chunks(&self, first: usize, bytes: &[u8]) -> bool {
        let sums = self.sums.get(first..).unwrap_or_default();
        let chunks = bytes.chunks(self.chunk_bytes());
        chunks.len() <= sums.len()
            && chunks
                .zip(sums)
                .all(|(chunk, sum)| crc32c::crc32c(chunk) == *sum)
    }
}

/// Truncates a text to the length that fits into the header.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Fuzz target: parses arbitrary bytes as a block file, with the header's checksum corrected, and checks that every accepted
/// header is consistent with its payload.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(bytes: &[u8]) {
    let _ = Header::parse(bytes, bytes.len() as u64);
    let Some((header, payload)) = bytes.split_at_checked(HEADER_BYTES) else {
        return;
    };
    let Ok(mut header) = <[u8; HEADER_BYTES]>::try_from(header) else {
        return;
    };
    header[..8].copy_from_slice(&MAGIC);
    header[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
    let sum = crc32c::crc32c(&header);
    header[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    let Some(found) = Header::parse(&header, bytes.len() as u64) else {
        return;
    };
    assert_eq!(found.payload_len as usize, payload.len());
    assert!(is_block_size(found.block_bytes) && found.payload_len <= found.block_bytes);
    let again = found.encode();
    assert_eq!(
        Header::parse(&again, bytes.len() as u64).as_ref(),
        Some(&found)
    );
    for (chunk, piece) in payload.chunks(found.chunk_bytes()).enumerate() {
        assert_eq!(
            found.are_chunks(chunk, piece),
            found.sums.get(chunk) == Some(&crc32c::crc32c(piece))
        );
    }
    assert!(!found.are_chunks(found.sums.len(), &[0]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_fuzz_corpus_passes() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/cache_block");
        forebay_rigs::replay_corpus(corpus.as_ref(), 1000, super::fuzz);
    }

    fn block(len: usize) -> (Header, Vec<u8>) {
        let payload: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
        let id = ObjectId::of(
            "s3://bucket/set",
            "train-00000",
            Some("etag"),
            8192 + len as u64,
        );
        let header = Header::new(
            (id, 8192 + len as u64),
            ("s3://bucket/set", "train-00000"),
            (1, 8192),
            &payload,
        );
        (header, payload)
    }

    fn whole(len: usize) -> u64 {
        (HEADER_BYTES + len) as u64
    }

    #[test]
    fn a_header_survives_a_round_trip() {
        for len in [1, 4095, 4096, 4097, 8192] {
            let (header, payload) = block(len);
            let bytes = header.encode();
            assert_eq!(Header::parse(&bytes, whole(len)).as_ref(), Some(&header));
            assert!(header.are_chunks(0, &payload));
            assert!(header.are_chunks(1, &payload[payload.len().min(4096)..]));
        }
    }

    #[test]
    fn the_first_bytes_are_the_documented_ones() {
        let (header, _) = block(5);
        let bytes = header.encode();
        assert_eq!(bytes[..12], *b"\x89FBC\r\n\x1a\n\x01\0\0\0");
        assert_eq!(bytes[48..56], 8197_u64.to_le_bytes());
        assert_eq!(bytes[56..64], 1_u64.to_le_bytes());
        assert_eq!(
            bytes[64..80],
            *b"\0\x20\0\0\x05\0\0\0\0\x10\0\0\x0f\0\x0b\0"
        );
        assert_eq!(bytes[1104..1119], *b"s3://bucket/set");
        assert_eq!(bytes[2600..2611], *b"train-00000");
    }

    #[test]
    fn every_flipped_bit_and_truncation_is_detected() {
        let (header, mut payload) = block(5000);
        let mut bytes = header.encode();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(&bytes, whole(5000)), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            assert_eq!(
                Header::parse(&bytes[..len], whole(5000)),
                None,
                "{len} bytes"
            );
        }
        for len in [0, 4096, whole(4999), whole(5001), u64::MAX] {
            assert_eq!(Header::parse(&bytes, len), None, "a file of {len}");
        }
        for bit in 0..payload.len() * 8 {
            payload[bit / 8] ^= 1 << (bit % 8);
            let chunk = bit / 8 / 4096;
            let end = payload.len().min((chunk + 1) * 4096);
            assert!(
                !header.are_chunks(chunk, &payload[chunk * 4096..end]),
                "bit {bit}"
            );
            payload[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(
            !header.are_chunks(0, &[0; 3 * 4096]),
            "more chunks than there are"
        );
        assert!(!header.are_chunks(9, &[0]), "chunks that are not there");
    }

    #[test]
    fn long_names_are_truncated_at_a_character() {
        let long = format!("{}é", "x".repeat(TEXT_BYTES - 1));
        let id = ObjectId::of(&long, &long, None, 1);
        let header = Header::new((id, 1), (&long, &long), (0, 4096), b"a");
        assert_eq!(header.location.len(), TEXT_BYTES - 1);
        assert_eq!(Header::parse(&header.encode(), whole(1)), Some(header));
    }

    /// A header with these fields overwritten and a right checksum, as only deliberate manipulation creates it.
    fn signed(fields: &[(usize, Vec<u8>)]) -> [u8; HEADER_BYTES] {
        let mut bytes = block(100).0.encode();
        for (at, field) in fields {
            bytes[*at..at + field.len()].copy_from_slice(field);
        }
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
        let sum = crc32c::crc32c(&bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..5000),
            len in any::<u64>(),
        ) {
            let _ = Header::parse(&bytes, len);
            bytes.resize(HEADER_BYTES, 0);
            bytes[..8].copy_from_slice(&MAGIC);
            prop_assert_eq!(Header::parse(&bytes, len), None);
        }

        #[test]
        fn headers_with_a_right_checksum_are_consistent(
            object_len in prop_oneof![any::<u64>(), 0..100_000_u64],
            number in prop_oneof![any::<u64>(), 0..10_u64],
            block_bytes in prop_oneof![any::<u32>(), (0..32_u32).prop_map(|bit| 1 << bit)],
            payload in prop_oneof![any::<u32>(), 0..10_000_u32],
            texts in any::<[u16; 2]>(),
            file_len in prop_oneof![any::<u64>(), 4096..20_000_u64],
        ) {
            let bytes = signed(&[
                (48, object_len.to_le_bytes().to_vec()),
                (56, number.to_le_bytes().to_vec()),
                (64, block_bytes.to_le_bytes().to_vec()),
                (68, payload.to_le_bytes().to_vec()),
                (72, chunk_bytes(block_bytes).to_le_bytes().to_vec()),
                (76, texts[0].to_le_bytes().to_vec()),
                (78, texts[1].to_le_bytes().to_vec()),
            ]);
            if let Some(header) = Header::parse(&bytes, file_len) {
                prop_assert_eq!(file_len, whole(header.payload_len as usize));
                prop_assert_eq!(
                    payload_len(header.object_len, header.number, header.block_bytes),
                    Some(header.payload_len)
                );
                prop_assert!(header.sums.len() <= MAX_CHUNKS as usize);
                prop_assert_eq!(header.encode().len(), HEADER_BYTES);
            }
        }
    }
}
