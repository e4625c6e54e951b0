//! Chunks of LitData: a count, offsets and items, which may be compressed as a file, in frames or one by one.

use super::index::{ChunkInfo, CompressionUnit};
use crate::archive::{Archive, ArchiveFile, ArchiveKind, FileVersion, ReadAt, Stream};
use crate::error::{Error, Result};
use crate::records::samples::{INDEX, check_offsets, read_offsets, read_sample};
use forebay_shard::MAX_RECORD_BYTES;
use std::io::Read;

/// Magic bytes of a chunk with frames.
const FRAMES_MAGIC: &[u8; 8] = b"LDFZ01\0\0";
const FRAMES_VERSION: u16 = 1;
/// Size of the header before the offsets, and of an entry in the table of frames.
const FRAMES_HEADER_BYTES: usize = 24;
const FRAME_BYTES: usize = 24;
/// Most decompressed bytes of a frame: `FRAME_BYTES_MAX`, or `FRAME_RATIO` times its stored bytes if that is larger.
const FRAME_BYTES_MAX: u64 = MAX_RECORD_BYTES;
const FRAME_RATIO: u64 = 4;
/// Magic bytes at the end of a chunk whose items are Arrow rows.
const ARROW_MAGIC: &[u8; 8] = b"LDARW01\0";

/// Items that are compressed together.
#[derive(Debug)]
struct Frame {
    first: usize,
    items: usize,
    at: u64,
    stored: u32,
    bytes: u32,
}

/// An open chunk with the offsets of its items.
#[derive(Debug)]
pub(super) struct Chunk {
    archive: Archive,
    pub(super) version: FileVersion,
    wrap: CompressionUnit,
    /// The offset of each item, followed by the end of the last one.
    offsets: Vec<u32>,
    frames: Vec<Frame>,
}

impl Chunk {
    /// Opens a chunk and reads its offsets.
    pub(super) fn open(info: &ChunkInfo, wrap: CompressionUnit, archive: Archive) -> Result<Self> {
        let (version, file) = FileVersion::open(&archive)?;
        let (path, bytes) = (version.path.clone(), version.bytes);
        let refused = |what: String| Error::source(&path, what);
        if wrap != CompressionUnit::File && info.bytes != bytes {
            return Err(refused(format!(
                "it has {bytes} bytes, and {INDEX} says {}: it is damaged, or of another dataset",
                info.bytes
            )));
        }
        let mut chunk = Self {
            archive,
            version,
            wrap,
            offsets: Vec::new(),
            frames: Vec::new(),
        };
        let at = |(at, what): (u64, String)| refused(format!("offset {at}: {what}"));
        if wrap == CompressionUnit::Frames {
            (chunk.offsets, chunk.frames) = frames(&file, info).map_err(at)?;
            return Ok(chunk);
        }
        if wrap != CompressionUnit::File && ends_with_arrow(&file) {
            return Err(refused(
                "its items are rows of Arrow, which LitData writes for texts, numbers and byte strings without images or tensors, and which are not read: write the samples of its StreamingDataset with `forebay.Writer`".to_owned(),
            ));
        }
        let mut stream = chunk.stream(file)?;
        chunk.offsets = read_offsets(&mut stream, info.items, info.bytes, bytes).map_err(at)?;
        Ok(chunk)
    }

    fn stream(&self, file: ArchiveFile) -> Result<Stream> {
        let kind = match self.wrap {
            CompressionUnit::File => ArchiveKind::TarZst,
            _ => ArchiveKind::Tar,
        };
        Stream::new(file, kind).map_err(|error| Error::io(&self.version.path, "read", error))
    }

    pub(super) fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns the bytes of all items, according to the offsets.
    pub(super) fn sample_bytes(&self) -> u64 {
        match (self.offsets.first(), self.offsets.last()) {
            (Some(first), Some(last)) => u64::from(last - first),
            _ => 0,
        }
    }

