//! The pages of a mapped shard, and the part of its index that locates them.

use std::ops::Range;

use super::Index;
use super::layout::{BLOCK_ENTRY_BYTES, PIECE_BYTES, Take};
use crate::checksum::crc32c;
use crate::codec::{self, Codec};
use crate::error::Corruption;
use crate::varint;

/// Size in bytes at which a page is closed. The segment that reaches it is the last one of the page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// Maximum length of the literal of one segment, in bytes.
pub(crate) const MAX_LITERAL_BYTES: usize = 32 << 10;
/// Upper bound of the size of a page: a checksum, the size that closes the page, and the last segment.
const MAX_PAGE_BYTES: u64 = 4 + (PAGE_BYTES + MAX_LITERAL_BYTES + 32) as u64;
/// Upper bound of a block of the source, stored or expanded.
pub(crate) const MAX_BLOCK_BYTES: u64 = 256 << 20;
/// Maximum length of the name of a source, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 4096;

/// Maximum length of the version of a source, in bytes.
pub(crate) const MAX_VERSION_BYTES: usize = 1024;

pub(crate) const LITERAL: u64 = 0;
pub(crate) const COPY: u64 = 1;
pub(crate) const BLOCK: u64 = 2;

/// A compressed part of the source, such as a page of a Parquet file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceBlock {
    /// Offset in the source.
    pub offset: u64,
    /// Compressed size, in bytes.
    pub stored_len: u64,
    /// Decompressed size, in bytes.
    pub expanded_len: u64,
    /// The compression.
    pub codec: Codec,
}

impl SourceBlock {
    pub(crate) fn encode(&self) -> [u8; BLOCK_ENTRY_BYTES as usize] {
        let mut entry = [0; BLOCK_ENTRY_BYTES as usize];
        entry[..8].copy_from_slice(&self.offset.to_le_bytes());
        entry[8..16].copy_from_slice(&self.stored_len.to_le_bytes());
        entry[16..24].copy_from_slice(&self.expanded_len.to_le_bytes());
        entry[24] = self.codec.id();
        entry
    }

    /// Returns the byte range in the source.
    pub(crate) fn stored(&self) -> Range<u64> {
        self.offset..self.offset + self.stored_len
    }
}

/// Locates the pages, and names the source.
#[derive(Debug, Clone)]
pub(crate) struct Map {
    /// Start of each page in the frames, and offset of the page in the file; followed by the
    /// ends of both.
    pages: Vec<(u64, u64)>,
    pub(crate) blocks: Vec<SourceBlock>,
    /// Length of the source in bytes.
    pub(crate) source_len: u64,
    /// Path of the source below the location in the manifest.
    pub(crate) source_name: String,
    /// Version of the source; a file that replaces the source has another version.
    pub(crate) source_version: Option<String>,
}

/// A byte range of the frames, and the location of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Segment {
    /// In the page: their range in the bytes that were read.
    Literal(Range<usize>),
    /// In the source.
    Copy { offset: u64, len: usize },
    /// In a block of the source.
    Block {
        block: usize,
        offset: usize,
        len: usize,
    },
}

impl Segment {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Literal(range) => range.len(),
            Self::Copy { len, .. } | Self::Block { len, .. } => *len,
        }
    }

    /// Removes bytes from the start and from the end.
    pub(crate) fn trim(&mut self, front: usize, back: usize) {
        match self {
            Self::Literal(range) => {
                range.start += front;
                range.end -= back;
            }
            Self::Copy { offset, len } => {
                *offset += front as u64;
                *len -= front + back;
            }
            Self::Block { offset, len, .. } => {
                *offset += front;
                *len -= front + back;
            }
        }
    }
}

