//! Presents the frames of a mapped shard as one file, assembled from its pages and the source.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::Source;
use crate::error::{Corruption, Error, Result};
use crate::index::{Map, Segment};
use crate::storage::ReadAt;

/// Maximum gap in bytes between two parts of the source up to which one read covers both and the gap.
const GAP_BYTES: u64 = 16 << 10;
/// Maximum number of buffers that one read fills: systems allow 1024.
const MAX_PARTS: usize = 512;
/// Maximum number of expanded blocks that are kept for later reads.
const KEPT_BLOCKS: usize = 4;
const KEPT_BLOCK_BYTES: usize = 64 << 20;

/// The source of one mapped shard.
#[derive(Debug)]
pub(crate) struct SourceFile {
    source: Source,
    path: PathBuf,
    map: Arc<Map>,
    /// The most recently expanded blocks, the latest at the back.
    expanded: Mutex<VecDeque<(usize, Arc<Vec<u8>>)>>,
}

impl SourceFile {
    /// Opens the source that a map names, and checks its length.
    pub(crate) fn open(source: Source, map: Arc<Map>) -> Result<Self> {
        let path = source.root.join(&map.source_name);
        let file = Self {
            source,
            path,
            map,
            expanded: Mutex::default(),
        };
        let opened = file.file();
        opened.map_err(|error| Error::io(&file.path, "open", error))?;
        Ok(file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn storage(&self) -> &Arc<dyn crate::storage::Storage> {
        &self.source.storage
    }

    fn file(&self) -> io::Result<Arc<dyn ReadAt>> {
        let file = self.source.storage.open(&self.path)?;
        let (expected, found) = (self.map.source_len, file.len());
        if found != expected {
            let what = format!(
                "it has {found} bytes, and had {expected} when it was indexed: index it again"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        // If the storage returns no version, there is nothing to compare.
        if let (Some(expected), Some(found)) = (self.map.source_version.as_deref(), file.version())
            && expected != found
        {
            let what = format!(
                "it was replaced after it was indexed (version {expected:?} became {found:?}): index it again"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(file)
    }

    /// Returns an expanded block.
    fn block(&self, file: &dyn ReadAt, number: usize) -> io::Result<Arc<Vec<u8>>> {
        let kept = || self.expanded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, block)) = kept().iter().find(|(known, _)| *known == number) {
            return Ok(Arc::clone(block));
        }
        let block = self.map.blocks.get(number);
        let block = block.ok_or_else(|| damage("a block that the map does not have"))?;
        let mut stored = vec![0; block.stored_len as usize];
        file.read_exact_at(&mut stored, block.offset)?;
        let mut expanded = Vec::new();
        block
            .codec
            .decompress(&stored, block.expanded_len as usize, &mut expanded)
            .map_err(|error| {
                damage(format!(
                    "{}: the {} block at offset {} cannot be expanded: {error}",
                    self.path.display(),
                    block.codec,
                    block.offset
                ))
            })?;
        let expanded = Arc::new(expanded);
        let mut kept = kept();
        kept.push_back((number, Arc::clone(&expanded)));
        let bytes = |kept: &VecDeque<(usize, Arc<Vec<u8>>)>| -> usize {
            kept.iter().map(|(_, block)| block.len()).sum()
        };
        while kept.len() > KEPT_BLOCKS || bytes(&kept) > KEPT_BLOCK_BYTES {
            kept.pop_front();
        }
        Ok(expanded)
    }
}

fn damage(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// The frames of a mapped shard.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// The shard's file.
    pub(crate) shard: Arc<dyn ReadAt>,
    pub(crate) source: Arc<SourceFile>,
    /// Length of all frames.
    pub(crate) len: u64,
}

/// The segments of a range, and the pages that contain its literals.
struct Plan {
    segments: Vec<Segment>,
    pages: Vec<u8>,
}

/// Consecutive copies that are read with one call.
struct Run<'d> {
    start: u64,
    end: u64,
    parts: Vec<IoSliceMut<'d>>,
}

impl Run<'_> {
    fn read(mut self, file: &dyn ReadAt) -> io::Result<()> {
        let wanted = self.end - self.start;
        let read = file.read_parts_at(&mut self.parts, self.start)?;
        match read as u64 == wanted {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl MappedFile {
    fn plan(&self, frames: &Range<u64>) -> io::Result<Plan> {
        let (numbers, place) = self.source.map.pages(frames);
        let mut pages = vec![0; (place.end - place.start) as usize];
        self.shard.read_exact_at(&mut pages, place.start)?;
        let segments = self.source.map.segments(frames, numbers, &pages);
        let segments = segments.map_err(|found| damage(text_of(&found)))?;
        Ok(Plan { segments, pages })
    }

    /// Returns for each segment the gap before it, if it is read together with the preceding copy.
    fn gaps(&self, segments: &[Segment]) -> Vec<Option<u64>> {
        let most = self.source.source.storage.read_profile().gap_bytes;
        let most = most.max(GAP_BYTES);
        let mut run: Option<(u64, u64, usize)> = None;
        let joined = segments.iter().map(|segment| {
            let Segment::Copy { offset, len } = segment else {
                return None;
            };
            let end = offset + *len as u64;
            let gap = run.and_then(|(end, useful, parts)| {
                let gap = offset.checked_sub(end)?;
                // The gaps of a read are never longer than its requested bytes (plus a constant).
                (gap <= most.min(useful + GAP_BYTES) && parts < MAX_PARTS).then_some(gap)
            });
            let before = run
                .filter(|_| gap.is_some())
                .map_or((0, 0), |run| (run.1, run.2));
            run = Some((end, before.0 + *len as u64, before.1 + 4));
            gap
        });
        joined.collect()
    }

    /// Returns the offset in the source of the first byte of `frames` that is stored there.
    pub(crate) fn source_offset(&self, frames: Range<u64>) -> Option<u64> {
        let plan = self.plan(&frames).ok()?;
        plan.segments.iter().find_map(|segment| match segment {
            Segment::Literal(_) => None,
            Segment::Copy { offset, .. } => Some(*offset),
            Segment::Block { block, .. } => Some(self.source.map.blocks.get(*block)?.offset),
        })
    }

    fn announce(&self, frames: &Range<u64>, each: impl Fn(&dyn ReadAt, Range<u64>)) {
        let Some((plan, file)) = self.plan(frames).ok().zip(self.source.file().ok()) else {
            return;
        };
        let gaps = self.gaps(&plan.segments);
        let mut open: Option<Range<u64>> = None;
        for (segment, gap) in plan.segments.iter().zip(gaps) {
            let range = match segment {
                Segment::Literal(_) => continue,
                Segment::Copy { offset, len } => *offset..*offset + *len as u64,
                Segment::Block { block, .. } => match self.source.map.blocks.get(*block) {
                    Some(block) => block.stored(),
                    None => continue,
                },
            };
            open = match open {
                Some(before) if gap.is_some() || before == range => Some(before.start..range.end),
                Some(before) => {
                    each(&*file, before);
                    Some(range)
                }
                None => Some(range),
            };
        }
        if let Some(last) = open {
            each(&*file, last);
        }
    }
}

/// Describes damage of the shard. The caller adds the path.
fn text_of(found: &Corruption) -> String {
    format!(
        "offset {}: {}: expected {}, found {}",
        found.offset, found.what, found.expected, found.found
    )
}

/// A list of buffers that is filled from front to back.
struct Buffers<'d, I: Iterator<Item = &'d mut [u8]>> {
    current: &'d mut [u8],
    rest: I,
}

impl<'d, I: Iterator<Item = &'d mut [u8]>> Buffers<'d, I> {
    /// Returns the next bytes to fill: `most` of them, or fewer at the end of a buffer.
    fn take(&mut self, most: usize) -> &'d mut [u8] {
        while self.current.is_empty() {
            match self.rest.next() {
                Some(next) => self.current = next,
                None => return &mut [],
            }
        }
        let whole = std::mem::take(&mut self.current);
        let (now, later) = whole.split_at_mut(most.min(whole.len()));
        self.current = later;
        now
    }

    /// Copies `bytes` to the next bytes to fill.
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let to = self.take(bytes.len());
            if to.is_empty() {
                return;
            }
            let (now, later) = bytes.split_at(to.len());
            to.copy_from_slice(now);
            bytes = later;
        }
    }
}

impl ReadAt for MappedFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let wanted = buf.len();
        match self.read_parts_at(&mut [IoSliceMut::new(buf)], offset)? == wanted {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn read_parts_at(&self, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let room: usize = parts.iter().map(|part| part.len()).sum();
        let there = self.len.saturating_sub(offset).min(room as u64);
        if there == 0 {
            return Ok(0);
        }
        let plan = self.plan(&(offset..offset + there))?;
        let gaps = self.gaps(&plan.segments);
        let mut scratch = vec![0; gaps.iter().flatten().sum::<u64>() as usize];
        let mut scratch = &mut scratch[..];
        let mut buffers = Buffers {
            current: &mut [],
            rest: parts.iter_mut().map(|part| &mut **part),
        };
        let file = self.source.file()?;
        let mut run: Option<Run<'_>> = None;
        for (segment, gap) in plan.segments.iter().zip(gaps) {
            match segment {
                Segment::Literal(range) => {
                    buffers.put(plan.pages.get(range.clone()).unwrap_or_default());
                }
                Segment::Block { block, offset, len } => {
                    let block = self.source.block(&*file, *block)?;
                    let bytes = block.get(*offset..*offset + *len);
                    buffers.put(bytes.ok_or_else(|| damage("a block is too short"))?);
                }
                Segment::Copy { offset, len } => {
                    let open = match (run.take(), gap) {
                        (Some(mut open), Some(gap)) => {
                            let (skipped, rest) =
                                std::mem::take(&mut scratch).split_at_mut(gap as usize);
                            scratch = rest;
                            if !skipped.is_empty() {
                                open.parts.push(IoSliceMut::new(skipped));
                            }
                            open
                        }
                        (before, _) => {
                            before.map_or(Ok(()), |before| before.read(&*file))?;
                            Run {
                                start: *offset,
                                end: *offset,
                                parts: Vec::new(),
                            }
                        }
                    };
                    let open = run.insert(open);
                    let mut left = *len;
                    while left > 0 {
                        let part = buffers.take(left);
                        if part.is_empty() {
                            break;
                        }
                        left -= part.len();
                        open.parts.push(IoSliceMut::new(part));
                    }
                    open.end = *offset + *len as u64;
                }
            }
        }
        run.map_or(Ok(()), |last| last.read(&*file))?;
        Ok(there as usize)
    }

    fn will_need(&self, bytes: Range<u64>) {
        self.announce(&bytes, |file, range| file.will_need(range));
    }

    fn forget(&self, bytes: Range<u64>) {
        self.announce(&bytes, |file, range| file.forget(range));
    }
}