    /// Returns the offset and the length of an item.
    pub(super) fn item(&self, number: usize) -> Option<(u64, usize)> {
        let (start, end) = (*self.offsets.get(number)?, *self.offsets.get(number + 1)?);
        Some((u64::from(start), (end - start) as usize))
    }

    /// Returns a reader of the items.
    pub(super) fn reader(&self) -> Result<ItemReader<'_>> {
        let file = self.version.reopen(&self.archive)?;
        Ok(ItemReader {
            chunk: self,
            stream: self.stream(file.clone())?,
            file,
            frame: None,
            stored: Vec::new(),
            expanded: Vec::new(),
        })
    }
}

fn ends_with_arrow(file: &ArchiveFile) -> bool {
    let mut tail = [0; ARROW_MAGIC.len()];
    let at = file.len().checked_sub(tail.len() as u64);
    at.is_some_and(|at| file.read_exact_at(&mut tail, at).is_ok() && tail == *ARROW_MAGIC)
}

/// Reads the offsets and the frames of a chunk. An error includes the offset in the file.
fn frames(
    file: &ArchiveFile,
    info: &ChunkInfo,
) -> std::result::Result<(Vec<u32>, Vec<Frame>), (u64, String)> {
    let len = file.len();
    let read = |at: u64, out: &mut [u8]| {
        let read = file.read_exact_at(out, at);
        read.map_err(|_| (at, "the chunk is cut short".to_owned()))
    };
    let word = |bytes: &[u8], at: usize| {
        let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        u32::from_le_bytes(word.unwrap_or_default())
    };
    let mut header = [0; FRAMES_HEADER_BYTES];
    read(0, &mut header)?;
    let version = u16::from_le_bytes([header[8], header[9]]);
    if !header.starts_with(FRAMES_MAGIC) || version != FRAMES_VERSION {
        return Err((
            0,
            format!("these are no frames of version {FRAMES_VERSION}"),
        ));
    }
    let (items, count) = (u64::from(word(&header, 12)), u64::from(word(&header, 20)));
    if items != info.items {
        let listed = info.items;
        return Err((12, format!("{items} items, and {INDEX} says {listed}")));
    }
    let offsets_bytes = 4 * (items + 1);
    let table = FRAMES_HEADER_BYTES as u64 + offsets_bytes;
    let data = table + count * FRAME_BYTES as u64;
    // Both tables must be inside the file, so their size is bounded.
    if data > len {
        let what = format!("{items} items in {count} frames do not fit into {len} bytes");
        return Err((12, what));
    }
    let mut bytes = vec![0; offsets_bytes as usize];
    read(FRAMES_HEADER_BYTES as u64, &mut bytes)?;
    let offsets: Vec<u32> = (0..bytes.len())
        .step_by(4)
        .map(|at| word(&bytes, at))
        .collect();
    check_offsets(
        &offsets,
        0..=u64::from(u32::MAX),
        FRAMES_HEADER_BYTES as u64,
    )?;
    bytes.resize(count as usize * FRAME_BYTES, 0);
    read(table, &mut bytes)?;
    let (mut frames, mut next) = (Vec::new(), 0);
    for (number, entry) in bytes.chunks_exact(FRAME_BYTES).enumerate() {
        let place = table + (number * FRAME_BYTES) as u64;
        let frame = Frame {
            first: word(entry, 0) as usize,
            items: word(entry, 4) as usize,
            at: u64::from(word(entry, 8)) | u64::from(word(entry, 12)) << 32,
            stored: word(entry, 16),
            bytes: word(entry, 20),
        };
        let end = frame.first.saturating_add(frame.items);
        let ends = (offsets.get(frame.first), offsets.get(end));
        let is_whole = match ends {
            (Some(start), Some(end)) => end - start == frame.bytes,
            _ => false,
        };
        let is_inside = frame
            .at
            .checked_add(u64::from(frame.stored))
            .is_some_and(|end| frame.at >= data && end <= len);
        if frame.first != next || frame.items == 0 || !is_whole || !is_inside {
            let what = format!(
                "frame {number} does not follow the one before it, or lies outside of the file"
            );
            return Err((place, what));
        }
        let most = (FRAME_RATIO * u64::from(frame.stored)).max(FRAME_BYTES_MAX);
        if u64::from(frame.bytes) > most {
            let what = format!(
                "frame {number} has {} bytes, and at most {most} are read of its {} stored ones: write smaller batches",
                frame.bytes, frame.stored
            );
            return Err((place, what));
        }
        next = end;
        frames.push(frame);
    }
    match next as u64 == items {
        true => Ok((offsets, frames)),
        false => Err((table, format!("the frames have {next} of {items} items"))),
    }
}

