//! Zip archives: reads the central directory, and single members by their records in it.
//!
//! The directory is read forward and not kept in memory; a member is found again by the offset of its record. Zip64 is
//! supported; members are stored or deflated.

use crate::archive::{ArchiveError, ReadAt, Stream, u16_at, u32_at, u64_at};
use crate::finding::escape;
use flate2::{Crc, Decompress, FlushDecompress, Status};
use std::io;

const END_RECORD_BYTES: usize = 22;
const COMMENT_MAX_BYTES: usize = 0xffff;
const RECORD_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;
/// Size of the pieces in which deflated data is read.
const INPUT_BYTES: usize = 64 << 10;
/// Greatest compression ratio of deflate.
const DEFLATE_MOST: u64 = 1032;
/// Bytes of the first read of a record; most records, including extra fields, are shorter.
pub(crate) const RECORD_PEEK_BYTES: usize = 512;

/// The central directory, read forward.
#[derive(Debug)]
pub(crate) struct Directory {
    /// Bytes before the archive, such as those of a self-extracting program.
    pub(crate) base: u64,
    next: u64,
    end: u64,
    left: u64,
}

/// A record of the central directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ZipMember {
    /// Its path, with `/` as the separator.
    pub(crate) name: Vec<u8>,
    /// Offset of the record.
    pub(crate) record: u64,
    /// Size of the content in bytes.
    pub(crate) size: u64,
    pub(crate) is_directory: bool,
    pub(crate) is_link: bool,
    method: u16,
    encrypted: bool,
    stored_size: u64,
    crc32: u32,
    /// Offset of the local header, relative to the base.
    local: u64,
    /// Size of the record in bytes, including its variable fields.
    record_len: u64,
}

impl Directory {
    /// Finds the central directory of a zip archive of `len` bytes.
    pub(crate) fn find(file: &dyn ReadAt, len: u64) -> Result<Self, ArchiveError> {
        let tail_len = len.min((END_RECORD_BYTES + COMMENT_MAX_BYTES) as u64) as usize;
        let tail_start = len - tail_len as u64;
        let mut tail = vec![0; tail_len];
        read_exact(file, tail_start, &mut tail)?;
        // Search from the end: the comment may contain anything, but the length of the comment must fit.
        let found = (0..=tail_len.saturating_sub(END_RECORD_BYTES))
            .rev()
            .find(|at| {
                tail[*at..].starts_with(b"PK\x05\x06")
                    && tail.get(at + 20..at + 22).is_some_and(|comment| {
                        at + END_RECORD_BYTES + usize::from(u16_at(comment, 0)) == tail_len
                    })
            });
        let Some(at) = found else {
            return Err(ArchiveError::at(
                len,
                "there is no end record: the zip archive is cut short",
            ));
        };
        let end_record = tail_start + at as u64;
        let record = &tail[at..at + END_RECORD_BYTES];
        if u16_at(record, 4) != 0 && u16_at(record, 4) != 0xffff {
            return Err(ArchiveError::at(
                end_record,
                "zip archives of several files are not read",
            ));
        }
        let (mut left, mut size, mut offset) = (
            u64::from(u16_at(record, 10)),
            u64::from(u32_at(record, 12)),
            u64::from(u32_at(record, 16)),
        );
        let mut directory_end = end_record;
        if left == 0xffff || size == 0xffff_ffff || offset == 0xffff_ffff {
            let mut locator = [0; 20];
            if let Some(at) = end_record.checked_sub(20)
                && read_exact(file, at, &mut locator).is_ok()
                && locator.starts_with(b"PK\x06\x07")
            {
                let at = u64_at(&locator, 8);
                let mut record = [0; 56];
                if at.checked_add(56).is_none_or(|end| end > end_record) {
                    return Err(ArchiveError::at(
                        end_record,
                        "the zip64 end record lies outside of the archive",
                    ));
                }
                read_exact(file, at, &mut record)?;
                if !record.starts_with(b"PK\x06\x06") {
                    return Err(ArchiveError::at(at, "this is no zip64 end record"));
                }
                (left, size, offset) = (
                    u64_at(&record, 32),
                    u64_at(&record, 40),
                    u64_at(&record, 48),
                );
                directory_end = at;
            }
        }
        let start = directory_end
            .checked_sub(size)
            .filter(|start| *start >= offset)
            .ok_or_else(|| {
                ArchiveError::at(end_record, "the directory lies outside of the archive")
            })?;
        Ok(Self {
            base: start - offset,
            next: start,
            end: directory_end,
            left,
        })
    }

