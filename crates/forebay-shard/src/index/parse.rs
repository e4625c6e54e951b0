//! Parses the index at the end of a file, without IO.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::column::{Labels, Offsets};
use super::keys::pages;
use super::layout::{
    BLOCK_ALIGN, BLOCK_ENTRY_BYTES, FileKind, IndexHead, PIECE_BYTES, SOURCE_VERSION_BIT, Take,
    Trailer,
};
use super::{Block, Index, KeyPlace, Map};
use crate::checksum::{Crc32c, crc32c};
use crate::codec::{self, Codec};
use crate::error::{Corruption, Error, Result};
use crate::frame::OVERHEAD_BYTES;

/// The result of parsing the end of a file.
#[derive(Debug)]
pub enum Found {
    /// The index.
    Index(Box<Index>),
    /// The index is longer: call again with the bytes from here to the end.
    Need(Range<u64>),
}

/// Parses the index at the end of a file of `file_len` bytes. `suffix` is any number of its last
/// bytes; [`SUFFIX_BYTES`](crate::storage::SUFFIX_BYTES) are a good start.
///
/// # Errors
/// [`Error::Corrupt`] if the bytes are damaged, [`Error::Version`] and [`Error::Feature`] if a
/// newer release wrote them.
pub fn parse_suffix(
    path: &Path,
    kind: FileKind,
    file_len: u64,
    max_record: u64,
    suffix: &[u8],
) -> Result<Found> {
    let least = 3 * PIECE_BYTES as u64;
    if file_len < least {
        let short = Corruption::new(
            0,
            format!("file length of an {}", file_kind(kind)),
            format_args!("{least} bytes or more"),
            file_len,
        );
        return Err(short.shard(path).into());
    }
    let Some((rest, trailer)) = suffix.split_last_chunk::<PIECE_BYTES>() else {
        return Ok(Found::Need(file_len - least..file_len));
    };
    let trailer = Trailer::decode(trailer, kind, file_len, path)?;
    let (Ok(len), true) = (
        usize::try_from(trailer.index_len),
        suffix.len() as u64 <= file_len,
    ) else {
        return Err(Error::invalid("a suffix longer than its file"));
    };
    let Some(start) = rest.len().checked_sub(len) else {
        return Ok(Found::Need(trailer.index_offset..file_len));
    };
    let bytes = &rest[start..];
    let index = parse(bytes, &trailer, max_record).map_err(|corruption| corruption.shard(path))?;
    Ok(Found::Index(Box::new(index)))
}

fn file_kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Shard => "indexed shard (.fbs)",
        FileKind::Sidecar => "index (.fbi)",
        FileKind::Map => "mapped shard (.fbm)",
    }
}

/// Takes columns from the front of the index.
struct Columns<'a> {
    rest: &'a [u8],
    offset: u64,
}

impl<'a> Columns<'a> {
    fn take(&mut self, count: u64, width: u64, what: &str) -> Result<&'a [u8], Corruption> {
        let len = count
            .checked_mul(width)
            .and_then(|len| usize::try_from(len).ok());
        let cut = len.and_then(|len| self.rest.split_at_checked(len));
        let (column, rest) = cut.ok_or_else(|| {
            Index::inconsistent(
                self.offset,
                what,
                format_args!("{count} entries of {width} bytes"),
                format_args!("{} bytes", self.rest.len()),
            )
        })?;
        self.rest = rest;
        self.offset += column.len() as u64;
        Ok(column)
    }
}

fn u64s(column: &[u8]) -> impl Iterator<Item = u64> + Clone {
    column.chunks_exact(8).map(|entry| Take(entry).u64())
}

