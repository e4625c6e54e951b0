//! Writes a mapped shard, in one pass from front to back.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::MIN_EXTENT_BYTES;
use crate::checksum::{Crc32c, crc32c, mask};
use crate::error::{Error, Result};
use crate::frame::{MAX_RECORD_BYTES, TAIL_BYTES, encode_head, too_long};
use crate::index::layout::{Header, SOURCE_VERSION_BIT};
use crate::index::map::{
    BLOCK, COPY, LITERAL, MAX_BLOCK_BYTES, MAX_LITERAL_BYTES, MAX_VERSION_BYTES, PAGE_BYTES,
    SourceBlock, is_name, is_version, push_signed,
};
use crate::index::{Features, FileKind, IndexBuilder, RecordMeta};
use crate::summary::ShardSummary;
use crate::varint;

/// A byte range of a record that is also in the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The byte range in the record.
    pub record: Range<usize>,
    /// The location in the source.
    pub start: ExtentStart,
}

/// The file that contains the records of a mapped shard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceIdentity {
    /// Its path below the location in the manifest.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// Its [`ReadAt::version`](crate::ReadAt::version); a file that replaces the source has another version.
    pub version: Option<String>,
}

impl SourceIdentity {
    /// Creates the identity of a file with a known name and length, and without a version.
    pub fn new(name: impl Into<String>, len: u64) -> Self {
        Self {
            name: name.into(),
            len,
            version: None,
        }
    }

    fn features(&self) -> Features {
        let mut features = Features::default();
        if self.version.is_some() {
            features.incompatible = SOURCE_VERSION_BIT;
        }
        features
    }

    fn check(&self) -> Result<()> {
        let Self { name, version, .. } = self;
        if !is_name(name) {
            return Err(Error::invalid(format!(
                "{name:?} cannot be the name of a source: expected a relative path without .."
            )));
        }
        match version.as_deref().filter(|version| !is_version(version)) {
            None => Ok(()),
            Some(version) => Err(Error::invalid(format!(
                "{version:?} cannot be the version of a source: expected 1 to {MAX_VERSION_BYTES} bytes"
            ))),
        }
    }
}

/// Location of bytes in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentStart {
    /// Directly in the source, at this offset.
    File(u64),
    /// In a compressed block of the source, at this offset of the expanded block.
    Block(SourceBlock, u64),
}

/// Length of the checksum at the start of a page.
const CHECKSUM_BYTES: usize = 4;

/// Bytes of the frames that are not part of a page yet.
enum Pending {
    Literal(Vec<u8>),
    Copy { offset: u64, len: u64 },
}

/// The page that segments are added to, behind room for its checksum.
struct OpenPage {
    bytes: Vec<u8>,
    /// End of the last copy in the page.
    copied: u64,
    /// Number of the last block in the page.
    last_block: u64,
}

impl OpenPage {
    fn is_empty(&self) -> bool {
        self.bytes.len() == CHECKSUM_BYTES
    }
}

/// Writes the records of a mapped shard.
pub struct Writer<W: Write> {
    path: PathBuf,
    writer: W,
    sum: Crc32c,
    source: SourceIdentity,
    page: OpenPage,
    pages: Vec<(u64, u64)>,
    /// Bytes of the frames up to the end of the last segment in a page.
    frames_len: u64,
    pending: Pending,
    blocks: Vec<SourceBlock>,
    numbers: HashMap<SourceBlock, u64>,
    index: IndexBuilder,
    chosen: Vec<Extent>,
}

impl<W: Write> Writer<W> {
    /// Creates a shard of records whose bytes are in the file `source`. `name` is the shard's name
    /// in errors.
    ///
    /// # Errors
    /// If the name of the source is not a relative path without `..`, its version is empty or longer
    /// than 1 KiB, or writing fails.
    pub fn new(writer: W, name: impl AsRef<Path>, source: SourceIdentity) -> Result<Self> {
        source.check()?;
        let header = Header {
            kind: FileKind::Map,
            features: source.features(),
        };
        let mut writer = Self {
            path: name.as_ref().to_owned(),
            writer,
            sum: Crc32c::default(),
            source,
            page: OpenPage {
                bytes: vec![0; CHECKSUM_BYTES],
                copied: 0,
                last_block: 0,
            },
            pages: Vec::new(),
            frames_len: 0,
            pending: Pending::Literal(Vec::new()),
            blocks: Vec::new(),
            numbers: HashMap::new(),
            index: IndexBuilder::new(),
            chosen: Vec::new(),
        };
        writer.put(&header.encode())?;
        Ok(writer)
    }

