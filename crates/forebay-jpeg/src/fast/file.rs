//! The parts of a fast image: a header, the JPEG without its scan, and tiles.

use super::control::SETS;
use super::damaged;
use super::tile::WIDTH;
pub(super) use crate::encoding::FAST_HEADER as HEADER;
use crate::encoding::{Encoding, FAST_MAGIC as MAGIC};
use crate::error::{Error, Result};

const VERSION: u8 = 1;
/// Maximum length of an original in bytes: the maximum length of a record.
pub(super) const MAX_JPEG: usize = 256 << 20;

/// An entry of the table of tile lengths.
pub(super) type TileLength = [u8; 2];

/// A fast image.
#[derive(Debug, Clone, Copy)]
pub(super) struct File<'a> {
    /// The set of tables of the control bytes, if they are coded.
    pub(super) set: Option<usize>,
    /// Length and CRC32C of the JPEG.
    pub(super) jpeg: (usize, u32),
    /// The parts of the JPEG before and after its scan.
    pub(super) head: &'a [u8],
    pub(super) tail: &'a [u8],
    /// Lengths of the tiles.
    pub(super) lengths: &'a [TileLength],
    pub(super) tiles: &'a [u8],
}

/// Returns the number of MCUs in a tile, if the first component has `h` blocks per row of an MCU: 1, 2 or 4.
pub(super) fn tile_mcus(h: usize) -> usize {
    WIDTH / h
}

/// Reads the fixed header and the JPEG's head from a whole file or a prefix. Returns the header,
/// the head and the remaining bytes.
fn split_head(bytes: &[u8]) -> Result<([u8; HEADER], &[u8], &[u8])> {
    let incomplete = |needed: usize| Error::Incomplete {
        format: Encoding::Fast.name(),
        needed: needed as u64,
        found: bytes.len() as u64,
    };
    let header = bytes.split_first_chunk::<HEADER>();
    let (header, rest) = header.ok_or_else(|| incomplete(HEADER))?;
    if !header.starts_with(&MAGIC) {
        return Err(damaged("it does not begin as a fast image"));
    }
    let (version, set, reserved) = (header[4], header[5], &header[6..8]);
    if version != VERSION || usize::from(set) > SETS {
        let what = format!("version {version} with table set {set}");
        return Err(Error::unsupported(Encoding::Fast, what));
    }
    if reserved != [0; 2] {
        return Err(damaged("bytes 6 and 7 are not zero"));
    }
    let length = number(header, 16);
    if length > MAX_JPEG {
        return Err(damaged("the head is too long"));
    }
    match rest.split_at_checked(length) {
        Some((head, rest)) => Ok((*header, head, rest)),
        None => Err(incomplete(HEADER + length)),
    }
}

/// Returns the JPEG up to its scan, from a whole file or a prefix. The checksum is not verified.
pub(super) fn head(bytes: &[u8]) -> Result<&[u8]> {
    split_head(bytes).map(|(_, head, _)| head)
}

fn number(header: &[u8; HEADER], at: usize) -> usize {
    u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i])) as usize
}

impl<'a> File<'a> {
    /// Reads a whole file and verifies its checksum.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        let cut = || Error::truncated(Encoding::Fast, "the tables before the tiles");
        let (header, head, rest) = split_head(bytes)?;
        let length = number(&header, 8);
        if length > MAX_JPEG {
            return Err(damaged("the JPEG is too long"));
        }
        let (tail, rest) = rest.split_at_checked(number(&header, 20)).ok_or_else(cut)?;
        let table = number(&header, 24).saturating_mul(size_of::<TileLength>());
        let (lengths, tiles) = rest.split_at_checked(table).ok_or_else(cut)?;
        let tables = &bytes[HEADER..bytes.len() - tiles.len()];
        let sum = crc32c::crc32c_append(crc32c::crc32c(&header[..28]), tables);
        if sum as usize != number(&header, 28) {
            return Err(damaged("the checksum of the header does not match"));
        }
        let (lengths, _) = lengths.as_chunks();
        let total: u64 = lengths
            .iter()
            .map(|n| u64::from(u16::from_le_bytes(*n)))
            .sum();
        if total > tiles.len() as u64 {
            return Err(Error::truncated(Encoding::Fast, "the tiles"));
        }
        if total < tiles.len() as u64 {
            return Err(damaged("bytes follow the last tile"));
        }
        Ok(Self {
            set: usize::from(header[5]).checked_sub(1),
            jpeg: (length, number(&header, 12) as u32),
            head,
            tail,
            lengths,
            tiles,
        })
    }

    /// Appends the file. Returns `None` if a length does not fit into its field.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        let set = self.set.map_or(0, |set| set as u8 + 1);
        out.extend_from_slice(&[VERSION, set, 0, 0]);
        let numbers = [
            self.jpeg.0,
            self.jpeg.1 as usize,
            self.head.len(),
            self.tail.len(),
            self.lengths.len(),
        ];
        for number in numbers {
            out.extend_from_slice(&u32::try_from(number).ok()?.to_le_bytes());
        }
        let mut sum = crc32c::crc32c(&out[start..]);
        let lengths = self.lengths.as_flattened();
        for part in [self.head, self.tail, lengths] {
            sum = crc32c::crc32c_append(sum, part);
        }
        out.extend_from_slice(&sum.to_le_bytes());
        for part in [self.head, self.tail, lengths, self.tiles] {
            out.extend_from_slice(part);
        }
        Some(())
    }
}