    /// Returns the next record; `None` at the end.
    pub(crate) fn next(&mut self, stream: &mut Stream) -> Result<Option<ZipMember>, ArchiveError> {
        if self.left == 0 {
            if self.next != self.end {
                return Err(ArchiveError::at(
                    self.next,
                    "the directory is longer than its count of members",
                ));
            }
            return Ok(None);
        }
        let at = self.next;
        let mut fixed = [0; RECORD_BYTES];
        stream
            .skip_to(at)
            .map_err(|error| ArchiveError::io(at, &error))?;
        let mut record = read_record_part(stream, at, &mut fixed)?.to_vec();
        let rest = variable_len(&record);
        if at + (RECORD_BYTES + rest) as u64 > self.end {
            return Err(ArchiveError::at(
                at,
                "a record reaches beyond the directory",
            ));
        }
        record.resize(RECORD_BYTES + rest, 0);
        read_record_part(stream, at, &mut record[RECORD_BYTES..])?;
        let member = parse(&record, at)?;
        self.next += member.record_len;
        self.left -= 1;
        Ok(Some(member))
    }
}

fn read_record_part<'b>(
    stream: &mut Stream,
    at: u64,
    out: &'b mut [u8],
) -> Result<&'b [u8], ArchiveError> {
    match stream.fill(out) {
        Ok(filled) if filled == out.len() => Ok(out),
        Ok(_) => Err(ArchiveError::at(
            at,
            "the archive is cut short inside its directory",
        )),
        Err(error) => Err(ArchiveError::io(at, &error)),
    }
}

fn variable_len(fixed: &[u8]) -> usize {
    [28, 30, 32]
        .iter()
        .map(|at| usize::from(u16_at(fixed, *at)))
        .sum()
}

