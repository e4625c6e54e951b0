//! Block codecs: how the frames of a block are stored.
//!
//! To add a codec, write a file that defines a [`BlockCodec`] and its constant `Codec::NAME`, add
//! a line to [`TABLE`], and describe its payload in FORMAT.md. Writers, readers, verification,
//! the pack and the command line take names, ids and feature bits from the table. The unit tests of
//! this crate cover every codec of [`Codec::all`].

mod lz4;
mod snappy;
mod zstd;

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Every codec that compresses. Ids and feature bits are part of the format: see FORMAT.md.
static TABLE: [BlockCodec; 3] = [zstd::CODEC, lz4::CODEC, snappy::CODEC];

/// One codec: its identity in files, its defaults and its implementation.
pub(crate) struct BlockCodec {
    /// The codec's number in block headers and indexes; never 0.
    id: u8,
    /// The name in manifests and on the command line.
    name: &'static str,
    /// The incompatible feature bit of shards that may contain such blocks.
    feature_bit: u32,
    /// Default size at which a block is closed. A reader has to expand a whole block for any of its
    /// records.
    default_block_bytes: usize,
    /// The supported levels; `None` for a codec without levels.
    levels: Option<Levels>,
    /// `None` if the crate was built without the feature of the same name.
    engine: Option<Engine>,
}

struct Levels {
    range: RangeInclusive<i32>,
    default: i32,
}

/// The two directions of a codec.
struct Engine {
    /// Returns a compressor for this level.
    compressor: fn(level: i32) -> io::Result<Compressor>,
    /// Replaces `out` by the expanded block, which must have exactly `raw_len` bytes. Never
    /// allocates more than that, whatever the input claims.
    decompress: fn(stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> io::Result<()>,
}

/// Appends the compressed form of a block to a buffer. Equal blocks must give equal bytes.
pub(crate) type Compressor = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> io::Result<()> + Send>;

/// How the blocks of an indexed shard are stored.
///
/// ```
/// use forebay_shard::Codec;
///
/// let names: Vec<&str> = Codec::all().map(Codec::name).collect();
/// assert_eq!(names[..2], ["none", "zstd"]);
/// assert_eq!("zstd".parse::<Codec>()?, Codec::ZSTD);
/// # Ok::<(), forebay_shard::Error>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Codec {
    id: u8,
}

impl Codec {
    /// Blocks are stored raw: best for JPEG and other compressed payloads, and the fastest to read.
    pub const NONE: Self = Self { id: 0 };

    /// Returns all codecs, [`NONE`](Self::NONE) first.
    pub fn all() -> impl Iterator<Item = Self> {
        let compressing = TABLE.iter().map(|codec| Self { id: codec.id });
        std::iter::once(Self::NONE).chain(compressing)
    }

    /// Returns the name, such as "none" or "zstd".
    pub fn name(self) -> &'static str {
        self.entry().map_or("none", |codec| codec.name)
    }

    /// Returns the range of levels, if the codec has levels.
    pub fn levels(self) -> Option<RangeInclusive<i32>> {
        let levels = self.entry()?.levels.as_ref()?;
        Some(levels.range.clone())
    }

    /// Returns the codec's number in files.
    pub(crate) fn id(self) -> u8 {
        self.id
    }

    pub(crate) fn from_id(id: u32) -> Option<Self> {
        Self::all().find(|codec| u32::from(codec.id) == id)
    }

    /// Returns the incompatible feature bit of shards that may contain such blocks.
    pub(crate) fn feature_bit(self) -> u32 {
        self.entry().map_or(0, |codec| codec.feature_bit)
    }

    /// Returns the default size at which a block is closed; for raw blocks the size of one write.
    pub(crate) fn default_block_bytes(self) -> usize {
        self.entry()
            .map_or(1 << 20, |codec| codec.default_block_bytes)
    }

    fn entry(self) -> Option<&'static BlockCodec> {
        TABLE.iter().find(|codec| codec.id == self.id)
    }

    /// Expands a block.
    pub(crate) fn decompress(
        self,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        match self.entry() {
            None => {
                out.clear();
                out.extend_from_slice(stored);
                Ok(())
            }
            Some(codec) => (codec.engine()?.decompress)(stored, raw_len, out),
        }
    }
}