impl Map {
    /// Parses the last columns of an index: blocks and, behind the directory of keys, the map.
    pub(crate) fn parse(
        block_entries: &[u8],
        bytes: &[u8],
        at: u64,
        (data_len, frames_len): (u64, u64),
        has_version: bool,
    ) -> Result<Self, Corruption> {
        let short = |what: &str| Index::inconsistent(at, what, "the columns of a map", bytes.len());
        let mut take = Take(bytes);
        if bytes.len() < 20 {
            return Err(short("length of the map"));
        }
        let (source_len, count, name_len) = (take.u64(), take.u64(), take.u32() as usize);
        let name = take.0.split_at_checked(name_len);
        let (name, rest) = name.ok_or_else(|| short("name of the source"))?;
        let source_name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
        let source_name = source_name.ok_or_else(|| {
            let found = format_args!("\"{}\"", name.escape_ascii());
            Index::inconsistent(at, "name of the source", "a path without ..", found)
        })?;
        let entries = count.checked_add(1).and_then(|count| count.checked_mul(16));
        let entries = entries.and_then(|len| usize::try_from(len).ok());
        let cut = entries.and_then(|len| rest.split_at_checked(len));
        let is_all = |cut: &(&[u8], &[u8])| has_version || cut.1.is_empty();
        let cut = cut.filter(is_all);
        let (rest, version) = cut.ok_or_else(|| short("pages of the map"))?;
        let source_version = match has_version {
            false => None,
            true => {
                let text = std::str::from_utf8(version).ok().filter(|v| is_version(v));
                let text = text.ok_or_else(|| {
                    let expected = format_args!("1 to {MAX_VERSION_BYTES} bytes of UTF-8");
                    let found = format_args!("{} bytes", version.len());
                    Index::inconsistent(at, "version of the source", expected, found)
                })?;
                Some(text.to_owned())
            }
        };
        let pages: Vec<(u64, u64)> = rest
            .chunks_exact(16)
            .map(|entry| (Take(entry).u64(), Take(&entry[8..]).u64()))
            .collect();
        let ascends = pages.windows(2).all(|pair| {
            let size = pair[1].1.saturating_sub(pair[0].1);
            pair[0].0 < pair[1].0 && (5..=MAX_PAGE_BYTES).contains(&size)
        });
        let ends = (pages.first().copied(), pages.last().copied());
        let expected = (Some((0, PIECE_BYTES as u64)), Some((frames_len, data_len)));
        if !ascends || ends != expected {
            let found = format_args!("{ends:?}");
            return Err(Index::inconsistent(
                at,
                "pages of the map",
                format_args!("{expected:?}"),
                found,
            ));
        }
        let blocks = block_entries.chunks_exact(BLOCK_ENTRY_BYTES as usize);
        Ok(Self {
            pages,
            blocks: blocks
                .map(|entry| block(entry, at, source_len))
                .collect::<Result<_, _>>()?,
            source_len,
            source_name: source_name.to_owned(),
            source_version,
        })
    }

    /// Returns the pages of a byte range of the frames: their numbers, and their byte range in
    /// the file.
    pub(crate) fn pages(&self, frames: &Range<u64>) -> (Range<usize>, Range<u64>) {
        let first = self.pages.partition_point(|page| page.0 <= frames.start);
        let end = self.pages.partition_point(|page| page.0 < frames.end);
        let first = first.saturating_sub(1);
        let offset = |page: usize| self.pages.get(page).map_or(0, |page| page.1);
        (first..end, offset(first)..offset(end))
    }

    /// Returns the segments of a byte range of the frames. `bytes` holds the pages of the range.
    pub(crate) fn segments(
        &self,
        frames: &Range<u64>,
        pages: Range<usize>,
        bytes: &[u8],
    ) -> Result<Vec<Segment>, Corruption> {
        let mut segments = Vec::new();
        let base = self.pages.get(pages.start).map_or(0, |page| page.1);
        for pair in self
            .pages
            .get(pages.start..pages.end + 1)
            .unwrap_or_default()
            .windows(2)
        {
            let (mut at, offset) = pair[0];
            let range = (offset - base) as usize..(pair[1].1 - base) as usize;
            let page = Page::check(bytes, range, offset)?;
            for segment in page.segments(self)? {
                let mut segment = segment;
                let end = at + segment.len() as u64;
                if at < frames.end && end > frames.start {
                    let front = frames.start.saturating_sub(at) as usize;
                    let back = end.saturating_sub(frames.end) as usize;
                    segment.trim(front, back);
                    segments.push(segment);
                }
                at = end;
            }
            if at != pair[1].0 {
                return Err(Corruption::new(
                    offset,
                    "end of a page of the map",
                    pair[1].0,
                    at,
                ));
            }
        }
        Ok(segments)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.pages.capacity() * 16 + self.blocks.capacity() * std::mem::size_of::<SourceBlock>()
    }
}

/// A page whose checksum was verified.
struct Page<'a> {
    bytes: &'a [u8],
    /// Position of the first segment in the bytes that were read.
    start: usize,
    /// Offset of the page in the file.
    offset: u64,
}

impl<'a> Page<'a> {
    fn check(all: &'a [u8], range: Range<usize>, offset: u64) -> Result<Self, Corruption> {
        let start = range.start + 4;
        let page = all.get(range).unwrap_or_default();
        let Some((stored, bytes)) = page.split_first_chunk::<4>() else {
            return Err(Corruption::new(
                offset,
                "page of the map",
                "4 bytes or more",
                page.len(),
            ));
        };
        let (stored, found) = (u32::from_le_bytes(*stored), crc32c(bytes));
        if stored != found {
            return Err(Corruption::checksum(
                offset,
                "crc32c of a page of the map",
                stored,
                found,
            ));
        }
        Ok(Self {
            bytes,
            start,
            offset,
        })
    }

