//! Block codecs: how the frames of a block are stored.
//!
//! To add one: a file here that implements [`BlockCodec`], and a line in
//! [`Codec`], `TABLE` and the test that runs the suite over all of them. A
//! codec that old readers cannot read also needs a feature bit in
//! `index/layout.rs`.

mod zstd;

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// How blocks of an indexed shard are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// As they are: right for JPEG and other compressed payloads, and the
    /// fastest to read.
    #[default]
    None,
    /// Compressed with Zstandard, where that makes a block smaller.
    Zstd,
}

/// Every codec, with the byte that names it in files.
const TABLE: [(Codec, u8, &str); 2] = [(Codec::None, 0, "none"), (Codec::Zstd, 1, "zstd")];

/// Compresses and decompresses whole blocks.
pub(crate) trait BlockCodec {
    /// Appends the compressed form of `raw` to `out`.
    fn compress(&mut self, raw: &[u8], out: &mut Vec<u8>) -> std::io::Result<()>;

    /// Replaces `out` by what `stored` expands to, which must be exactly
    /// `raw_len` bytes: never more is allocated.
    fn decompress(
        &mut self,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> std::io::Result<()>;
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 2] = [Self::None, Self::Zstd];

    /// The byte that names it in files.
    pub(crate) fn code(self) -> u8 {
        TABLE
            .iter()
            .find(|row| row.0 == self)
            .map_or(0, |row| row.1)
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == code).map(|row| row.0)
    }

    /// Its name: "none", "zstd".
    pub fn name(self) -> &'static str {
        TABLE
            .iter()
            .find(|row| row.0 == self)
            .map_or("", |row| row.2)
    }

    /// A compressor of this codec; `None` for blocks stored as they are.
    pub(crate) fn compressor(
        self,
        level: i32,
    ) -> std::io::Result<Option<Box<dyn BlockCodec + Send>>> {
        Ok(match self {
            Self::None => None,
            Self::Zstd => Some(Box::new(zstd::Zstd::new(level)?)),
        })
    }

    /// Expands a block with this thread's decompressor.
    pub(crate) fn decompress(
        self,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        match self {
            Self::None => {
                out.clear();
                out.extend_from_slice(stored);
                Ok(())
            }
            Self::Zstd => zstd::with_thread_codec(|zstd| zstd.decompress(stored, raw_len, out)),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Codec {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let row = TABLE.iter().find(|row| row.2 == name);
        row.map(|row| row.0)
            .ok_or_else(|| Error::invalid(format!("no codec {name:?}: there are none and zstd")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every codec has to do.
    fn suite(codec: Codec) {
        assert_eq!(Codec::from_code(codec.code()), Some(codec));
        assert_eq!(codec.name().parse::<Codec>().unwrap(), codec);
        let Some(mut compressor) = codec.compressor(3).unwrap() else {
            return;
        };
        for raw in [&b""[..], b"a", &[0; 100_000]] {
            let mut stored = b"kept".to_vec();
            compressor.compress(raw, &mut stored).unwrap();
            let stored = stored.strip_prefix(b"kept").unwrap();
            let mut again = Vec::new();
            compressor.compress(raw, &mut again).unwrap();
            assert_eq!(stored, again, "{codec} is not deterministic");
            let mut out = b"old".to_vec();
            codec.decompress(stored, raw.len(), &mut out).unwrap();
            assert_eq!(out, raw);
            codec
                .decompress(stored, raw.len() + 1, &mut out)
                .unwrap_err();
            if let Some(less) = raw.len().checked_sub(1) {
                codec.decompress(stored, less, &mut out).unwrap_err();
            }
            codec
                .decompress(&stored[..stored.len() - 1], raw.len(), &mut out)
                .unwrap_err();
            codec
                .decompress(b"no block of any codec", raw.len(), &mut out)
                .unwrap_err();
        }
    }

    #[test]
    fn every_codec_passes_the_suite() {
        Codec::ALL.into_iter().for_each(suite);
        assert_eq!(Codec::ALL.map(Codec::code), [0, 1]);
        assert_eq!(Codec::from_code(2), None);
    }
}