    /// Writes a record. If extents overlap, the longest one is used. Bytes without an extent are stored
    /// in the shard.
    ///
    /// # Errors
    /// If the record is longer than 256 MiB, its key cannot be indexed, an extent is not within the
    /// record and the source, or writing fails.
    pub fn append(
        &mut self,
        record: &[u8],
        meta: &RecordMeta<'_>,
        extents: &[Extent],
    ) -> Result<()> {
        if record.len() as u64 > MAX_RECORD_BYTES {
            return Err(too_long(record.len() as u64));
        }
        self.choose(record, extents)?;
        self.index.push(record.len() as u64, meta)?;
        self.literal(&encode_head(record.len() as u64))?;
        let mut at = 0;
        for extent in std::mem::take(&mut self.chosen) {
            self.literal(&record[at..extent.record.start])?;
            self.copy(&extent)?;
            at = extent.record.end;
        }
        self.literal(&record[at..])?;
        let tail: [u8; TAIL_BYTES] = mask(crc32c(record)).to_le_bytes();
        self.literal(&tail)
    }

    /// Selects extents that do not overlap, in the order of their position in the record.
    fn choose(&mut self, record: &[u8], extents: &[Extent]) -> Result<()> {
        let mut all: Vec<&Extent> = extents
            .iter()
            .filter(|extent| extent.record.len() >= MIN_EXTENT_BYTES)
            .collect();
        all.sort_by_key(|extent| (usize::MAX - extent.record.len(), extent.record.start));
        self.chosen.clear();
        for extent in all {
            let Range { start, end } = extent.record;
            let len = extent.record.len() as u64;
            let fits = match extent.start {
                ExtentStart::File(offset) => offset
                    .checked_add(len)
                    .is_some_and(|end| end <= self.source.len),
                ExtentStart::Block(block, offset) => {
                    let stored = block.offset.checked_add(block.stored_len);
                    let expanded = offset.checked_add(len);
                    stored.is_some_and(|end| end <= self.source.len)
                        && expanded.is_some_and(|end| end <= block.expanded_len)
                        && block.stored_len.max(block.expanded_len) <= MAX_BLOCK_BYTES
                }
            };
            if end > record.len() || !fits {
                return Err(Error::invalid(format!(
                    "bytes {start} to {end} of a record of {} bytes: they are not in the source",
                    record.len()
                )));
            }
            let at = self
                .chosen
                .partition_point(|known| known.record.start < start);
            let is_free = self
                .chosen
                .get(at)
                .is_none_or(|next| next.record.start >= end)
                && at
                    .checked_sub(1)
                    .and_then(|before| self.chosen.get(before))
                    .is_none_or(|before| before.record.end <= start);
            if is_free {
                self.chosen.insert(at, extent.clone());
            }
        }
        Ok(())
    }

    /// Returns the number of records written so far.
    pub fn records(&self) -> u64 {
        self.index.records()
    }

