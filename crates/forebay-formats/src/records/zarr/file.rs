//! The arrays of a Zarr hierarchy, and their rows, which are assembled from chunks.

use super::metadata::{self, Metadata};
use super::nodes::{Node, Nodes};
use crate::archive::FileVersion;
use crate::error::{Error, Result};
use crate::records::arrays::{ArrayFile, ArrayInfo, Element, RowReader, chunk_limit};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;

/// Names of the metadata of an array in version 2, and of any node in version 3.
pub(super) const ARRAY_2: &str = ".zarray";
pub(super) const NODE_3: &str = "zarr.json";
/// Largest metadata of a node in bytes, and most arrays of a hierarchy.
const MAX_METADATA_BYTES: u64 = 16 << 20;
const MAX_ARRAYS: usize = 4096;
/// Most chunks that one row may cross.
const MAX_CHUNKS_OF_ROW: u64 = 4096;
/// Most bytes of the rows of a missing chunk that are filled at once.
const BATCH_BYTES: u64 = 64 << 20;
/// Number of shards whose indexes are cached.
const SHARDS: usize = 16;

/// A hierarchy of arrays.
#[derive(Debug)]
pub(super) struct ZarrFile {
    nodes: Nodes,
    arrays: Vec<ArrayInfo>,
    /// The key prefix of each array with a trailing slash, and its metadata if it can be read.
    found: Vec<(String, Option<Metadata>)>,
}

impl ZarrFile {
    /// Opens the arrays of a hierarchy. If the hierarchy is a single array, `name` is its name.
    pub(super) fn open(nodes: Nodes, name: &str) -> Result<Self> {
        let mut found: BTreeMap<String, Value> = BTreeMap::new();
        for (file, is_3) in [(ARRAY_2, false), (NODE_3, true)] {
            for key in nodes.keys_of(file) {
                let json = read_json(&nodes, key)?;
                let is_array =
                    !is_3 || json.get("node_type").and_then(Value::as_str) == Some("array");
                let prefix = key.strip_suffix(file).unwrap_or_default();
                if is_array {
                    found.insert(prefix.to_owned(), json);
                }
            }
        }
        if found.len() > MAX_ARRAYS {
            let what = format!("it has more than {MAX_ARRAYS} arrays");
            return Err(Error::source(&nodes.version.path, what));
        }
        let mut all = Self {
            nodes,
            arrays: Vec::new(),
            found: Vec::new(),
        };
        for (prefix, json) in found {
            let name = match prefix.strip_suffix('/') {
                Some(name) => name.to_owned(),
                None => name.to_owned(),
            };
            let shape = metadata::shape_of(&json);
            let read = match json.get("zarr_format").and_then(Value::as_u64) {
                Some(2) => metadata::version_2(json),
                Some(3) => metadata::version_3(json),
                _ => Err("has a version of Zarr that is not read, only 2 and 3".to_owned()),
            };
            let read = read.and_then(|read| check(read, all.chunk_limit()));
            let (element, width, is_big_endian, read) = match read {
                Ok(read) => (
                    read.element.clone(),
                    read.width,
                    read.is_big_endian,
                    Some(read),
                ),
                Err(what) => (Element::Other(what), 0, false, None),
            };
            all.arrays.push(ArrayInfo {
                name,
                element,
                width,
                is_big_endian,
                shape,
            });
            all.found.push((prefix, read));
        }
        Ok(all)
    }
}

/// Refuses arrays whose chunks or rows of chunks take more than `most` bytes, which depends on the size of the hierarchy.
fn check(read: Metadata, most: u64) -> std::result::Result<Metadata, String> {
    if chunks_of_row(&read) > MAX_CHUNKS_OF_ROW {
        return Err(format!(
            "has more than {MAX_CHUNKS_OF_ROW} chunks side by side in a row"
        ));
    }
    let product = |dims: &[u64]| {
        dims.iter()
            .copied()
            .fold(read.width.max(1), u64::saturating_mul)
    };
    let chunk = product(&read.chunk);
    if chunk > most {
        return Err(format!(
            "has chunks of {chunk} bytes, and at most {most} of so few bytes are read"
        ));
    }
    // All chunks of a row are decoded at once.
    let height = read.chunk.first().copied().unwrap_or(1);
    let height = height.min(read.shape.first().copied().unwrap_or(1));
    let rows = product(read.shape.get(1..).unwrap_or_default()).saturating_mul(height);
    if !is_whole(&read) && rows > most {
        return Err(format!(
            "has {rows} bytes in chunks side by side, and at most {most} of so few bytes are read: choose chunks of fewer rows"
        ));
    }
    Ok(read)
}

/// Returns whether chunks contain whole rows in row-major order.
fn is_whole(read: &Metadata) -> bool {
    read.codecs.order.is_none() && read.chunk.iter().skip(1).eq(read.shape.iter().skip(1))
}

