//! The text index of NVIDIA DALI: a line `offset size` for each frame, where the size includes the
//! 16 framing bytes. `tfrecord2idx` writes the same bytes.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use super::builder::Summing;
use super::{IndexBuilder, RecordMeta};
use crate::checksum::Crc32c;
use crate::error::{Corruption, Result};
use crate::frame::OVERHEAD_BYTES;

/// Lines of a text index per write.
const LINES_AT_ONCE: usize = 4096;

/// Returns the text for frames given as offset and size.
///
/// ```
/// let text = forebay_shard::index::write_idx([(0, 17), (17, 116)]);
/// assert_eq!(text, "0 17\n17 116\n");
/// ```
pub fn write_idx(frames: impl IntoIterator<Item = (u64, u64)>) -> String {
    let mut text = String::new();
    for (offset, size) in frames {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{offset} {size}");
    }
    text
}

impl IndexBuilder {
    /// Returns the text index of the TFRecord file with these records, in the format of NVIDIA
    /// DALI's tfrecord2idx.
    pub fn to_idx(&self) -> String {
        write_idx(self.frames())
    }

    /// Writes that text without building it in memory. Returns the checksum of its bytes.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_idx(&self, out: &mut impl Write) -> io::Result<Crc32c> {
        let mut out = Summing::new(out);
        let mut frames = self.frames();
        loop {
            let text = write_idx(frames.by_ref().take(LINES_AT_ONCE));
            if text.is_empty() {
                return Ok(out.sum);
            }
            out.put(text.as_bytes())?;
        }
    }
}

/// Parses such a text for a TFRecord file of `data_len` bytes, all of whose frames it must list
/// without gaps. `path` is the path of the text, for errors.
///
/// # Errors
/// [`crate::Error::Corrupt`] with the line number as the record.
pub fn parse_idx(path: &Path, text: &[u8], data_len: u64) -> Result<IndexBuilder> {
    let mut index = IndexBuilder::new();
    let mut at = 0;
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        let record = index.records();
        let wrong = |expected: String| {
            let found = line
                .get(..line.len().min(80))
                .unwrap_or(line)
                .escape_ascii();
            let line = Corruption::new(at, "line of the index", expected, found);
            crate::Error::from(line.record(record).shard(path))
        };
        let offset = index.logical_len();
        let parsed = parse_line(line);
        let Some((found, size)) = parsed else {
            return Err(wrong(format!("\"{offset} SIZE\\n\"")));
        };
        let end = offset.checked_add(size).filter(|&end| end <= data_len);
        if found != offset || size < OVERHEAD_BYTES as u64 || end.is_none() {
            let most = data_len.saturating_sub(offset);
            return Err(wrong(format!(
                "\"{offset} SIZE\\n\" with a size of 16 to {most}"
            )));
        }
        index.push(size - OVERHEAD_BYTES as u64, &RecordMeta::default())?;
        at += line.len() as u64;
    }
    if index.logical_len() != data_len {
        let end = Corruption::new(at, "end of the last record", data_len, index.logical_len());
        return Err(end.shard(path).into());
    }
    Ok(index)
}

fn parse_line(line: &[u8]) -> Option<(u64, u64)> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (offset, size) = line.split_once(' ')?;
    let number = |text: &str| {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'));
        plain.then(|| text.parse().ok()).flatten()
    };
    Some((number(offset)?, number(size)?))
}