/// Reads the items of a chunk.
pub(super) struct ItemReader<'a> {
    chunk: &'a Chunk,
    file: ArchiveFile,
    stream: Stream,
    /// The index of the frame that is decompressed.
    frame: Option<usize>,
    stored: Vec<u8>,
    expanded: Vec<u8>,
}

impl ItemReader<'_> {
    /// Reads an item of the chunk.
    pub(super) fn read(&mut self, number: usize, out: &mut Vec<u8>) -> Result<()> {
        let chunk = self.chunk;
        let (at, len) = chunk.item(number).unwrap_or_default();
        match chunk.wrap {
            CompressionUnit::None | CompressionUnit::File => {
                read_sample(&mut self.stream, at, len, out, &chunk.version.path)
            }
            CompressionUnit::Items => {
                read_sample(
                    &mut self.stream,
                    at,
                    len,
                    &mut self.stored,
                    &chunk.version.path,
                )?;
                let expanded = expand(&self.stored, MAX_RECORD_BYTES, out);
                expanded.map_err(|what| {
                    let what = format!("offset {at}: {what}");
                    Error::record(&chunk.version.path, number as u64, what)
                })
            }
            CompressionUnit::Frames => {
                let found = chunk.frames.partition_point(|frame| frame.first <= number);
                let Some(frame) = found.checked_sub(1).map(|at| &chunk.frames[at]) else {
                    return Err(Error::source(&chunk.version.path, "it has no frames"));
                };
                if self.frame != Some(frame.first) {
                    self.frame = None;
                    self.expand_frame(frame)?;
                    self.frame = Some(frame.first);
                }
                let start = at - chunk.offsets.get(frame.first).copied().map_or(0, u64::from);
                out.clear();
                out.extend_from_slice(&self.expanded[start as usize..start as usize + len]);
                Ok(())
            }
        }
    }

    fn expand_frame(&mut self, frame: &Frame) -> Result<()> {
        let path = &self.chunk.version.path;
        self.stored.resize(frame.stored as usize, 0);
        let read = self.file.read_exact_at(&mut self.stored, frame.at);
        read.map_err(|error| Error::io(path, "read", error))?;
        let refused = |what: String| Error::source(path, format!("offset {}: {what}", frame.at));
        expand(&self.stored, u64::from(frame.bytes), &mut self.expanded).map_err(refused)?;
        match self.expanded.len() == frame.bytes as usize {
            true => Ok(()),
            false => Err(refused(format!(
                "the frame has {} bytes, and its table says {}",
                self.expanded.len(),
                frame.bytes
            ))),
        }
    }
}

/// Decompresses a frame of Zstandard; an error if the result has more than `most` bytes.
fn expand(stored: &[u8], most: u64, out: &mut Vec<u8>) -> std::result::Result<(), String> {
    out.clear();
    let damaged = |error: std::io::Error| format!("its zstd is damaged: {error}");
    let decoder = zstd::stream::read::Decoder::with_buffer(stored).map_err(damaged)?;
    decoder.take(most + 1).read_to_end(out).map_err(damaged)?;
    match out.len() as u64 <= most {
        true => Ok(()),
        false => Err(format!("it has more than {most} bytes")),
    }
}