fn parse(bytes: &[u8], trailer: &Trailer, max_record: u64) -> Result<Index, Corruption> {
    let at = trailer.index_offset;
    let found = crc32c(bytes);
    if found != trailer.index_crc {
        return Err(Corruption::checksum(
            at,
            "index crc32c",
            trailer.index_crc,
            found,
        ));
    }
    let Some((head, rest)) = bytes.split_first_chunk::<PIECE_BYTES>() else {
        return Err(Index::inconsistent(
            at,
            "length",
            "64 bytes or more",
            bytes.len(),
        ));
    };
    let head = IndexHead::decode(head, trailer.kind, at)?;
    check_place(&head, trailer)?;

    let mut columns = Columns {
        rest,
        offset: at + PIECE_BYTES as u64,
    };
    let records = head.records;
    let offsets = columns.take(records.saturating_add(1), 8, "offsets")?;
    let labels = columns.take(records, 8, "labels")?;
    let block_entries = columns.take(head.blocks, BLOCK_ENTRY_BYTES, "blocks")?;
    let directory = columns.take(
        if head.keys { pages(records) + 1 } else { 0 },
        8,
        "key page directory",
    )?;
    let mut map_at = (columns.offset, &[][..]);
    if head.kind == FileKind::Map {
        map_at.1 = std::mem::take(&mut columns.rest);
    }
    // Compatible features of later releases may append data.
    if !columns.rest.is_empty() && trailer.features.compatible == 0 {
        let left = columns.rest.len();
        return Err(Index::inconsistent(
            columns.offset,
            "bytes after it",
            0,
            left,
        ));
    }

    let offsets_at = at + PIECE_BYTES as u64;
    check_offsets(u64s(offsets), offsets_at, max_record)?;
    let offsets = Offsets::new(offsets.len() / 8, u64s(offsets));
    let logical_len = offsets.start(records).unwrap_or(0);
    let mut map = None;
    let blocks = if head.kind == FileKind::Shard {
        parse_blocks(block_entries, &head, &offsets, at)?
    } else if head.kind == FileKind::Map {
        let (at, bytes) = map_at;
        let lengths = (head.data_len, logical_len);
        let has_version = trailer.features.incompatible & SOURCE_VERSION_BIT != 0;
        let parsed = Map::parse(block_entries, bytes, at, lengths, has_version)?;
        map = Some(Arc::new(parsed));
        Vec::new()
    } else {
        check_sidecar(&head, at, offsets_at, logical_len)?;
        Vec::new()
    };
    let keys = head.keys.then(|| KeyPlace {
        offset: head.keys_offset,
        directory: u64s(directory).collect(),
    });
    if let Some(keys) = &keys {
        check_directory(&keys.directory, &head, at)?;
    } else if head.keys_len != 0 {
        return Err(Index::inconsistent(at, "bytes of keys", 0, head.keys_len));
    }
    let labels = labels.chunks_exact(8).map(|entry| Take(entry).u64() as i64);
    Ok(Index {
        kind: head.kind,
        features: trailer.features,
        labels: Labels::new(records as usize, labels),
        offsets,
        blocks,
        keys,
        data_len: head.data_len,
        data_crc: Some(head.data_crc),
        shard_crc: Some(shard_crc(&head, trailer)),
        map,
    })
}

/// Checks the properties of the TFRecord file that the head of its index contains.
fn check_sidecar(
    head: &IndexHead,
    at: u64,
    offsets_at: u64,
    logical_len: u64,
) -> Result<(), Corruption> {
    if head.blocks != 0 {
        let what = "blocks of a TFRecord file";
        return Err(Index::inconsistent(at, what, 0, head.blocks));
    }
    if logical_len != head.data_len {
        let what = "end of the last record";
        return Err(Index::inconsistent(
            offsets_at,
            what,
            head.data_len,
            logical_len,
        ));
    }
    Ok(())
}

/// Combines the checksum of the shard's file from those of its parts.
fn shard_crc(head: &IndexHead, trailer: &Trailer) -> u32 {
    if head.kind == FileKind::Sidecar {
        return head.data_crc;
    }
    let mut sum = Crc32c::default();
    sum.combine(head.data_crc, head.data_len);
    sum.combine(head.keys_crc, head.keys_len);
    sum.combine(trailer.index_crc, trailer.index_len);
    sum.update(&trailer.encode());
    sum.value()
}

/// Checks that data, keys, index and trailer follow each other without a gap.
fn check_place(head: &IndexHead, trailer: &Trailer) -> Result<(), Corruption> {
    let keys_offset = match head.kind {
        FileKind::Shard | FileKind::Map => head.data_len,
        FileKind::Sidecar => PIECE_BYTES as u64,
    };
    if head.keys_offset != keys_offset || keys_offset < PIECE_BYTES as u64 {
        let at = trailer.index_offset;
        return Err(Index::inconsistent(
            at,
            "place of the keys",
            keys_offset,
            head.keys_offset,
        ));
    }
    if head.keys_offset.checked_add(head.keys_len) != Some(trailer.index_offset) {
        let end = format_args!("byte {} + {}", head.keys_offset, head.keys_len);
        let at = trailer.index_offset;
        return Err(Index::inconsistent(at, "end of the keys", at, end));
    }
    Ok(())
}

