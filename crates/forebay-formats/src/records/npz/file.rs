//! NumPy arrays in the members of a zip, or in the files of a directory.

use super::NPY;
use crate::archive::zip::{Directory, ZipMember};
use crate::archive::{Archive, ArchiveFile, ArchiveKind, FileVersion, ReadAt, Stream};
use crate::error::{Error, Result};
use crate::finding::escape;
use crate::records::arrays::{ArrayFile, ArrayInfo, Contiguous, Element, RowReader};
use crate::records::npy::{Description, HEADER_MAX_BYTES, number_of};
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::collections::BTreeSet;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;

/// Size of the pieces in which deflated data is read and skipped data is decoded.
const PIECE_BYTES: usize = 256 << 10;
/// Most arrays of a file.
const MAX_ARRAYS: usize = 4096;

/// The arrays of one file, or of the files of a directory.
#[derive(Debug)]
pub(super) struct NpyFile {
    version: FileVersion,
    arrays: Vec<ArrayInfo>,
    /// The location of each array.
    members: Vec<Member>,
}

/// Location of an array.
#[derive(Debug)]
struct Member {
    archive: Archive,
    /// Identity of the file that contains it.
    version: FileVersion,
    /// Offset of the stored header and rows in the file, and length of the decoded header in bytes.
    start: u64,
    header: u64,
    /// Size of the deflated header and rows in bytes; `None` if they are not compressed.
    deflated: Option<u64>,
    /// Size in bytes and CRC-32 of header and rows; `None` for a file that is not in a zip.
    check: Option<(u64, u32)>,
}

impl NpyFile {
    /// Opens the `.npy` files of a directory. Arrays have the names of their files.
    pub(super) fn of_npy(path: PathBuf, files: Vec<(String, Archive)>) -> Result<Self> {
        let mut all = Self {
            version: FileVersion {
                path,
                bytes: 0,
                modified: 0,
            },
            arrays: Vec::new(),
            members: Vec::new(),
        };
        for (name, archive) in files {
            let (version, file) = FileVersion::open(&archive)?;
            let shown = &version.path;
            let mut head = vec![0; file.len().min(HEADER_MAX_BYTES as u64) as usize];
            let read = file.read_exact_at(&mut head, 0);
            read.map_err(|error| Error::io(shown, "read", error))?;
            let name = name.strip_suffix(NPY).unwrap_or(&name);
            let (info, header) =
                describe(name, &head, file.len()).map_err(|what| Error::source(shown, what))?;
            let whole = &mut all.version;
            whole.bytes += version.bytes;
            whole.modified = whole
                .modified
                .wrapping_mul(31)
                .wrapping_add(version.modified);
            all.arrays.push(info);
            all.members.push(Member {
                archive,
                version,
                start: 0,
                header,
                deflated: None,
                check: None,
            });
        }
        Ok(all)
    }

    /// Opens the arrays of a `.npz` archive.
    pub(super) fn of_npz(archive: Archive) -> Result<Self> {
        let (version, file) = FileVersion::open(&archive)?;
        let path = version.path.clone();
        let mut all = Self {
            version,
            arrays: Vec::new(),
            members: Vec::new(),
        };
        let mut directory =
            Directory::find(&file, file.len()).map_err(|trouble| trouble.of(&path))?;
        let stream = Stream::new(file.clone(), ArchiveKind::Zip { base: 0 });
        let mut stream = stream.map_err(|error| Error::io(&path, "read", error))?;
        let mut names = BTreeSet::new();
        while let Some(member) = directory
            .next(&mut stream)
            .map_err(|trouble| trouble.of(&path))?
        {
            let shown = escape(&member.name);
            let refused = |what: String| Error::source(&path, format!("member {shown}: {what}"));
            if all.arrays.len() == MAX_ARRAYS {
                return Err(refused(format!("it has more than {MAX_ARRAYS} arrays")));
            }
            if !names.insert(member.name.clone()) {
                return Err(refused("there are two of this name".to_owned()));
            }
            let (info, found) = of_member(&archive, &file, &all.version, directory.base, &member)
                .map_err(refused)?;
            all.arrays.push(info);
            all.members.push(found);
        }
        Ok(all)
    }
}

fn of_member(
    archive: &Archive,
    file: &ArchiveFile,
    version: &FileVersion,
    base: u64,
    member: &ZipMember,
) -> std::result::Result<(ArrayInfo, Member), String> {
    if let Some(refusal) = member.refusal_in(file.len()) {
        return Err(refusal);
    }
    let name = std::str::from_utf8(&member.name).map_err(|_| "its name is not UTF-8")?;
    let mut head = Vec::new();
    member.append_to(file, base, HEADER_MAX_BYTES as u64, &mut head)?;
    let (info, header) = match name.strip_suffix(NPY) {
        Some(name) => describe(name, &head, member.size)?,
        None => describe(name, &[], member.size)?,
    };
    let (stored_size, crc32) = member.stored_size_and_crc32();
    let start = member.data(file, base)?;
    if start
        .checked_add(stored_size)
        .is_none_or(|end| end > file.len())
    {
        return Err("it reaches beyond the end of the archive".to_owned());
    }
    let place = Member {
        archive: archive.clone(),
        version: version.clone(),
        start,
        header,
        deflated: (!member.is_stored()).then_some(stored_size),
        check: Some((member.size, crc32)),
    };
    Ok((info, place))
}

