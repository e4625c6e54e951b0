//! Whole-file GZIP and ZLIB compression, as in TensorFlow's TFRecordOptions.

use std::fmt;
use std::io::{self, Read, Write};
#[cfg(feature = "gzip")]
use std::io::{BufRead, BufReader};
use std::str::FromStr;

#[cfg(feature = "gzip")]
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
#[cfg(feature = "gzip")]
use flate2::write::{GzEncoder, ZlibEncoder};
use serde::{Deserialize, Serialize};

use crate::checksum::Crc32c;
use crate::error::Error;
use crate::frame::{HEAD_BYTES, decode_head};

/// Whole-file compression of a TFRecord.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Compression {
    /// Uncompressed frames.
    #[default]
    None,
    /// RFC 1952.
    Gzip,
    /// RFC 1950.
    Zlib,
}

impl Compression {
    /// Detects the compression of a file by its first bytes: at least 12, unless the file is shorter.
    /// Bytes that are neither a frame nor one of the two formats count as uncompressed, so that the
    /// reader of frames reports the error.
    pub fn detect(start: &[u8]) -> Self {
        let frame = start.first_chunk::<HEAD_BYTES>();
        if frame.is_some_and(|head| decode_head(head, 0).is_ok()) {
            return Self::None;
        }
        match *start {
            [0x1f, 0x8b, 8, ..] => Self::Gzip,
            // RFC 1950: deflate, a window of at most 32 KiB, valid check bits.
            [
                cmf @ (0x08 | 0x18 | 0x28 | 0x38 | 0x48 | 0x58 | 0x68 | 0x78),
                flags,
                ..,
            ] if (u16::from(cmf) << 8 | u16::from(flags)) % 31 == 0 && flags & 0x20 == 0 => {
                Self::Zlib
            }
            _ => Self::None,
        }
    }

    /// Returns its name: "none", "gzip", "zlib".
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        match name {
            "none" => Ok(Self::None),
            "gzip" => Ok(Self::Gzip),
            "zlib" => Ok(Self::Zlib),
            _ => Err(Error::invalid(format!(
                "no compression {name:?}: there are none, gzip and zlib"
            ))),
        }
    }
}

#[cfg(not(feature = "gzip"))]
fn not_built() -> io::Error {
    let problem = "forebay-shard was built without its feature `gzip`";
    io::Error::new(io::ErrorKind::Unsupported, problem)
}

/// Decompresses a reader.
pub(crate) enum Decoder<R: Read> {
    Plain(R),
    #[cfg(feature = "gzip")]
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
    #[cfg(feature = "gzip")]
    Zlib(Box<ZlibDecoder<BufReader<R>>>),
}

#[cfg(feature = "gzip")]
const COMPRESSED_BUFFER_BYTES: usize = 64 << 10;

impl<R: Read> Decoder<R> {
    pub(crate) fn new(compression: Compression, reader: R) -> io::Result<Self> {
        #[cfg(feature = "gzip")]
        let buffered = |reader| BufReader::with_capacity(COMPRESSED_BUFFER_BYTES, reader);
        Ok(match compression {
            Compression::None => Self::Plain(reader),
            #[cfg(feature = "gzip")]
            Compression::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(buffered(reader)))),
            #[cfg(feature = "gzip")]
            Compression::Zlib => Self::Zlib(Box::new(ZlibDecoder::new(buffered(reader)))),
            #[cfg(not(feature = "gzip"))]
            _ => return Err(not_built()),
        })
    }

    pub(crate) fn compression(&self) -> Compression {
        match self {
            Self::Plain(_) => Compression::None,
            #[cfg(feature = "gzip")]
            Self::Gzip(_) => Compression::Gzip,
            #[cfg(feature = "gzip")]
            Self::Zlib(_) => Compression::Zlib,
        }
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(buf),
            #[cfg(feature = "gzip")]
            Self::Gzip(reader) => reader.read(buf),
            #[cfg(feature = "gzip")]
            Self::Zlib(reader) => {
                let read = reader.read(buf)?;
                // The compressed stream has ended, so the file must end too.
                if read == 0 && !buf.is_empty() && !reader.get_mut().fill_buf()?.is_empty() {
                    let problem = "bytes follow the end of the zlib stream";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
                }
                Ok(read)
            }
        }
    }
}

/// Computes the checksum of bytes written through it.
#[derive(Debug)]
pub(crate) struct Summed<W> {
    pub(crate) inner: W,
    pub(crate) sum: Crc32c,
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(buf)?;
        self.sum.update(buf.get(..written).unwrap_or(buf));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Compresses bytes for a writer. The GZIP header contains neither time nor name, so equal records give
/// equal files.
#[derive(Debug)]
pub(crate) enum Encoder<W: Write> {
    Plain(Summed<W>),
    #[cfg(feature = "gzip")]
    Gzip(GzEncoder<Summed<W>>),
    #[cfg(feature = "gzip")]
    Zlib(ZlibEncoder<Summed<W>>),
    /// Every write fails, because the build lacks the feature.
    #[cfg(not(feature = "gzip"))]
    NotBuilt,
}

impl<W: Write> Encoder<W> {
    #[cfg_attr(not(feature = "gzip"), allow(unused_variables))]
    pub(crate) fn new(compression: Compression, level: u32, inner: W) -> Self {
        let summed = Summed {
            inner,
            sum: Crc32c::default(),
        };
        #[cfg(feature = "gzip")]
        let level = flate2::Compression::new(level);
        match compression {
            Compression::None => Self::Plain(summed),
            #[cfg(feature = "gzip")]
            Compression::Gzip => Self::Gzip(GzEncoder::new(summed, level)),
            #[cfg(feature = "gzip")]
            Compression::Zlib => Self::Zlib(ZlibEncoder::new(summed, level)),
            #[cfg(not(feature = "gzip"))]
            _ => Self::NotBuilt,
        }
    }

    /// Writes bytes, whose checksum is used if they are written uncompressed.
    pub(crate) fn write_summed(&mut self, bytes: &[u8], sum: Crc32c) -> io::Result<()> {
        match self {
            Self::Plain(plain) => {
                plain.inner.write_all(bytes)?;
                plain.sum.combine(sum.value(), sum.len());
                Ok(())
            }
            #[cfg(feature = "gzip")]
            Self::Gzip(encoder) => encoder.write_all(bytes),
            #[cfg(feature = "gzip")]
            Self::Zlib(encoder) => encoder.write_all(bytes),
            #[cfg(not(feature = "gzip"))]
            Self::NotBuilt => Err(not_built()),
        }
    }

    /// Ends the stream, and returns the writer and the checksum of the file.
    pub(crate) fn finish(self) -> io::Result<(W, Crc32c)> {
        let mut summed = match self {
            Self::Plain(summed) => summed,
            #[cfg(feature = "gzip")]
            Self::Gzip(encoder) => encoder.finish()?,
            #[cfg(feature = "gzip")]
            Self::Zlib(encoder) => encoder.finish()?,
            #[cfg(not(feature = "gzip"))]
            Self::NotBuilt => return Err(not_built()),
        };
        summed.inner.flush()?;
        Ok((summed.inner, summed.sum))
    }
}
