//! Chunks of Riegeli. Files consist of blocks of 64 KiB, each of which starts with a header of 24 bytes, even inside a chunk.

use crate::archive::{Stream, read_exact};
use forebay_shard::{MAX_RECORD_BYTES, varint};
use highway::{HighwayHash, HighwayHasher, Key};
use std::io::Read;
use std::ops::Range;

/// Sizes in bytes of a block, its header, and the header of a chunk.
pub(super) const BLOCK: u64 = 1 << 16;
pub(super) const BLOCK_HEADER: u64 = 24;
pub(super) const CHUNK_HEADER: u64 = 40;
/// Types of chunks.
pub(super) const SIGNATURE: u8 = b's';
pub(super) const RECORDS: u8 = b'r';
pub(super) const PADDING: u8 = b'p';
const TRANSPOSED: u8 = b't';
/// Most decoded bytes of a chunk: `CHUNK_BYTES`, or `CHUNK_RATIO` times its stored bytes up to `MAX_CHUNK_BYTES` if that is
/// larger.
const CHUNK_BYTES: u64 = MAX_RECORD_BYTES + (1 << 20);
const MAX_CHUNK_BYTES: u64 = 1 << 30;
const CHUNK_RATIO: u64 = 4;
/// Most bytes that are allocated before the data for them was read.
const STEP_BYTES: u64 = 4 << 20;
/// Key of the HighwayHash: "Riegeli/records" and a newline, twice.
const HASH_KEY: [u64; 4] = [
    0x2f69_6c65_6765_6952,
    0x0a73_6472_6f63_6572,
    0x2f69_6c65_6765_6952,
    0x0a73_6472_6f63_6572,
];

/// Returns the hash of a header or of data.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    HighwayHasher::new(Key(HASH_KEY)).hash64(bytes)
}

/// How the records of a chunk are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Brotli,
    Zstd,
    Snappy,
}

impl Compression {
    fn of(byte: u8) -> Result<Self, String> {
        Ok(match byte {
            0 => Self::None,
            b'b' => Self::Brotli,
            b'z' => Self::Zstd,
            b's' => Self::Snappy,
            other => return Err(format!("its compression {other} is none of Riegeli")),
        })
    }

    /// Returns the name in the options of a writer.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "uncompressed",
            Self::Brotli => "brotli",
            Self::Zstd => "zstd",
            Self::Snappy => "snappy",
        }
    }

    /// Decompresses a part of a chunk, which begins with its decompressed length of at most `most` bytes.
    fn expand(self, part: &[u8], most: u64) -> Result<Vec<u8>, String> {
        let mut rest = part;
        if self == Self::None {
            return Ok(part.to_vec());
        }
        let len = varint::read(&mut rest).filter(|len| *len <= most);
        let len = len.ok_or("the length of a compressed part is damaged")?;
        let mut out = Vec::new();
        let mut expand = |reader: &mut dyn Read| {
            let read = reader.take(len + 1).read_to_end(&mut out);
            read.map_err(|error| format!("its {} is damaged: {error}", self.name()))
        };
        match self {
            Self::None => {}
            Self::Brotli => {
                expand(&mut brotli_decompressor::Decompressor::new(rest, 1 << 16))?;
            }
            Self::Zstd => {
                let decoder = zstd::stream::read::Decoder::new(rest);
                expand(&mut decoder.map_err(|error| error.to_string())?)?;
            }
            Self::Snappy => {
                let found = snap::raw::decompress_len(rest).unwrap_or(0) as u64;
                // In snappy, 3 bytes expand to at most 64.
                if found != len || len > 32 * rest.len() as u64 {
                    return Err("its snappy is damaged: it has another length".to_owned());
                }
                let read = snap::raw::Decoder::new().decompress_vec(rest);
                out = read.map_err(|error| format!("its snappy is damaged: {error}"))?;
            }
        }
        match out.len() as u64 == len {
            true => Ok(out),
            false => Err(format!(
                "its {} has another length than it says",
                self.name()
            )),
        }
    }
}

/// Parses the numeric fields of a protobuf message without those in nested messages. `None` if the message is damaged.
pub(super) fn numbers(message: &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut rest = message;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let key = varint::read(&mut rest)?;
        match key & 7 {
            0 => found.push((key >> 3, varint::read(&mut rest)?)),
            1 => {
                let (word, after) = rest.split_first_chunk::<8>()?;
                found.push((key >> 3, u64::from_le_bytes(*word)));
                rest = after;
            }
            2 => {
                let len = usize::try_from(varint::read(&mut rest)?).ok()?;
                rest = rest.get(len..)?;
            }
            _ => return None,
        }
    }
    Some(found)
}

/// A part of a chunk's data that is contiguous in the file: its range in the data, and its offset in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) data: Range<usize>,
    pub(super) offset: u64,
}

/// The records of a chunk.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// The data of the chunk; the records are contiguous in it.
    data: Vec<u8>,
    /// The range of each record in `data`.
    records: Vec<Range<usize>>,
    /// The parts of the data in the file; empty if the data is compressed.
    pieces: Vec<Piece>,
}

impl Chunk {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    pub(super) fn record(&self, number: usize) -> Option<&[u8]> {
        self.data.get(self.records.get(number)?.clone())
    }