/// Parses a complete record.
fn parse(record: &[u8], at: u64) -> Result<ZipMember, ArchiveError> {
    if !record.starts_with(b"PK\x01\x02") {
        return Err(ArchiveError::at(at, "this is no record of a zip directory"));
    }
    let (name_len, extra_len) = (
        usize::from(u16_at(record, 28)),
        usize::from(u16_at(record, 30)),
    );
    let name = record
        .get(RECORD_BYTES..RECORD_BYTES + name_len)
        .unwrap_or_default();
    let mut extra = record
        .get(RECORD_BYTES + name_len..RECORD_BYTES + name_len + extra_len)
        .unwrap_or_default();
    let mut stored_size = u64::from(u32_at(record, 20));
    let mut size = u64::from(u32_at(record, 24));
    let mut local = u64::from(u32_at(record, 42));
    while extra.len() >= 4 {
        let (id, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(field) = extra.get(4..4 + len) else {
            break;
        };
        if id == 1 {
            // The zip64 field has only those values that do not fit their 32-bit fields, in this order.
            let mut values = field.chunks_exact(8).map(|value| u64_at(value, 0));
            for value in [&mut size, &mut stored_size, &mut local] {
                if *value == 0xffff_ffff {
                    *value = values
                        .next()
                        .ok_or_else(|| ArchiveError::at(at, "the zip64 field is too short"))?;
                }
            }
        }
        extra = &extra[4 + len..];
    }
    // Programs on Windows write `\` as the separator, although the format requires `/`.
    let name: Vec<u8> = name
        .iter()
        .map(|byte| if *byte == b'\\' { b'/' } else { *byte })
        .collect();
    // The upper half has the Unix mode even if "made by" names another system; it is only used to detect links.
    let mode = u32_at(record, 38) >> 16;
    Ok(ZipMember {
        is_directory: name.ends_with(b"/"),
        is_link: mode & 0o170_000 == 0o120_000,
        name,
        record: at,
        size,
        method: u16_at(record, 10),
        encrypted: u16_at(record, 8) & 1 != 0,
        stored_size,
        crc32: u32_at(record, 16),
        local,
        record_len: (RECORD_BYTES + variable_len(record)) as u64,
    })
}

impl ZipMember {
    /// Returns why the content cannot be read; `None` if it can.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.encrypted {
            return Some("it is encrypted".into());
        }
        match self.method {
            0 if self.size != self.stored_size => {
                Some("it is stored, with two different sizes".into())
            }
            0 | 8 => None,
            method => Some(format!(
                "it is compressed by method {method}, only stored and deflate are read"
            )),
        }
    }

    /// Like [`refusal`](Self::refusal), but also refuses sizes that an archive of this many bytes cannot hold.
    pub(crate) fn refusal_in(&self, archive_len: u64) -> Option<String> {
        self.refusal().or_else(|| {
            let most = self.stored_size.saturating_mul(DEFLATE_MOST);
            let is_possible =
                self.stored_size <= archive_len && self.size <= most.saturating_add(DEFLATE_MOST);
            (!is_possible).then(|| {
                format!(
                    "its {} bytes, {} as they are stored, are more than the archive can hold",
                    self.size, self.stored_size
                )
            })
        })
    }

    /// Returns the offset of its local header, and approximately the size of the header and the data.
    pub(crate) fn stored(&self, base: u64) -> (u64, u64) {
        // The local header repeats the name and has extra fields of a few dozen bytes.
        const EXTRA_BYTES: u64 = 256;
        let header = LOCAL_BYTES as u64 + self.name.len() as u64 + EXTRA_BYTES;
        (
            self.local.saturating_add(base),
            header.saturating_add(self.stored_size),
        )
    }

    /// Returns whether the content is not compressed.
    pub(crate) fn is_stored(&self) -> bool {
        self.method == 0
    }

    /// Returns the stored size of the content in bytes, and its CRC-32.
    pub(crate) fn stored_size_and_crc32(&self) -> (u64, u32) {
        (self.stored_size, self.crc32)
    }

    /// Returns the offset of the data.
    pub(crate) fn data(&self, file: &dyn ReadAt, base: u64) -> Result<u64, String> {
        let at = self
            .local
            .checked_add(base)
            .ok_or("its local header is nowhere")?;
        let mut local = vec![0; LOCAL_BYTES + self.name.len()];
        read_exact(file, at, &mut local).map_err(|error| error.to_string())?;
        if !local.starts_with(b"PK\x03\x04") {
            return Err(format!("there is no local header at offset {at}"));
        }
        let (local, name) = local.split_at(LOCAL_BYTES);
        let (local, name_len) = (local, usize::from(u16_at(local, 26)));
        // Either name may have the separators of Windows.
        let is_same = |(a, b): (&u8, &u8)| a == b || (*a == b'\\' && *b == b'/');
        if name_len != self.name.len() || !name.iter().zip(&self.name).all(is_same) {
            return Err(format!(
                "the local header at offset {at} is that of {:?}: the directory of the archive is damaged",
                escape(name)
            ));
        }
        Ok(at + (LOCAL_BYTES + name_len + usize::from(u16_at(local, 28))) as u64)
    }

    /// Appends the content, or its first `limit` bytes, in which case the checksum is not verified.
    pub(crate) fn append_to(
        &self,
        file: &dyn ReadAt,
        base: u64,
        limit: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let mut at = self.data(file, base)?;
        let start = out.len();
        let wanted =
            usize::try_from(self.size.min(limit)).map_err(|_| "it is too large".to_owned())?;
        if self.method == 0 {
            out.resize(start + wanted, 0);
            read_exact(file, at, &mut out[start..]).map_err(|error| error.to_string())?;
        } else {
            let mut left = self.stored_size;
            let mut decoder = Decompress::new(false);
            let mut input = vec![0; left.min(INPUT_BYTES as u64) as usize];
            out.reserve(wanted.max(1));
            loop {
                let count = left.min(input.len() as u64) as usize;
                read_exact(file, at, &mut input[..count]).map_err(|error| error.to_string())?;
                let before = decoder.total_in();
                let mut fed = 0;
                let mut status = Status::Ok;
                while fed < count && status != Status::StreamEnd && out.len() - start <= wanted {
                    if out.capacity() == out.len() {
                        out.reserve(1);
                    }
                    status = decoder
                        .decompress_vec(&input[fed..count], out, FlushDecompress::None)
                        .map_err(|error| format!("its deflated data is damaged: {error}"))?;
                    fed = (decoder.total_in() - before) as usize;
                }
                at += fed as u64;
                left -= fed as u64;
                if status == Status::StreamEnd || out.len() - start > wanted || left == 0 {
                    break;
                }
            }
            if limit < self.size {
                out.truncate(start + wanted);
            }
        }
        let found = &out[start..];
        if found.len() != wanted {
            return Err(format!(
                "it has {} bytes or more, the directory says {}",
                found.len(),
                self.size
            ));
        }
        if limit >= self.size {
            let mut crc = Crc::new();
            crc.update(found);
            if crc.sum() != self.crc32 {
                return Err(format!(
                    "its CRC32 is {:08x}, the directory says {:08x}",
                    crc.sum(),
                    self.crc32
                ));
            }
        }
        Ok(())
    }
}