fn check_offsets(
    mut offsets: impl Iterator<Item = u64>,
    at: u64,
    max_record: u64,
) -> Result<(), Corruption> {
    let mut last = offsets.next().unwrap_or(0);
    if last != 0 {
        return Err(Index::inconsistent(at, "first offset", 0, last));
    }
    let least = OVERHEAD_BYTES as u64;
    for (record, offset) in offsets.enumerate() {
        let frame = offset.saturating_sub(last);
        if frame < least || frame - least > max_record {
            let what = "length of a record with its frame";
            let range = format_args!("{least} to {}", max_record.saturating_add(least));
            let place = at + 8 * (record as u64 + 1);
            let found = format_args!("bytes {last} to {offset}");
            return Err(Index::inconsistent(place, what, range, found).record(record as u64));
        }
        last = offset;
    }
    Ok(())
}

fn parse_blocks(
    entries: &[u8],
    head: &IndexHead,
    offsets: &Offsets,
    at: u64,
) -> Result<Vec<Block>, Corruption> {
    let table = at + PIECE_BYTES as u64 + (2 * head.records + 1) * 8;
    let mut blocks = Vec::with_capacity(entries.len() / BLOCK_ENTRY_BYTES as usize);
    let mut end = PIECE_BYTES as u64;
    let mut entries = entries.chunks_exact(BLOCK_ENTRY_BYTES as usize).peekable();
    let mut first = 0;
    while let Some(entry) = entries.next() {
        let place = table + blocks.len() as u64 * BLOCK_ENTRY_BYTES;
        let wrong = |what: &str, expected: u64, found: u64| {
            Err(Index::inconsistent(place, what, expected, found))
        };
        let mut take = Take(entry);
        let (offset, stored_len, first_record) = (take.u64(), take.u64(), take.u64());
        let crc = take.u32();
        let code = take.u32();
        let codec = Codec::from_id(code)
            .ok_or_else(|| Index::inconsistent(place + 28, "codec", codec::known_ids(), code))?;
        let next = entries
            .peek()
            .map_or(head.records, |next| Take(&next[16..]).u64());
        if first_record != first {
            return wrong("first record of a block", first, first_record);
        }
        let (Some(from), Some(to)) = (offsets.start(first), offsets.start(next)) else {
            return wrong("records before the next block", head.records, next);
        };
        if next <= first || next - first > u64::from(u32::MAX) {
            return wrong("first record of the next block", first + 1, next);
        }
        let raw_len = to.saturating_sub(from);
        let is_raw = codec == Codec::NONE;
        let start = if is_raw {
            end.next_multiple_of(BLOCK_ALIGN)
        } else {
            end
        };
        if offset != start {
            return wrong("start of a block", start, offset);
        }
        let fits = if is_raw {
            stored_len == raw_len
        } else {
            stored_len < raw_len
        };
        if !fits {
            return wrong("stored length of a block", raw_len, stored_len);
        }
        let data_end = (start + PIECE_BYTES as u64).checked_add(stored_len);
        match data_end.filter(|&end| end <= head.data_len) {
            Some(data_end) => end = data_end,
            None => return wrong("end of the data", head.data_len, offset),
        }
        blocks.push(Block {
            offset,
            stored_len,
            first_record,
            crc,
            codec,
        });
        first = next;
    }
    if first != head.records || end != head.data_len {
        let expected = format_args!("{} records up to byte {}", head.records, head.data_len);
        let found = format_args!("{first} up to {end}");
        return Err(Index::inconsistent(
            table,
            "what the blocks hold",
            expected,
            found,
        ));
    }
    Ok(blocks)
}

fn check_directory(directory: &[u64], head: &IndexHead, at: u64) -> Result<(), Corruption> {
    let ascending = directory.windows(2).all(|pair| pair[0] < pair[1]);
    let ends = (directory.first().copied(), directory.last().copied());
    if !ascending || ends != (Some(0), Some(head.keys_len)) {
        let expected = format_args!("pages from 0 up to {}", head.keys_len);
        return Err(Index::inconsistent(
            at,
            "key pages",
            expected,
            format_args!("{ends:?}"),
        ));
    }
    Ok(())
}