fn read_json(nodes: &Nodes, key: &str) -> Result<Value> {
    let read = || -> io::Result<Value> {
        let node = nodes.get(key)?.ok_or(io::ErrorKind::NotFound)?;
        let bytes = node.read(0, node.len(), MAX_METADATA_BYTES)?;
        Ok(forebay_shard::json::from_slice(&bytes)?)
    };
    let what = |error: io::Error| Error::source(&nodes.version.path, format!("{key}: {error}"));
    read().map_err(what)
}

/// Returns the number of chunks in each dimension except the first.
fn grid(read: &Metadata) -> impl Iterator<Item = u64> {
    let dims = read.shape.iter().zip(&read.chunk).skip(1);
    dims.map(|(all, one)| all.div_ceil(*one))
}

fn chunks_of_row(read: &Metadata) -> u64 {
    grid(read).fold(1, u64::saturating_mul)
}

impl ZarrFile {
    fn chunk_limit(&self) -> u64 {
        chunk_limit(self.nodes.version.bytes)
    }
}

impl ArrayFile for ZarrFile {
    fn version(&self) -> &FileVersion {
        &self.nodes.version
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.arrays
    }

    fn rows(&self, array: usize, first: u64) -> Result<Box<dyn RowReader + '_>> {
        let (prefix, read) = &self.found[array];
        let refused = || {
            Error::source(
                &self.nodes.version.path,
                format!("{} cannot be read", self.arrays[array]),
            )
        };
        let chunks = Chunks {
            nodes: &self.nodes,
            prefix,
            read: read.as_ref().ok_or_else(refused)?,
            most: self.chunk_limit(),
            shards: BTreeMap::new(),
        };
        if chunks.read.codecs.is_vlen {
            return Ok(Box::new(Texts {
                chunks,
                next: first,
                chunk: None,
            }));
        }
        let row_bytes = self.arrays[array].row_bytes().unwrap_or(0);
        Ok(Box::new(Rows {
            chunks,
            row_bytes,
            next: first,
            start: 0,
            end: 0,
            buffer: Vec::new(),
        }))
    }
}

/// Reads the chunks of an array.
struct Chunks<'a> {
    nodes: &'a Nodes,
    prefix: &'a str,
    read: &'a Metadata,
    /// Most bytes of a chunk.
    most: u64,
    /// Open shards by key: the value, and the offset and length of each chunk.
    shards: BTreeMap<String, Option<OpenShard<'a>>>,
}

struct OpenShard<'a> {
    node: Node<'a>,
    chunks: Vec<(u64, u64)>,
}

/// Offset and length of a missing chunk in a shard's index.
const NO_CHUNK: u64 = u64::MAX;

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl<'a> Chunks<'a> {
    /// Decodes the chunk at a position in the grid; `None` if the chunk is missing and its elements are the fill value.
    fn get(&mut self, place: &[u64]) -> io::Result<Option<Vec<u8>>> {
        let read = self.read;
        let outer: Vec<u64> = match &read.shard {
            None => place.to_vec(),
            Some(shard) => {
                let dims = place.iter().zip(&read.chunk).zip(&shard.shape);
                dims.map(|((at, one), all)| at / (all / one)).collect()
            }
        };
        let key = format!("{}{}", self.prefix, read.keys.key(&outer));
        let of_key =
            |error: io::Error| io::Error::new(error.kind(), format!("chunk {key:?}: {error}"));
        let bytes = match &read.shard {
            None => match self.nodes.get(&key).map_err(of_key)? {
                Some(node) => node.read(0, node.len(), self.most).map_err(of_key)?,
                None => return Ok(None),
            },
            Some(_) => match self.of_shard(&key, place).map_err(of_key)? {
                Some(bytes) => bytes,
                None => return Ok(None),
            },
        };
        let size = (!read.codecs.is_vlen)
            .then(|| read.chunk.iter().product::<u64>() * read.width)
            .and_then(|size| usize::try_from(size).ok());
        let decoded = read.codecs.decode(bytes, size, self.most as usize);
        decoded
            .map(Some)
            .map_err(|what| invalid(format!("chunk {key:?}: {what}")))
    }

    /// Reads the bytes of a chunk in a shard.
    fn of_shard(&mut self, key: &str, place: &[u64]) -> io::Result<Option<Vec<u8>>> {
        let read = self.read;
        let Some(shard) = &read.shard else {
            return Ok(None);
        };
        let counts = shard
            .shape
            .iter()
            .zip(&read.chunk)
            .map(|(all, one)| all / one);
        let counts: Vec<u64> = counts.collect();
        if !self.shards.contains_key(key) {
            if self.shards.len() == SHARDS {
                self.shards.clear();
            }
            let open = match self.nodes.get(key)? {
                Some(node) => Some(OpenShard::open(
                    node,
                    shard,
                    counts.iter().product(),
                    self.most,
                )?),
                None => None,
            };
            self.shards.insert(key.to_owned(), open);
        }
        let Some(Some(open)) = self.shards.get(key) else {
            return Ok(None);
        };
        let dims = place.iter().zip(&counts);
        let number = dims.fold(0, |number, (at, count)| number * count + at % count);
        match open.chunks.get(number as usize) {
            None | Some((NO_CHUNK, NO_CHUNK)) => Ok(None),
            Some((offset, len)) => open.node.read(*offset, *len, self.most).map(Some),
        }
    }
}

