//! Parses the headers of a tar archive (ustar, GNU and pax) in one forward pass.
//!
//! Only headers and extension headers are read. Lengths in headers are checked against small limits before memory is allocated.

use super::ArchiveError;
use super::stream::Stream;

const BLOCK: u64 = 512;
/// Longest name that is read; no file system allows longer ones.
const NAME_MAX_BYTES: u64 = 64 << 10;
/// Largest pax header, which holds times, owners and a name.
const PAX_MAX_BYTES: u64 = 1 << 20;

/// Type of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TarKind {
    File,
    Directory,
    /// A hard or symbolic link.
    Link,
    /// A device, a pipe, or a type that only some tools know.
    Special,
    /// A sparse file, whose stored data differs from its content.
    Sparse,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TarMember {
    /// The name as stored in the archive.
    pub(crate) name: Vec<u8>,
    pub(crate) kind: TarKind,
    /// Offset of its header.
    pub(crate) header: u64,
    /// Offset of its data.
    pub(crate) data: u64,
    /// Size of its data in bytes.
    pub(crate) size: u64,
}

/// Reads the members of an archive, which may be inside another one.
#[derive(Debug)]
pub(crate) struct TarReader {
    next: u64,
    /// The first header, if the caller has already read it.
    first: Option<[u8; BLOCK as usize]>,
    /// End of the data of the last member; padding follows.
    data_end: u64,
    /// End of an inner archive; `None` for the outer one.
    end: Option<u64>,
    global_path: Option<Vec<u8>>,
    /// Whether the end mark of the archive was read.
    pub(crate) ended: bool,
    /// Offset of bytes after the end mark that are not another archive.
    pub(crate) behind_end: Option<u64>,
}

/// Values of extension headers for the next member.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

impl TarReader {
    pub(crate) fn new(start: u64, end: Option<u64>) -> Self {
        Self {
            next: start,
            first: None,
            data_end: start,
            end,
            global_path: None,
            ended: false,
            behind_end: None,
        }
    }

    /// Returns a reader of an inner archive whose first header was already read from the stream.
    pub(crate) fn with_first(start: u64, end: Option<u64>, first: [u8; BLOCK as usize]) -> Self {
        Self {
            first: Some(first),
            ..Self::new(start, end)
        }
    }

