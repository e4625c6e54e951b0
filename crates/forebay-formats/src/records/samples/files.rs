//! Files of samples that begin with a count and offsets, and their indexes: `index.json` in the directory of each split.

use crate::archive::{Archive, Stream, read_exact};
use crate::error::{Error, Result};
use crate::records::places::Place;
use crate::records::{Conversion, RecordInput};
use forebay_shard::manifest::MAX_BYTES;
use forebay_shard::{MAX_RECORD_BYTES, Storage};
use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::Path;

/// The name of the index of a split.
pub(in crate::records) const INDEX: &str = "index.json";
/// Split of files that are directly in the directory of the source.
const DEFAULT_SPLIT: &str = "train";
/// Most samples per stored byte of a compressed file.
const SAMPLES_PER_BYTE: u64 = 8;
/// Number of offsets that are read at a time, so that memory is not allocated for offsets that the file does not have.
const OFFSETS_READ: usize = 1 << 16;

/// Reads the index of a directory.
pub(in crate::records) fn read_index<T>(
    dir: &Path,
    storage: &dyn Storage,
    parse: impl FnOnce(&[u8]) -> std::result::Result<T, String>,
) -> Result<T> {
    let path = dir.join(INDEX);
    let bytes = storage
        .read(&path, MAX_BYTES)
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::source(dir, format!("there is no {INDEX}")),
            _ => Error::io(&path, "read", error),
        })?;
    parse(&bytes).map_err(|what| Error::source(&path, what))
}

/// Returns the directories of the splits, relative to the source: the subdirectories with an index, or the source itself.
pub(in crate::records) fn split_dirs(
    input: &RecordInput,
    root: &Path,
    storage: &dyn Storage,
    conversion: Option<&Conversion>,
) -> Result<Vec<(String, String)>> {
    let has_index = |dir: &Path| {
        let path = dir.join(INDEX);
        let there = storage.exists(&path);
        there.map_err(|error| Error::io(path, "open", error))
    };
    if let Some(conversion) = conversion {
        let splits = conversion.splits.iter();
        return Ok(splits
            .map(|split| (split.name.clone(), split.name.clone()))
            .collect());
    }
    let own = input.split.clone();
    if has_index(root)? {
        let name = root.file_name().and_then(|name| name.to_str());
        let known = ["train", "val", "validation", "test"];
        let name = name
            .filter(|name| known.contains(name))
            .unwrap_or(DEFAULT_SPLIT);
        return Ok(vec![(
            own.unwrap_or_else(|| name.to_owned()),
            String::new(),
        )]);
    }
    let mut dirs = Vec::new();
    for name in Place::open(&input.location, &input.read)?.dirs()? {
        if own.as_ref().is_none_or(|own| *own == name) && has_index(&root.join(&name))? {
            dirs.push((name.clone(), name));
        }
    }
    match dirs.is_empty() {
        true => Err(Error::source(
            root,
            format!("there is no {INDEX}, neither here nor in a directory of a split"),
        )),
        false => Ok(dirs),
    }
}

/// Reads and checks the count and the offsets at the beginning of a file with `samples` samples, according to the index. `end`
/// is its decompressed size and `stored` its stored size, in bytes. An error includes the offset in the file.
pub(in crate::records) fn read_offsets(
    stream: &mut Stream,
    samples: u64,
    end: u64,
    stored: u64,
) -> std::result::Result<Vec<u32>, (u64, String)> {
    let mut word = [0; 4];
    let mut read = |at: u64, out: &mut [u8]| {
        read_exact(stream, at, out).map_err(|_| (at, "the shard is cut short".to_owned()))
    };
    read(0, &mut word)?;
    let count = u64::from(u32::from_le_bytes(word));
    if count != samples {
        return Err((0, format!("{count} samples, and {INDEX} says {samples}")));
    }
    let data = 4 + 4 * (count + 1);
    // Empty samples compress to nearly nothing, so their number is checked against the stored bytes.
    if data > end || count > stored.saturating_mul(SAMPLES_PER_BYTE) {
        let what = format!("{count} samples do not fit into {end} bytes, {stored} stored ones");
        return Err((0, what));
    }
    let mut offsets: Vec<u32> = Vec::new();
    let mut at = 4;
    let mut buffer = Vec::new();
    while (offsets.len() as u64) < count + 1 {
        let left = count + 1 - offsets.len() as u64;
        buffer.resize(left.min(OFFSETS_READ as u64) as usize * 4, 0);
        read(at, &mut buffer)?;
        let words = buffer.chunks_exact(4);
        offsets.extend(words.map(|word| u32::from_le_bytes(word.try_into().unwrap_or_default())));
        at += buffer.len() as u64;
    }
    check_offsets(&offsets, data..=end, 4)?;
    match offsets.last() {
        Some(last) if u64::from(*last) == end => Ok(offsets),
        _ => Err((
            at,
            format!("the samples do not end with the shard at {end}"),
        )),
    }
}

/// Checks that samples are contiguous and inside `data`. `table` is the offset of the first entry of the table of offsets.
pub(in crate::records) fn check_offsets(
    offsets: &[u32],
    data: RangeInclusive<u64>,
    table: u64,
) -> std::result::Result<(), (u64, String)> {
    let (mut before, end) = (*data.start(), *data.end());
    for (number, offset) in offsets.iter().enumerate() {
        let (at, offset) = (table + 4 * number as u64, u64::from(*offset));
        if offset < before || offset > end {
            let what = format!(
                "sample {number} begins at {offset}, which is before {before} or behind {end}"
            );
            return Err((at, what));
        }
        let size = offset - before;
        if number > 0 && size > MAX_RECORD_BYTES {
            let what = format!("a sample of {size} bytes, at most {MAX_RECORD_BYTES} are read");
            return Err((at, what));
        }
        before = offset;
    }
    Ok(())
}

/// Returns whether an index may contain this file name, for a file beside it.
pub(in crate::records) fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\', '\0']) && !name.starts_with('.')
}

/// Returns whether an index may contain this path: merged indexes have paths of files in subdirectories.
pub(in crate::records) fn is_relative_path(name: &str) -> bool {
    name.split('/').all(is_file_name)
}

/// Returns whether a file exists.
pub(in crate::records) fn is_there(archive: &Archive) -> Result<bool> {
    match archive {
        Archive::Local(path) => Ok(path.is_file()),
        Archive::Object(store, key) => Ok(store.head(key)?.is_some()),
    }
}

/// Reads a sample. Memory is allocated in steps, since a compressed shard may be shorter than it claims.
pub(in crate::records) fn read_sample(
    stream: &mut Stream,
    at: u64,
    len: usize,
    out: &mut Vec<u8>,
    path: &Path,
) -> Result<()> {
    const STEP_BYTES: usize = 4 << 20;
    // Existing bytes are overwritten, not zeroed again.
    out.truncate(len);
    let mut start = 0;
    while start < len {
        let end = len.min(start + STEP_BYTES);
        out.resize(end.max(out.len()), 0);
        let piece = out.get_mut(start..end).unwrap_or_default();
        let read = read_exact(stream, at + start as u64, piece);
        read.map_err(|error| {
            Error::source(
                path,
                format!(
                    "offset {}: the shard is cut short inside a sample",
                    error.offset
                ),
            )
        })?;
        start = end;
    }
    Ok(())
}