impl<'a> OpenShard<'a> {
    fn open(node: Node<'a>, shard: &metadata::Shard, count: u64, most: u64) -> io::Result<Self> {
        let len = count * 16 + if shard.has_checksum { 4 } else { 0 };
        let start = match shard.is_index_first {
            true => 0,
            false => node.len().checked_sub(len).ok_or_else(|| {
                invalid(format!(
                    "the shard has {} bytes, and its index {len}",
                    node.len()
                ))
            })?,
        };
        let mut index = node.read(start, len, most)?;
        if shard.has_checksum {
            let sum = index.split_off(index.len() - 4);
            let (found, said) = (crc32c::crc32c(&index).to_le_bytes(), sum);
            if found[..] != said {
                return Err(invalid(
                    "the CRC32C of the index of the shard is wrong".to_owned(),
                ));
            }
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let chunks = index.chunks_exact(16);
        let chunks = chunks.map(|entry| (word(&entry[..8]), word(&entry[8..])));
        Ok(Self {
            node,
            chunks: chunks.collect(),
        })
    }
}

/// Reads rows of elements of fixed size.
struct Rows<'a> {
    chunks: Chunks<'a>,
    row_bytes: u64,
    /// The next row, and the range of rows in the buffer.
    next: u64,
    start: u64,
    end: u64,
    buffer: Vec<u8>,
}

impl Rows<'_> {
    /// Fills the buffer with the rows from the next one on, up to the end of their row of chunks.
    fn fill(&mut self) -> io::Result<()> {
        let read = self.chunks.read;
        let rows = read.shape.first().copied().unwrap_or(1);
        if self.next >= rows {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let height = read.chunk.first().copied().unwrap_or(1);
        let place = self.next / height;
        let (band_start, band_end) = (place * height, (place + 1).saturating_mul(height).min(rows));
        self.buffer.clear();
        if is_whole(read) {
            (self.start, self.end) = (band_start, band_end);
            let mut at = vec![0; read.shape.len()];
            if let Some(first) = at.first_mut() {
                *first = place;
            }
            match self.chunks.get(&at)? {
                Some(chunk) => self.buffer = chunk,
                None => {
                    // A missing chunk may be larger than the available memory.
                    let most = (BATCH_BYTES / self.row_bytes.max(1)).max(1);
                    self.start = self.next;
                    self.end = band_end.min(self.next.saturating_add(most));
                    self.fill_values((self.end - self.start) * self.row_bytes)?;
                }
            }
            return Ok(());
        }
        (self.start, self.end) = (band_start, band_end);
        self.fill_values((self.end - self.start) * self.row_bytes)?;
        let counts: Vec<u64> = grid(read).collect();
        let mut at = vec![0; read.shape.len()];
        for number in 0..counts.iter().product() {
            let mut rest: u64 = number;
            for (at, count) in at.iter_mut().skip(1).zip(&counts).rev() {
                (*at, rest) = (rest % count, rest / count);
            }
            if let Some(first) = at.first_mut() {
                *first = place;
            }
            if let Some(chunk) = self.chunks.get(&at)? {
                self.copy(&chunk, &at);
            }
        }
        Ok(())
    }

    /// Fills the buffer with the fill value.
    fn fill_values(&mut self, bytes: u64) -> io::Result<()> {
        let read = self.chunks.read;
        let fill = read.fill.as_deref();
        let fill = fill.ok_or_else(|| {
            invalid("a chunk is missing, and the fill value is none that is read".to_owned())
        })?;
        let bytes = bytes as usize;
        match fill.iter().all(|byte| *byte == 0) {
            true => self.buffer.resize(bytes, 0),
            false => self.buffer.extend(fill.iter().cycle().take(bytes)),
        }
        Ok(())
    }

    /// Copies the part of a chunk that is in the buffered rows to the buffer.
    fn copy(&mut self, chunk: &[u8], at: &[u64]) {
        let read = self.chunks.read;
        let width = read.width as usize;
        let rank = read.shape.len();
        // Distance in bytes between adjacent elements of each dimension, in the chunk and in the rows.
        let mut from_strides = vec![width; rank];
        let mut stride = width;
        let order: Vec<usize> = match &read.codecs.order {
            Some(order) => order.clone(),
            None => (0..rank).collect(),
        };
        for dim in order.iter().rev() {
            from_strides[*dim] = stride;
            stride *= read.chunk[*dim] as usize;
        }
        let mut to_strides = vec![width; rank];
        let mut stride = width;
        for dim in (0..rank).rev() {
            to_strides[dim] = stride;
            stride *= read.shape[dim] as usize;
        }
        let mut counts = Vec::with_capacity(rank);
        let (mut from, mut to) = (0, 0);
        for dim in 0..rank {
            let start = at[dim] * read.chunk[dim];
            let end = (start + read.chunk[dim]).min(read.shape[dim]);
            if dim == 0 {
                from = (self.start - start) as usize * from_strides[0];
                counts.push((self.end - self.start) as usize);
            } else {
                to += start as usize * to_strides[dim];
                counts.push((end - start) as usize);
            }
        }
        let strides: Vec<[usize; 3]> = (0..rank)
            .map(|dim| [counts[dim], from_strides[dim], to_strides[dim]])
            .collect();
        copy(&strides, width, &chunk[from..], &mut self.buffer[to..]);
    }
}