    fn literal(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if !matches!(self.pending, Pending::Literal(_)) {
                self.flush_pending()?;
            }
            let Pending::Literal(pending) = &mut self.pending else {
                return Ok(());
            };
            let (now, later) = bytes.split_at(bytes.len().min(MAX_LITERAL_BYTES - pending.len()));
            pending.extend_from_slice(now);
            bytes = later;
            if pending.len() == MAX_LITERAL_BYTES {
                self.flush_pending()?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, extent: &Extent) -> Result<()> {
        let add = extent.record.len() as u64;
        match extent.start {
            ExtentStart::File(start) => {
                if let Pending::Copy { offset, len } = &mut self.pending
                    && *offset + *len == start
                {
                    *len += add;
                    return Ok(());
                }
                self.flush_pending()?;
                self.pending = Pending::Copy {
                    offset: start,
                    len: add,
                };
            }
            ExtentStart::Block(block, offset) => {
                self.flush_pending()?;
                let next = self.blocks.len() as u64;
                let number = *self.numbers.entry(block).or_insert(next);
                if number == next {
                    self.blocks.push(block);
                }
                self.begin_page();
                varint::put(add << 2 | BLOCK, &mut self.page.bytes);
                push_signed(
                    &mut self.page.bytes,
                    number as i64 - self.page.last_block as i64,
                );
                varint::put(offset, &mut self.page.bytes);
                self.page.last_block = number;
                self.end_segment(add)?;
            }
        }
        Ok(())
    }

    fn flush_pending(&mut self) -> Result<()> {
        let empty = Pending::Literal(Vec::new());
        match std::mem::replace(&mut self.pending, empty) {
            Pending::Literal(bytes) if bytes.is_empty() => Ok(()),
            Pending::Literal(bytes) => {
                self.begin_page();
                varint::put((bytes.len() as u64) << 2 | LITERAL, &mut self.page.bytes);
                self.page.bytes.extend_from_slice(&bytes);
                self.end_segment(bytes.len() as u64)
            }
            Pending::Copy { offset, len } => {
                self.begin_page();
                varint::put(len << 2 | COPY, &mut self.page.bytes);
                push_signed(
                    &mut self.page.bytes,
                    offset.wrapping_sub(self.page.copied) as i64,
                );
                self.page.copied = offset + len;
                self.end_segment(len)
            }
        }
    }

    fn begin_page(&mut self) {
        if self.page.is_empty() {
            self.pages.push((self.frames_len, self.sum.len()));
            (self.page.copied, self.page.last_block) = (0, 0);
        }
    }

    fn end_segment(&mut self, len: u64) -> Result<()> {
        self.frames_len += len;
        match self.page.bytes.len() < PAGE_BYTES {
            true => Ok(()),
            false => self.flush_page(),
        }
    }

    fn flush_page(&mut self) -> Result<()> {
        if self.page.is_empty() {
            return Ok(());
        }
        let mut page = std::mem::take(&mut self.page.bytes);
        let crc = crc32c(&page[CHECKSUM_BYTES..]);
        page[..CHECKSUM_BYTES].copy_from_slice(&crc.to_le_bytes());
        self.put(&page)?;
        page.truncate(CHECKSUM_BYTES);
        self.page.bytes = page;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.update(bytes);
        let written = self.writer.write_all(bytes);
        written.map_err(|error| Error::io(&self.path, "write", error))
    }

    /// Writes keys, index and trailer. Returns the inner writer, flushed, and a summary.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self) -> Result<(W, ShardSummary)> {
        self.flush_pending()?;
        self.flush_page()?;
        let data = self.sum;
        self.pages.push((self.frames_len, data.len()));
        let mut map = Vec::new();
        let source = &self.source;
        map.extend_from_slice(&source.len.to_le_bytes());
        map.extend_from_slice(&(self.pages.len() as u64 - 1).to_le_bytes());
        map.extend_from_slice(&(source.name.len() as u32).to_le_bytes());
        map.extend_from_slice(source.name.as_bytes());
        for (frames, offset) in &self.pages {
            map.extend_from_slice(&frames.to_le_bytes());
            map.extend_from_slice(&offset.to_le_bytes());
        }
        map.extend_from_slice(source.version.as_deref().unwrap_or_default().as_bytes());
        let blocks: Vec<_> = self.blocks.iter().map(SourceBlock::encode).collect();
        let written = self
            .index
            .write_map(source.features(), data, &blocks, &map, &mut self.writer)
            .and_then(|rest| self.writer.flush().map(|()| rest));
        let rest = written.map_err(|error: io::Error| Error::io(&self.path, "write", error))?;
        let mut sum = data;
        sum.combine(rest.value(), rest.len());
        let summary = ShardSummary {
            records: self.index.records(),
            bytes: sum.len(),
            crc32c: sum.value(),
            samples: self.index.samples(),
            record_bytes: self.index.logical_len(),
            index: Some(self.index),
        };
        Ok((self.writer, summary))
    }
}
