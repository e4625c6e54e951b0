//! The fixed-size pieces of `.fbs` and `.fbi` files, as specified in FORMAT.md: header, block
//! header, index head, trailer.
//!
//! All integers are little-endian, reserved bytes are zero and checked, and each piece ends with,
//! or is covered by, a CRC32C.

use std::path::Path;

use crate::checksum::crc32c;
use crate::codec::{self, Codec};
use crate::error::{Corruption, Error, Result};

/// Length of the file header, the block header, the index head and the trailer.
pub const PIECE_BYTES: usize = 64;
/// Raw blocks start at multiples of this offset.
pub const BLOCK_ALIGN: u64 = 4096;
/// Number of keys per page.
pub const KEY_PAGE_RECORDS: u64 = 256;
/// Length of a block's entry in the index.
pub(crate) const BLOCK_ENTRY_BYTES: u64 = 32;
/// The format version that is written, and the newest that is supported.
pub const FORMAT_VERSION: u32 = 1;

/// The incompatible feature bit of mapped shards that store the version of their source.
pub(crate) const SOURCE_VERSION_BIT: u32 = 1 << 16;

pub(crate) const BLOCK_MAGIC: [u8; 4] = *b"FBBK";
const INDEX_MAGIC: [u8; 4] = *b"FBIX";

/// The kinds of files that contain these pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// An indexed shard: data, then its index.
    Shard,
    /// An index of a TFRecord file.
    Sidecar,
    /// A mapped shard: the locations of its frames in a source, followed by its index.
    Map,
}

impl FileKind {
    /// First and last eight bytes of the file. They contain a non-ASCII byte and both line endings,
    /// as in PNG, which reveals damage by text-mode transfers.
    pub const fn magic(self) -> [u8; 8] {
        match self {
            Self::Shard => *b"\x89FBS\r\n\x1a\n",
            Self::Sidecar => *b"\x89FBI\r\n\x1a\n",
            Self::Map => *b"\x89FBM\r\n\x1a\n",
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shard => "shard",
            Self::Sidecar => "index",
            Self::Map => "mapped shard",
        }
    }

    /// Returns the number that stands for this kind of indexed data in the index head.
    const fn code(self) -> u32 {
        match self {
            Self::Shard => 1,
            Self::Sidecar => 2,
            Self::Map => 3,
        }
    }
}

/// Feature flags of a file. Unknown compatible bits are ignored; unknown incompatible bits are
/// refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// A reader that does not know one of these bits still reads everything correctly.
    pub compatible: u32,
    /// A reader that does not know one of these bits must not read the file.
    pub incompatible: u32,
}

/// Takes fields from the front of a piece whose length has been checked.
pub(crate) struct Take<'a>(pub(crate) &'a [u8]);

impl Take<'_> {
    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((front, rest)) => {
                self.0 = rest;
                *front
            }
            None => {
                self.0 = &[];
                [0; N]
            }
        }
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

type Piece = [u8; PIECE_BYTES];

/// Writes fields into a piece, front to back.
struct Put {
    piece: Piece,
    at: usize,
}