    /// Returns the parts of a record in the file: ranges in the record, with offsets in the file.
    pub(super) fn pieces(&self, number: usize) -> impl Iterator<Item = Piece> {
        let record = self.records.get(number).cloned().unwrap_or_default();
        let first = self
            .pieces
            .partition_point(|piece| piece.data.end <= record.start);
        let pieces = self.pieces[first..].iter();
        let inside = pieces.take_while(move |piece| piece.data.start < record.end);
        let record = self.records.get(number).cloned().unwrap_or_default();
        inside.map(move |piece| {
            let start = piece.data.start.max(record.start);
            let end = piece.data.end.min(record.end);
            Piece {
                data: start - record.start..end - record.start,
                offset: piece.offset + (start - piece.data.start) as u64,
            }
        })
    }

    /// Reads the chunk at an offset.
    pub(super) fn read(stream: &mut Stream, file_len: u64, at: u64) -> Result<Self, String> {
        let mut chunk = Self::default();
        let mut position = at;
        let mut header = Vec::new();
        let mut pieces = Vec::new();
        read(
            stream,
            file_len,
            &mut position,
            CHUNK_HEADER,
            &mut header,
            &mut pieces,
        )?;
        let word = |number: usize| {
            let word = header
                .get(8 * number..)
                .and_then(|rest| rest.first_chunk::<8>());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        if word(0) != hash(&header[8..]) {
            return Err("there is no chunk here, or its header is damaged".to_owned());
        }
        let (size, count, decoded) = (word(1), word(3) >> 8, word(4));
        let most = size.saturating_mul(CHUNK_RATIO);
        let most = most.clamp(CHUNK_BYTES, MAX_CHUNK_BYTES);
        if size > file_len || count > file_len || decoded > most {
            return Err(format!(
                "its {size} bytes with {count} records of {decoded} bytes are more than the file can have, or than {most}"
            ));
        }
        match header[24] {
            RECORDS => {}
            TRANSPOSED => {
                return Err("its records are transposed, which is not read: write them with `transpose:false`, the default".to_owned());
            }
            kind => {
                return Err(format!(
                    "a chunk of kind {:?} has no records",
                    char::from(kind)
                ));
            }
        }
        pieces.clear();
        let mut data = Vec::new();
        read(
            stream,
            file_len,
            &mut position,
            size,
            &mut data,
            &mut pieces,
        )?;
        if hash(&data) != word(2) {
            return Err("the hash of its data is another one than its header says".to_owned());
        }
        let mut rest = data.as_slice();
        let (compression, after) = rest.split_first().ok_or("it has no data")?;
        rest = after;
        let compression = Compression::of(*compression)?;
        let sizes_len = varint::read(&mut rest).and_then(|len| usize::try_from(len).ok());
        let split = sizes_len.and_then(|len| rest.split_at_checked(len));
        let (sizes, values) = split.ok_or("the sizes of its records are cut short")?;
        let sizes = compression.expand(sizes, count.saturating_mul(10))?;
        let mut start = 0;
        if compression == Compression::None {
            start = data.len() - values.len();
            chunk.pieces = pieces;
        }
        let values_len = match compression {
            Compression::None => values.len(),
            _ => {
                let expanded = compression.expand(values, decoded)?;
                data = expanded;
                data.len()
            }
        };
        let mut rest = sizes.as_slice();
        let mut end = start;
        for _ in 0..count {
            let size = varint::read(&mut rest).and_then(|size| usize::try_from(size).ok());
            let next = size.and_then(|size| end.checked_add(size));
            let next = next.filter(|next| *next <= start + values_len);
            let next = next.ok_or("the sizes of its records are damaged")?;
            chunk.records.push(end..next);
            end = next;
        }
        if !rest.is_empty() || end != start + values_len {
            return Err("the sizes of its records are not those of its data".to_owned());
        }
        chunk.data = data;
        Ok(chunk)
    }
}

/// Reads `len` bytes and skips the headers of blocks between them.
fn read(
    stream: &mut Stream,
    file_len: u64,
    position: &mut u64,
    len: u64,
    out: &mut Vec<u8>,
    pieces: &mut Vec<Piece>,
) -> Result<(), String> {
    let mut left = len;
    while left > 0 {
        if position.is_multiple_of(BLOCK) {
            *position += BLOCK_HEADER;
        }
        let there = (BLOCK - *position % BLOCK).min(left).min(STEP_BYTES);
        if position.checked_add(there).is_none_or(|end| end > file_len) {
            return Err("it is cut short".to_owned());
        }
        let start = out.len();
        out.resize(start + there as usize, 0);
        read_exact(stream, *position, &mut out[start..]).map_err(|error| error.to_string())?;
        pieces.push(Piece {
            data: start..out.len(),
            offset: *position,
        });
        *position += there;
        left -= there;
    }
    Ok(())
}

/// Returns the compression of the chunk at an offset; reads only its beginning.
pub(super) fn compression(
    stream: &mut Stream,
    file_len: u64,
    at: u64,
) -> Result<Compression, String> {
    let (mut position, mut head) = (at, Vec::new());
    read(
        stream,
        file_len,
        &mut position,
        CHUNK_HEADER + 1,
        &mut head,
        &mut Vec::new(),
    )?;
    match head.last() {
        Some(byte) => Compression::of(*byte),
        None => Err("it is cut short".to_owned()),
    }
}