    /// Returns the next member; `None` at the end. The caller may read its data from the stream or not. An archive that follows
    /// an end mark, as in the result of `cat a.tar b.tar`, is also read, as by `tar -i`.
    pub(crate) fn next(&mut self, stream: &mut Stream) -> Result<Option<TarMember>, ArchiveError> {
        let mut extension = Extension::default();
        let first = self.next;
        loop {
            let before = self.next;
            let block = self.block(stream)?;
            let header = self.next;
            if before != first && (block.is_none() || header != before) {
                return Err(ArchiveError::at(
                    first,
                    "the archive ends after an extension header",
                ));
            }
            let Some(block) = block else {
                return Ok(None);
            };
            if !checksum_is_right(&block) {
                let what =
                    "this is no tar header: the archive is damaged, or was cut and continued";
                return Err(ArchiveError::at(header, what));
            }
            let kind = block[156];
            let mut size = number(&block[124..136])
                .ok_or_else(|| ArchiveError::at(header, "the size in this header is no number"))?;
            let data = header + BLOCK;
            let own_size = !matches!(kind, b'x' | b'g' | b'X' | b'L' | b'K');
            if own_size {
                size = extension.size.unwrap_or(size);
            }
            let padded = size.checked_next_multiple_of(BLOCK);
            self.next = padded
                .and_then(|padded| data.checked_add(padded))
                .ok_or_else(|| {
                    ArchiveError::at(header, format!("a member of {size} bytes is impossible"))
                })?;
            let end = self.end.or(stream.len());
            if let Some(end) = end
                && data.checked_add(size).is_none_or(|data_end| data_end > end)
            {
                let what = format!(
                    "a member has {size} bytes, but {} are left: the archive is cut short",
                    end.saturating_sub(data)
                );
                return Err(ArchiveError::at(header, what));
            }
            self.data_end = data + size;
            match kind {
                b'L' => {
                    let mut name = self.content(stream, header, size, NAME_MAX_BYTES)?;
                    // GNU tar ends the name with a NUL byte. Any other NUL byte stays, and the name is refused.
                    if name.last() == Some(&0) {
                        name.pop();
                    }
                    extension.name = Some(name);
                }
                b'K' => {}
                b'x' | b'X' => {
                    let records = self.content(stream, header, size, PAX_MAX_BYTES)?;
                    pax(&records, &mut extension)
                        .ok_or_else(|| ArchiveError::at(header, "the pax header is damaged"))?;
                }
                b'g' => {
                    let records = self.content(stream, header, size, PAX_MAX_BYTES)?;
                    let mut global = Extension::default();
                    pax(&records, &mut global)
                        .ok_or_else(|| ArchiveError::at(header, "the pax header is damaged"))?;
                    if global.size.is_some() {
                        return Err(ArchiveError::at(
                            header,
                            "one size for all members is impossible",
                        ));
                    }
                    self.global_path = global.name;
                }
                _ => {
                    let name = extension
                        .name
                        .or_else(|| self.global_path.clone())
                        .unwrap_or_else(|| header_name(&block));
                    let kind = member_kind(kind, &name, extension.sparse);
                    if kind == TarKind::Link && size > 0 {
                        // Tools differ in whether data follows a link, so the offset of the next header would be ambiguous.
                        return Err(ArchiveError::at(header, "a link with data is ambiguous"));
                    }
                    return Ok(Some(TarMember {
                        name,
                        kind,
                        header,
                        data,
                        size,
                    }));
                }
            }
        }
    }

    /// Returns the next header block; `None` at the end. After an end mark this is the first header of the next archive.
    fn block(&mut self, stream: &mut Stream) -> Result<Option<[u8; BLOCK as usize]>, ArchiveError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let mut block = [0; BLOCK as usize];
        loop {
            let at = self.next;
            let filled = self.fill(stream, &mut block)?;
            if filled == 0 {
                if stream.position() < self.data_end {
                    let what = "the archive is cut short inside a member";
                    return Err(ArchiveError::at(stream.position(), what));
                }
                return Ok(None);
            }
            let is_zero = block.iter().take(filled).all(|byte| *byte == 0);
            let is_whole = filled == block.len();
            match (is_zero, self.ended) {
                (true, true) => {}
                (true, false) if is_whole => self.ended = true,
                (false, true) if is_whole && checksum_is_right(&block) => {
                    self.ended = false;
                    self.global_path = None;
                    return Ok(Some(block));
                }
                (false, true) => {
                    let begin = block.iter().position(|byte| *byte != 0);
                    self.behind_end = Some(at + begin.unwrap_or(0) as u64);
                    return Ok(None);
                }
                (false, false) if is_whole => return Ok(Some(block)),
                (_, false) => {
                    let what = "the archive is cut short inside a header";
                    return Err(ArchiveError::at(at, what));
                }
            }
            self.next = at.saturating_add(BLOCK);
        }
    }

    /// Reads the next block, or fewer bytes at the end.
    fn fill(
        &self,
        stream: &mut Stream,
        block: &mut [u8; BLOCK as usize],
    ) -> Result<usize, ArchiveError> {
        let at = self.next;
        if self.end.is_some_and(|end| at.saturating_add(BLOCK) > end) {
            return Ok(0);
        }
        let fail = |error| ArchiveError::io(at, &error);
        // The padding of the last member may be missing together with the end mark.
        match stream.skip_to(at).map_err(fail)? {
            true => stream.fill(block).map_err(fail),
            false => Ok(0),
        }
    }

    /// Reads the data of an extension header.
    fn content(
        &self,
        stream: &mut Stream,
        header: u64,
        size: u64,
        max: u64,
    ) -> Result<Vec<u8>, ArchiveError> {
        if size > max {
            return Err(ArchiveError::at(
                header,
                format!("an extension header of {size} bytes, at most {max} are read"),
            ));
        }
        let mut content = vec![0; size as usize];
        match stream.fill(&mut content) {
            Ok(filled) if filled == content.len() => Ok(content),
            Ok(_) => Err(ArchiveError::at(
                header,
                "the archive is cut short inside an extension header",
            )),
            Err(error) => Err(ArchiveError::io(header, &error)),
        }
    }
}