/// Copies elements. `dims` has for each dimension the number of elements, and their distance in bytes on both sides.
fn copy(dims: &[[usize; 3]], width: usize, from: &[u8], to: &mut [u8]) {
    match dims {
        [] => to[..width].copy_from_slice(&from[..width]),
        [[count, from_stride, to_stride]] if *from_stride == width && *to_stride == width => {
            let len = count * width;
            to[..len].copy_from_slice(&from[..len]);
        }
        [[count, from_stride, to_stride], inner @ ..] => {
            for number in 0..*count {
                let (from, to) = (&from[number * from_stride..], &mut to[number * to_stride..]);
                copy(inner, width, from, to);
            }
        }
    }
}

impl RowReader for Rows<'_> {
    fn read(&mut self, rows: u64, out: &mut Vec<u8>) -> io::Result<()> {
        let mut left = rows;
        while left > 0 {
            if !(self.start..self.end).contains(&self.next) {
                self.fill()?;
            }
            let count = left.min(self.end - self.next);
            let from = (self.next - self.start) * self.row_bytes;
            let bytes = self
                .buffer
                .get(from as usize..(from + count * self.row_bytes) as usize);
            out.extend_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
            self.next += count;
            left -= count;
        }
        Ok(())
    }
}

/// Reads rows of texts or byte strings, one per row.
struct Texts<'a> {
    chunks: Chunks<'a>,
    next: u64,
    /// The current chunk.
    chunk: Option<OpenChunk>,
}

struct OpenChunk {
    place: u64,
    /// `None` if the chunk is missing.
    bytes: Option<Vec<u8>>,
    at: usize,
    row: u64,
}

impl Texts<'_> {
    /// Appends the text of the next row.
    fn text(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let read = self.chunks.read;
        let (Some(rows), Some(height)) = (read.shape.first(), read.chunk.first()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        if self.next >= *rows {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let place = self.next / height;
        if self.chunk.as_ref().is_none_or(|chunk| chunk.place != place) {
            let bytes = self.chunks.get(&[place])?;
            let count = bytes.as_ref().map(|bytes| bytes.first_chunk::<4>());
            let count = count.map(|count| count.map(|count| u64::from(u32::from_le_bytes(*count))));
            if count.is_some_and(|count| count != Some(*height)) {
                return Err(invalid(format!(
                    "chunk {place} has not the {height} texts of its array"
                )));
            }
            self.chunk = Some(OpenChunk {
                place,
                bytes,
                at: 4,
                row: place * height,
            });
        }
        let Some(chunk) = &mut self.chunk else {
            return Ok(());
        };
        let Some(bytes) = &chunk.bytes else {
            let fill = read.fill.as_deref();
            out.extend_from_slice(fill.ok_or_else(|| {
                invalid("a chunk is missing, and there is no fill value".to_owned())
            })?);
            self.next += 1;
            return Ok(());
        };
        while chunk.row <= self.next {
            let rest = bytes.get(chunk.at..).unwrap_or_default();
            let text = rest
                .split_first_chunk::<4>()
                .and_then(|(len, rest)| rest.get(..u32::from_le_bytes(*len) as usize));
            let text =
                text.ok_or_else(|| invalid(format!("chunk {place}: a text lies outside of it")))?;
            if chunk.row == self.next {
                out.extend_from_slice(text);
            }
            chunk.at += 4 + text.len();
            chunk.row += 1;
        }
        self.next += 1;
        Ok(())
    }
}

impl RowReader for Texts<'_> {
    fn read(&mut self, rows: u64, out: &mut Vec<u8>) -> io::Result<()> {
        (0..rows).try_for_each(|_| self.text(out))
    }
}