impl BlockCodec {
    fn engine(&self) -> io::Result<&Engine> {
        self.engine.as_ref().ok_or_else(|| {
            let problem = format!(
                "forebay-shard was built without its feature `{}`",
                self.name
            );
            io::Error::new(io::ErrorKind::Unsupported, problem)
        })
    }
}

/// Returns the feature bits of all codecs.
pub(crate) fn feature_bits() -> u32 {
    TABLE.iter().fold(0, |bits, codec| bits | codec.feature_bit)
}

/// Returns every codec with its id, for messages: "0 (none) or 1 (zstd)".
pub(crate) fn known_ids() -> String {
    let known = Codec::all().map(|codec| format!("{} ({codec})", codec.id));
    alternatives(&known.collect::<Vec<_>>())
}

/// Joins words: "a, b or c".
fn alternatives(words: &[String]) -> String {
    match words {
        [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        _ => words.concat(),
    }
}

/// Refuses a file whose feature bits need a codec that this build lacks.
pub(crate) fn check_built(path: &Path, incompatible: u32) -> Result<()> {
    let needed = |codec: &&BlockCodec| codec.feature_bit & incompatible != 0;
    match TABLE
        .iter()
        .filter(needed)
        .find(|codec| codec.engine.is_none())
    {
        None => Ok(()),
        Some(codec) => Err(Error::not_built(path, codec.name)),
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Codec {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::all()
            .find(|codec| codec.name() == name)
            .ok_or_else(|| {
                let names: Vec<String> = Self::all().map(|codec| codec.to_string()).collect();
                Error::invalid(format!("no codec {name:?}: use {}", alternatives(&names)))
            })
    }
}

/// A codec and, where the codec has levels, a level: how a writer compresses blocks.
///
/// The text form is `none`, or `zstd:3` for a codec with levels. Parsing accepts `zstd` for the
/// default level.
///
/// ```
/// use forebay_shard::{BlockCompression, Codec};
///
/// let compression: BlockCompression = "zstd".parse()?;
/// assert_eq!(compression, Codec::ZSTD.into());
/// assert_eq!(compression.to_string(), "zstd:3");
/// assert!("zstd:23".parse::<BlockCompression>().is_err());
/// # Ok::<(), forebay_shard::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BlockCompression {
    codec: Codec,
    /// 0 for a codec without levels.
    level: i32,
}

impl BlockCompression {
    /// Blocks are stored raw.
    pub const NONE: Self = Self {
        codec: Codec::NONE,
        level: 0,
    };

    /// Returns this codec at this level.
    ///
    /// # Errors
    /// If the codec does not support the level.
    pub fn new(codec: Codec, level: i32) -> Result<Self> {
        match codec.levels() {
            Some(levels) if levels.contains(&level) => Ok(Self { codec, level }),
            Some(levels) => Err(Error::invalid(format!(
                "{codec} levels are {} to {}, not {level}",
                levels.start(),
                levels.end()
            ))),
            None => Err(Error::invalid(format!("{codec} has no levels"))),
        }
    }

    /// Returns the codec.
    pub fn codec(self) -> Codec {
        self.codec
    }

    /// Returns the level; 0 for a codec without levels.
    pub fn level(self) -> i32 {
        self.level
    }

    /// Returns the accepted texts, for help and messages: "none, zstd or zstd:LEVEL".
    pub fn choices() -> String {
        let mut choices = Vec::new();
        for codec in Codec::all() {
            choices.push(codec.to_string());
            if codec.levels().is_some() {
                choices.push(format!("{codec}:LEVEL"));
            }
        }
        alternatives(&choices)
    }

    /// Returns a compressor; `None` for raw blocks.
    pub(crate) fn compressor(self) -> io::Result<Option<Compressor>> {
        let entry = self.codec.entry();
        entry
            .map(|codec| (codec.engine()?.compressor)(self.level))
            .transpose()
    }
}

impl From<Codec> for BlockCompression {
    /// Returns the codec at its default level.
    fn from(codec: Codec) -> Self {
        let levels = codec.entry().and_then(|codec| codec.levels.as_ref());
        let level = levels.map_or(0, |levels| levels.default);
        Self { codec, level }
    }
}

impl fmt::Display for BlockCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.codec.levels() {
            Some(_) => write!(f, "{}:{}", self.codec, self.level),
            None => write!(f, "{}", self.codec),
        }
    }
}