    fn segments(&self, map: &Map) -> Result<Vec<Segment>, Corruption> {
        let mut segments = Vec::new();
        let mut rest = self.bytes;
        let (mut copied, mut last_block) = (0u64, 0u64);
        while !rest.is_empty() {
            let wrong = |what: &str| {
                Corruption::new(
                    self.offset,
                    "page of the map",
                    "segments within the source",
                    what,
                )
            };
            let head =
                varint::read(&mut rest).ok_or_else(|| wrong("a number that is cut short"))?;
            let len = usize::try_from(head >> 2).ok().filter(|len| *len > 0);
            let len = len.ok_or_else(|| wrong("an empty segment"))?;
            let segment = match head & 3 {
                LITERAL => {
                    let (_, after) = rest
                        .split_at_checked(len)
                        .ok_or_else(|| wrong("a literal that is cut short"))?;
                    let start = self.start + self.bytes.len() - rest.len();
                    rest = after;
                    Segment::Literal(start..start + len)
                }
                COPY => {
                    let step = signed(&mut rest).ok_or_else(|| wrong("no offset"))?;
                    let offset = copied.checked_add_signed(step);
                    let end = offset.and_then(|offset| offset.checked_add(len as u64));
                    match (offset, end.filter(|end| *end <= map.source_len)) {
                        (Some(offset), Some(end)) => {
                            copied = end;
                            Segment::Copy { offset, len }
                        }
                        _ => return Err(wrong("bytes beyond its end")),
                    }
                }
                BLOCK => {
                    let step = signed(&mut rest).ok_or_else(|| wrong("no block"))?;
                    let number = last_block.checked_add_signed(step);
                    let offset = varint::read(&mut rest).ok_or_else(|| wrong("no offset"))?;
                    let number = number.ok_or_else(|| wrong("a block before the first"))?;
                    last_block = number;
                    let known = usize::try_from(number).ok();
                    let block = known.and_then(|number| map.blocks.get(number));
                    let end = offset.checked_add(len as u64);
                    let fits = block
                        .zip(end)
                        .is_some_and(|(block, end)| end <= block.expanded_len);
                    match (known, fits) {
                        (Some(block), true) => Segment::Block {
                            block,
                            offset: offset as usize,
                            len,
                        },
                        _ => return Err(wrong("bytes beyond a block")),
                    }
                }
                _ => return Err(wrong("a segment of an unknown kind")),
            };
            segments.push(segment);
        }
        Ok(segments)
    }
}

fn block(entry: &[u8], at: u64, source_len: u64) -> Result<SourceBlock, Corruption> {
    let mut take = Take(entry);
    let (offset, stored_len, expanded_len) = (take.u64(), take.u64(), take.u64());
    let (code, reserved) = (take.u32(), take.u32());
    let codec = Codec::from_id(code).filter(|_| reserved == 0);
    let codec = codec.ok_or_else(|| {
        Index::inconsistent(
            at,
            "codec of a block of the source",
            codec::known_ids(),
            code,
        )
    })?;
    let end = offset.checked_add(stored_len);
    let fits = end.is_some_and(|end| end <= source_len);
    if !fits || stored_len.max(expanded_len) > MAX_BLOCK_BYTES {
        let expected = format_args!("up to {MAX_BLOCK_BYTES} of its {source_len} bytes");
        let found = format_args!("{stored_len} bytes at {offset} for {expanded_len}");
        return Err(Index::inconsistent(
            at,
            "block of the source",
            expected,
            found,
        ));
    }
    Ok(SourceBlock {
        offset,
        stored_len,
        expanded_len,
        codec,
    })
}

/// Returns whether a name is a relative path that stays below its root.
pub(crate) fn is_name(name: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..");
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !name.contains(|c: char| c == '\\' || c.is_control())
        && name.split('/').all(is_part)
}

/// Returns whether a text is a valid version of a source.
pub(crate) fn is_version(version: &str) -> bool {
    (1..=MAX_VERSION_BYTES).contains(&version.len())
}

pub(crate) fn push_signed(out: &mut Vec<u8>, number: i64) {
    varint::put(((number << 1) ^ (number >> 63)) as u64, out);
}

fn signed(rest: &mut &[u8]) -> Option<i64> {
    let number = varint::read(rest)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}