/// Returns whether a block may be the first header of a tar archive.
pub(crate) fn is_header(block: &[u8]) -> bool {
    block
        .get(..BLOCK as usize)
        .and_then(|block| block.try_into().ok())
        .is_some_and(|block: &[u8; BLOCK as usize]| {
            block != &[0; BLOCK as usize] && checksum_is_right(block)
        })
}

/// Compares the checksum: the sum of all bytes, with spaces in place of the checksum. Some old tools summed signed bytes.
fn checksum_is_right(block: &[u8; BLOCK as usize]) -> bool {
    let Some(expected) = number(&block[148..156]) else {
        return false;
    };
    let bytes = block.iter().enumerate().map(|(at, byte)| {
        if (148..156).contains(&at) {
            b' '
        } else {
            *byte
        }
    });
    let unsigned: u64 = bytes.clone().map(u64::from).sum();
    let signed: i64 = bytes.map(|byte| i64::from(byte as i8)).sum();
    unsigned == expected || i64::try_from(expected) == Ok(signed)
}

/// Parses a number of a header: octal digits between spaces and NULs, or base 256 if the highest bit is set.
fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // 0xff begins a negative number, which is invalid for all fields that are read here.
        return rest
            .iter()
            .try_fold(u64::from(first & 0x7f), |value, byte| {
                value.checked_mul(256)?.checked_add(u64::from(*byte))
            });
    }
    let end = field
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(field.len());
    field[..end]
        .trim_ascii()
        .iter()
        .try_fold(0u64, |value, byte| match byte {
            b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
            _ => None,
        })
}

/// Returns the name in the header. In ustar, the prefix field holds the first part of a long name.
fn header_name(block: &[u8; BLOCK as usize]) -> Vec<u8> {
    let name = until_nul(&block[..100]);
    let prefix = until_nul(&block[345..500]);
    if block[257..263] == *b"ustar\0" && !prefix.is_empty() {
        [prefix, b"/", name].concat()
    } else {
        name.to_vec()
    }
}

fn member_kind(flag: u8, name: &[u8], sparse: bool) -> TarKind {
    match flag {
        b'S' => TarKind::Sparse,
        b'0' | b'\0' | b'7' if sparse => TarKind::Sparse,
        b'0' | b'\0' | b'7' if name.ends_with(b"/") => TarKind::Directory,
        b'0' | b'\0' | b'7' => TarKind::File,
        b'5' => TarKind::Directory,
        b'1' | b'2' => TarKind::Link,
        _ => TarKind::Special,
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Parses the records of a pax header: length, space, `key=value` and newline.
fn pax(mut records: &[u8], extension: &mut Extension) -> Option<()> {
    // Some tools pad the records with NULs.
    while !records.is_empty() && records.iter().any(|byte| *byte != 0) {
        let space = records.iter().position(|byte| *byte == b' ')?;
        let len: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
        let record = records.get(space + 1..len)?.strip_suffix(b"\n")?;
        records = records.get(len..)?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => extension.name = Some(value.to_vec()),
            b"size" => extension.size = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
            _ if key.starts_with(b"GNU.sparse.") => extension.sparse = true,
            _ => {}
        }
    }
    Some(())
}

#[cfg(test)]
#[path = "tar_tests.rs"]
mod tests;