/// Reads the record of a member at an offset.
pub(crate) fn member_at(
    file: &dyn ReadAt,
    len: u64,
    record: u64,
) -> Result<ZipMember, ArchiveError> {
    let there = len.saturating_sub(record).min(RECORD_PEEK_BYTES as u64) as usize;
    let mut bytes = vec![0; there];
    read_exact(file, record, &mut bytes)?;
    if there < RECORD_BYTES {
        return Err(ArchiveError::at(
            record,
            "the archive is cut short inside its directory",
        ));
    }
    let needed = RECORD_BYTES + variable_len(&bytes);
    let had = bytes.len();
    bytes.resize(needed, 0);
    if needed > had {
        read_exact(file, record + had as u64, &mut bytes[had..])?;
    }
    parse(&bytes, record)
}

fn read_exact(file: &dyn ReadAt, at: u64, out: &mut [u8]) -> Result<(), ArchiveError> {
    file.read_exact_at(out, at)
        .map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                ArchiveError::at(at, "the archive ends here, it is cut short")
            }
            _ => ArchiveError::io(at, &error),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_archive_can_hold_are_refused() {
        let member = |method, stored_size, size| ZipMember {
            name: b"a.jpg".to_vec(),
            record: 0,
            size,
            is_directory: false,
            is_link: false,
            method,
            encrypted: false,
            stored_size,
            crc32: 0,
            local: 0,
            record_len: RECORD_BYTES as u64,
        };
        for (method, stored_size, size, is_good) in [
            (0, 900, 900, true),
            (0, 1001, 1001, false),
            (8, 10, 10_000, true),
            (8, 10, 12_000, false),
            (8, 2, 0, true),
            (8, u64::MAX, u64::MAX, false),
            (8, 1000, u64::MAX, false),
        ] {
            let refused = member(method, stored_size, size).refusal_in(1000);
            assert_eq!(
                refused.is_none(),
                is_good,
                "{stored_size} {size}: {refused:?}"
            );
        }
    }
}