impl FromStr for BlockCompression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let codec: Codec = name.parse()?;
        let Some(level) = level else {
            return Ok(codec.into());
        };
        let number = level.parse().map_err(|_| {
            Error::invalid(format!("the level of {codec} is not a number: {level:?}"))
        })?;
        Self::new(codec, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the behavior that every codec must have.
    fn suite(codec: Codec) {
        assert_eq!(Codec::from_id(codec.id().into()), Some(codec));
        assert_eq!(codec.name().parse::<Codec>().unwrap(), codec);
        let compression = BlockCompression::from(codec);
        assert_eq!(compression.to_string().parse().ok(), Some(compression));
        if check_built(Path::new("x"), codec.feature_bit()).is_err() {
            return assert!(compression.compressor().is_err());
        }
        let Some(mut compress) = compression.compressor().unwrap() else {
            return;
        };
        for raw in [&b""[..], b"a", &[0; 100_000]] {
            let mut stored = b"kept".to_vec();
            compress(raw, &mut stored).unwrap();
            let stored = stored.strip_prefix(b"kept").unwrap();
            let mut again = Vec::new();
            compress(raw, &mut again).unwrap();
            assert_eq!(stored, again, "{codec} is not deterministic");
            let mut out = b"old".to_vec();
            codec.decompress(stored, raw.len(), &mut out).unwrap();
            assert_eq!(out, raw);
            let refused = |stored: &[u8], raw_len: usize| {
                let mut out = Vec::new();
                codec.decompress(stored, raw_len, &mut out).unwrap_err();
                assert!(out.capacity() <= 2 * raw_len.max(64), "{codec} allocates");
            };
            refused(stored, raw.len() + 1);
            if let Some(less) = raw.len().checked_sub(1) {
                refused(stored, less);
            }
            refused(&stored[..stored.len() - 1], raw.len());
            refused(b"no block of any codec", raw.len());
        }
    }

    #[test]
    fn every_codec_passes_the_suite() {
        Codec::all().for_each(suite);
    }

    #[test]
    fn ids_names_and_feature_bits_are_distinct() {
        let mut bits = 0;
        for (number, codec) in TABLE.iter().enumerate() {
            assert_eq!(codec.feature_bit.count_ones(), 1, "{}", codec.name);
            assert_eq!(bits & codec.feature_bit, 0, "{}", codec.name);
            bits |= codec.feature_bit;
            assert_ne!(codec.id, 0, "{}", codec.name);
            let others = &TABLE[..number];
            assert!(others.iter().all(|other| other.id != codec.id));
            assert!(others.iter().all(|other| other.name != codec.name));
        }
        assert_eq!(Codec::from_id(255), None);
    }

    #[test]
    fn compression_is_parsed_with_its_level() {
        let level = |text: &str| text.parse::<BlockCompression>().map(|c| c.level);
        assert_eq!(level("none").unwrap(), 0);
        assert_eq!(level("zstd").unwrap(), 3);
        assert_eq!(level("zstd:22").unwrap(), 22);
        for wrong in [
            "",
            "none:1",
            "zstd:",
            "zstd:0",
            "zstd:23",
            "zstd:fast",
            "lzma",
        ] {
            assert!(level(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_missing_codec_names_its_cargo_feature() {
        let codec = BlockCodec {
            engine: None,
            ..zstd::CODEC
        };
        let error = codec.engine().err().unwrap();
        assert!(error.to_string().contains("feature `zstd`"), "{error}");
    }
}