impl Put {
    fn new() -> Self {
        Self {
            piece: [0; PIECE_BYTES],
            at: 0,
        }
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.piece[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Writes the checksum of everything before it at `at`.
    fn sealed(mut self, at: usize) -> Piece {
        let crc = crc32c(&self.piece[..at]);
        self.piece[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        self.piece
    }
}

/// Checks the checksum at `at` of a piece.
fn check_seal(piece: &Piece, at: usize, offset: u64, what: &str) -> Result<(), Corruption> {
    let stored = Take(&piece[at..]).u32();
    let found = crc32c(&piece[..at]);
    if stored != found {
        return Err(Corruption::checksum(offset, what, stored, found));
    }
    Ok(())
}

fn check_zero(bytes: &[u8], offset: u64, what: &str) -> Result<(), Corruption> {
    match bytes.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(Corruption::new(
            offset + at as u64,
            what,
            "0x00",
            format_args!("{:#04x}", bytes[at]),
        )),
    }
}

fn check_magic<const N: usize>(
    found: [u8; N],
    expected: [u8; N],
    offset: u64,
    what: &str,
) -> Result<(), Corruption> {
    if found == expected {
        return Ok(());
    }
    Err(Corruption::new(
        offset,
        what,
        escape(&expected),
        escape(&found),
    ))
}

fn escape(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

/// Refuses versions and features that this release does not know. Called after the piece's checksum
/// was verified, so an unknown version is not the result of damage.
fn check_version(path: &Path, kind: FileKind, version: u32, features: Features) -> Result<()> {
    if version != FORMAT_VERSION {
        return Err(Error::Version {
            path: path.to_owned(),
            what: kind.name(),
            found: u64::from(version),
            supported: u64::from(FORMAT_VERSION),
        });
    }
    let known = match kind {
        FileKind::Map => SOURCE_VERSION_BIT,
        FileKind::Shard | FileKind::Sidecar => codec::feature_bits(),
    };
    let unknown = features.incompatible & !known;
    if unknown != 0 {
        return Err(Error::Feature {
            path: path.to_owned(),
            what: kind.name(),
            feature: format!("feature bits {unknown:#x}"),
        });
    }
    codec::check_built(path, features.incompatible)
}

/// The first 64 bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FileKind,
    pub(crate) features: Features,
}

impl Header {
    pub(crate) fn encode(self) -> Piece {
        let align = if self.kind == FileKind::Shard {
            BLOCK_ALIGN as u32
        } else {
            0
        };
        Put::new()
            .bytes(&self.kind.magic())
            .u32(FORMAT_VERSION)
            .u32(self.features.compatible)
            .u32(self.features.incompatible)
            .u32(align)
            .sealed(60)
    }

    pub(crate) fn decode(piece: &Piece, kind: FileKind, path: &Path) -> Result<Self> {
        let mut take = Take(piece);
        check_magic(take.array(), kind.magic(), 0, "magic").map_err(|c| c.shard(path))?;
        check_seal(piece, 60, 0, "header crc32c").map_err(|c| c.shard(path))?;
        let version = take.u32();
        let features = Features {
            compatible: take.u32(),
            incompatible: take.u32(),
        };
        check_version(path, kind, version, features)?;
        let header = Self { kind, features };
        if header.encode() != *piece {
            let rest = Corruption::new(20, "header", "the fields of version 1", "others");
            return Err(rest.shard(path).into());
        }
        Ok(header)
    }
}

impl Codec {
    /// Returns the codec named by the feature bits in the header of an indexed shard; `None` if the
    /// bytes are not such a header.
    pub fn of_shard(header: &[u8; PIECE_BYTES]) -> Option<Self> {
        // The rest of the header may be damaged: it is not verified.
        let mut take = Take(header.strip_prefix(&FileKind::Shard.magic())?);
        let (_version, _compatible, bits) = (take.u32(), take.u32(), take.u32());
        let named = Self::all().find(|codec| codec.feature_bit() & bits != 0);
        Some(named.unwrap_or_default())
    }
}

/// The 64 bytes before the payload of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) codec: Codec,
    pub(crate) records: u32,
    pub(crate) first_record: u64,
    /// Checksum of the payload as stored.
    pub(crate) crc: u32,
    pub(crate) stored_len: u64,
    pub(crate) raw_len: u64,
    /// Offset of the first frame in the concatenated frames of all blocks.
    pub(crate) logical: u64,
}

impl BlockHeader {
    pub(crate) fn encode(&self) -> Piece {
        Put::new()
            .bytes(&BLOCK_MAGIC)
            .u32(u32::from(self.codec.id()))
            .u64(self.first_record)
            .u64(self.logical)
            .u64(self.stored_len)
            .u64(self.raw_len)
            .u32(self.records)
            .u32(self.crc)
            .sealed(60)
    }

    pub(crate) fn decode(piece: &Piece, offset: u64) -> Result<Self, Corruption> {
        let mut take = Take(piece);
        check_magic(take.array(), BLOCK_MAGIC, offset, "block magic")?;
        check_seal(piece, 60, offset, "block header crc32c")?;
        let code = take.u32();
        let codec = Codec::from_id(code)
            .ok_or_else(|| Corruption::new(offset + 4, "block codec", codec::known_ids(), code))?;
        let (first_record, logical) = (take.u64(), take.u64());
        let (stored_len, raw_len) = (take.u64(), take.u64());
        let (records, crc) = (take.u32(), take.u32());
        check_zero(&piece[48..60], offset + 48, "block header's reserved byte")?;
        Ok(Self {
            codec,
            records,
            first_record,
            crc,
            stored_len,
            raw_len,
            logical,
        })
    }
}

/// The head of an index: the data that it indexes, and the length of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexHead {
    pub(crate) kind: FileKind,
    pub(crate) records: u64,
    pub(crate) blocks: u64,
    /// Length of the indexed data: of the TFRecord file, or of everything before the keys of an
    /// indexed shard.
    pub(crate) data_len: u64,
    /// CRC32C of the indexed data.
    pub(crate) data_crc: u32,
    /// Offset of the key pages in this file.
    pub(crate) keys_offset: u64,
    pub(crate) keys_len: u64,
    /// CRC32C of the key pages.
    pub(crate) keys_crc: u32,
    /// Whether records have keys.
    pub(crate) keys: bool,
}