/// Parses the header in `head` of a file of `size` bytes. Returns the array and the length of the header.
fn describe(name: &str, head: &[u8], size: u64) -> std::result::Result<(ArrayInfo, u64), String> {
    let info = |element, width, shape| ArrayInfo {
        name: name.to_owned(),
        element,
        width,
        is_big_endian: false,
        shape,
    };
    let other = |what: &str, shape| info(Element::Other(what.to_owned()), 0, shape);
    let Some(found) = Description::parse(head) else {
        let what =
            "is none of NumPy that is read: its header is another one, or it has a structured type";
        return Ok((other(what, Vec::new()), 0));
    };
    let header = found.len as u64;
    let characters = found
        .descr
        .get(2..)
        .and_then(|text| text.parse::<u32>().ok());
    let kind = found.descr.get(1..2).unwrap_or_default();
    let (element, width) = match (number_of(found.descr), kind, characters) {
        (Some(number), ..) => (Element::Number(number), number.bytes() as u64),
        (None, "U", Some(characters)) => (Element::Utf32, u64::from(characters) * 4),
        (None, "S", Some(bytes)) => (Element::Padded, u64::from(bytes)),
        (None, "O", _) => {
            let what =
                "has Python objects, which are pickled: reading them would execute what they say";
            return Ok((other(what, found.shape), header));
        }
        _ => {
            let what = format!(
                "has elements of type {:?}, which no column holds",
                found.descr
            );
            return Ok((other(&what, found.shape), header));
        }
    };
    let is_ordered = found.shape.iter().filter(|dim| **dim > 1).count() <= 1;
    if found.is_fortran && !is_ordered {
        let what = "is in Fortran's order: save numpy.ascontiguousarray of it";
        return Ok((other(what, found.shape), header));
    }
    let info = ArrayInfo {
        is_big_endian: found.is_big_endian(),
        ..info(element, width, found.shape)
    };
    let expected = info.all_bytes().and_then(|bytes| bytes.checked_add(header));
    if expected != Some(size) {
        return Err(format!(
            "the array {info} has not {size} bytes: it is damaged"
        ));
    }
    Ok((info, header))
}

impl ArrayFile for NpyFile {
    fn version(&self) -> &FileVersion {
        &self.version
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.arrays
    }

    fn rows(&self, array: usize, first: u64) -> Result<Box<dyn RowReader + '_>> {
        let (info, member) = (&self.arrays[array], &self.members[array]);
        let file = member.version.reopen(&member.archive)?;
        let start = member.start + member.header;
        let Some((size, crc32)) = member.check else {
            return Ok(Box::new(Contiguous::new(file, start, info, first)));
        };
        if member.deflated.is_none() && first > 0 {
            return Ok(Box::new(Contiguous::new(file, start, info, first)));
        }
        let piece = Piece {
            file,
            next: member.start,
            end: member.start + member.deflated.unwrap_or(size),
        };
        let piece = BufReader::with_capacity(PIECE_BYTES, piece);
        let input: Box<dyn Read> = match member.deflated {
            Some(_) => Box::new(DeflateDecoder::new(piece)),
            None => Box::new(piece),
        };
        let row_bytes = info.row_bytes().unwrap_or(0);
        let mut rows = MemberRows {
            input,
            row_bytes,
            crc: Crc::new(),
            left: size,
            crc32,
        };
        let mut before = member
            .header
            .saturating_add(first.saturating_mul(row_bytes));
        let mut skipped = Vec::new();
        while before > 0 {
            let len = before.min(PIECE_BYTES as u64);
            let read = rows.bytes(len, &mut skipped);
            read.map_err(|error| Error::io(&member.version.path, "read", error))?;
            skipped.clear();
            before -= len;
        }
        Ok(Box::new(rows))
    }
}

/// A part of a file.
struct Piece {
    file: ArchiveFile,
    next: u64,
    end: u64,
}

impl Read for Piece {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = (self.end - self.next).min(out.len() as u64) as usize;
        let read = self.file.read_at(&mut out[..len], self.next)?;
        self.next += read as u64;
        Ok(read)
    }
}

/// Rows of a member that is read from its beginning, so that its checksum can be verified at the end.
struct MemberRows {
    input: Box<dyn Read>,
    row_bytes: u64,
    crc: Crc,
    /// Number of bytes that are still to be read.
    left: u64,
    crc32: u32,
}

impl MemberRows {
    fn bytes(&mut self, bytes: u64, out: &mut Vec<u8>) -> io::Result<()> {
        let start = out.len();
        let read = (&mut self.input).take(bytes).read_to_end(out)? as u64;
        if read != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.crc.update(&out[start..]);
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 && self.crc.sum() != self.crc32 {
            let (found, said) = (self.crc.sum(), self.crc32);
            let what =
                format!("the CRC32 of its member is {found:08x}, the directory says {said:08x}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(())
    }
}

impl RowReader for MemberRows {
    fn read(&mut self, rows: u64, out: &mut Vec<u8>) -> io::Result<()> {
        self.bytes(rows.saturating_mul(self.row_bytes), out)
    }
}