impl IndexHead {
    pub(crate) fn encode(&self) -> Piece {
        Put::new()
            .bytes(&INDEX_MAGIC)
            .u32(self.kind.code())
            .u64(self.records)
            .u64(self.blocks)
            .u64(self.data_len)
            .u64(self.keys_offset)
            .u64(self.keys_len)
            .u32(if self.keys {
                KEY_PAGE_RECORDS as u32
            } else {
                0
            })
            .u32(self.data_crc)
            .u32(self.keys_crc)
            .piece
    }

    /// The caller has verified the index's checksum.
    pub(crate) fn decode(piece: &Piece, kind: FileKind, offset: u64) -> Result<Self, Corruption> {
        let mut take = Take(piece);
        check_magic(take.array(), INDEX_MAGIC, offset, "index magic")?;
        let code = take.u32();
        if code != kind.code() {
            return Err(Corruption::new(
                offset + 4,
                "kind of indexed data",
                kind.code(),
                code,
            ));
        }
        let (records, blocks, data_len) = (take.u64(), take.u64(), take.u64());
        let (keys_offset, keys_len) = (take.u64(), take.u64());
        let page = take.u32();
        let (data_crc, keys_crc) = (take.u32(), take.u32());
        if page != 0 && u64::from(page) != KEY_PAGE_RECORDS {
            return Err(Corruption::new(
                offset + 48,
                "records a key page",
                "0 or 256",
                page,
            ));
        }
        check_zero(&piece[60..], offset + 60, "index head's reserved byte")?;
        Ok(Self {
            kind,
            records,
            blocks,
            data_len,
            data_crc,
            keys_offset,
            keys_len,
            keys_crc,
            keys: page != 0,
        })
    }
}

/// The last 64 bytes of a file, with the position of its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) kind: FileKind,
    pub(crate) features: Features,
    pub(crate) index_offset: u64,
    pub(crate) index_len: u64,
    pub(crate) index_crc: u32,
    /// Length of the whole file, to detect truncated or extended files.
    pub(crate) file_len: u64,
}

impl Trailer {
    pub(crate) fn encode(&self) -> Piece {
        let mut piece = Put::new()
            .u64(self.index_offset)
            .u64(self.index_len)
            .u64(self.file_len)
            .u32(self.index_crc)
            .u32(FORMAT_VERSION)
            .u32(self.features.compatible)
            .u32(self.features.incompatible)
            .sealed(52);
        piece[56..].copy_from_slice(&self.kind.magic());
        piece
    }

    /// Decodes the trailer of a file of `file_len` bytes.
    pub(crate) fn decode(
        piece: &Piece,
        kind: FileKind,
        file_len: u64,
        path: &Path,
    ) -> Result<Self> {
        let offset = file_len.saturating_sub(PIECE_BYTES as u64);
        let mut take = Take(&piece[56..]);
        check_magic(
            take.array(),
            kind.magic(),
            offset + 56,
            "magic of the trailer",
        )
        .map_err(|c| c.shard(path))?;
        check_seal(piece, 52, offset, "trailer crc32c").map_err(|c| c.shard(path))?;
        let mut take = Take(piece);
        let (index_offset, index_len, stored_len) = (take.u64(), take.u64(), take.u64());
        let (index_crc, version) = (take.u32(), take.u32());
        let features = Features {
            compatible: take.u32(),
            incompatible: take.u32(),
        };
        check_version(path, kind, version, features)?;
        let at = |corruption: Corruption| corruption.shard(path);
        check_zero(&piece[40..52], offset + 40, "trailer's reserved byte").map_err(at)?;
        if stored_len != file_len {
            return Err(at(Corruption::new(
                offset + 16,
                "file length",
                stored_len,
                file_len,
            ))
            .into());
        }
        let end = index_offset.checked_add(index_len);
        if end != Some(offset) || index_len < PIECE_BYTES as u64 {
            let found = format_args!("bytes {index_offset} to {index_offset} + {index_len}");
            return Err(at(Corruption::new(
                offset,
                "place of the index",
                format_args!("an index that ends at byte {offset}"),
                found,
            ))
            .into());
        }
        Ok(Self {
            kind,
            features,
            index_offset,
            index_len,
            index_crc,
            file_len,
        })
    }
}
