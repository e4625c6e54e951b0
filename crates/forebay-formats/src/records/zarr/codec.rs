//! Decodes the codecs of Zarr chunks.

use crate::records::blosc;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use serde_json::Value;
use std::io::Read;

/// Most output per input byte of LZ4: one byte extends a match by up to 255 bytes.
const LZ4_MOST: usize = 256;
/// Bytes that a codec may add to a chunk: checksums, and frame headers of incompressible data.
const OVERHEAD_BYTES: usize = 1 << 16;

/// How the elements of a chunk are encoded as bytes.
#[derive(Debug, Default)]
pub(super) struct Codecs {
    /// The order in which dimensions are stored; `None` for row-major order.
    pub(super) order: Option<Vec<usize>>,
    /// Whether elements have variable length: the chunk has their number, then length and bytes of each.
    pub(super) is_vlen: bool,
    /// Codecs in the order in which the writer applied them.
    pub(super) bytes: Vec<ByteCodec>,
}

/// A codec that transforms bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ByteCodec {
    Gzip,
    Zlib,
    Zstd,
    Lz4,
    Blosc,
    Crc32c,
    Shuffle(usize),
}

impl ByteCodec {
    pub(super) fn version_2(json: &Value) -> Result<Self, String> {
        let name = json.get("id").and_then(Value::as_str).unwrap_or_default();
        Self::of(name, json)
    }

    pub(super) fn version_3(json: &Value) -> Result<Self, String> {
        let name = json.as_str().or_else(|| json.get("name")?.as_str());
        let name = name.unwrap_or_default();
        let name = name.strip_prefix("numcodecs.").unwrap_or(name);
        Self::of(name, json.get("configuration").unwrap_or(&Value::Null))
    }

    fn of(name: &str, options: &Value) -> Result<Self, String> {
        Ok(match name {
            "gzip" => Self::Gzip,
            "zlib" => Self::Zlib,
            "zstd" => Self::Zstd,
            "lz4" => Self::Lz4,
            "blosc" => Self::Blosc,
            "crc32c" => Self::Crc32c,
            "shuffle" => {
                let size = options
                    .get("elementsize")
                    .and_then(Value::as_u64)
                    .unwrap_or(4);
                let size = usize::try_from(size)
                    .ok()
                    .filter(|size| (1..=256).contains(size));
                Self::Shuffle(size.ok_or("has a shuffle of elements of no size")?)
            }
            name => {
                return Err(format!(
                    "has the codec {name:?}, which is not read: blosc, crc32c, gzip, lz4, shuffle, zlib and zstd are"
                ));
            }
        })
    }

    fn decode(&self, bytes: Vec<u8>, most: usize) -> Result<Vec<u8>, String> {
        let expand = |name: &str, reader: &mut dyn Read| {
            let mut out = Vec::new();
            let read = reader.take(most as u64 + 1).read_to_end(&mut out);
            read.map_err(|error| format!("its {name} is damaged: {error}"))?;
            Ok::<_, String>(out)
        };
        let out = match self {
            Self::Gzip => expand("gzip", &mut MultiGzDecoder::new(bytes.as_slice()))?,
            Self::Zlib => expand("zlib", &mut ZlibDecoder::new(bytes.as_slice()))?,
            Self::Zstd => {
                let decoder = zstd::stream::read::Decoder::new(bytes.as_slice());
                let mut decoder = decoder.map_err(|error| error.to_string())?;
                expand("zstd", &mut decoder)?
            }
            Self::Lz4 => {
                let (len, block) = bytes
                    .split_first_chunk::<4>()
                    .ok_or("its lz4 is cut short")?;
                let len = u32::from_le_bytes(*len) as usize;
                if len > most || len > block.len().saturating_mul(LZ4_MOST) {
                    return Err(format!("its lz4 says {len} bytes, which it cannot have"));
                }
                let read = lz4_flex::block::decompress(block, len);
                read.map_err(|error| format!("its lz4 is damaged: {error}"))?
            }
            Self::Blosc => blosc::decompress(&bytes, most)?,
            Self::Crc32c => {
                let (data, sum) = bytes
                    .split_last_chunk::<4>()
                    .ok_or("its CRC32C is cut short")?;
                let (found, said) = (crc32c::crc32c(data), u32::from_le_bytes(*sum));
                if found != said {
                    return Err(format!("its CRC32C is {found:08x}, and it says {said:08x}"));
                }
                data.to_vec()
            }
            Self::Shuffle(size) => {
                let mut out = Vec::with_capacity(bytes.len());
                blosc::unshuffle(&bytes, *size, &mut out);
                out
            }
        };
        match out.len() <= most {
            true => Ok(out),
            false => Err(format!("it has more than {most} bytes")),
        }
    }
}

impl Codecs {
    /// Decodes a chunk to exactly `size` bytes or, for elements of variable length, to at most `most` bytes.
    pub(super) fn decode(
        &self,
        mut bytes: Vec<u8>,
        size: Option<usize>,
        most: usize,
    ) -> Result<Vec<u8>, String> {
        let limit = size.unwrap_or(most).saturating_add(OVERHEAD_BYTES);
        for codec in self.bytes.iter().rev() {
            bytes = codec.decode(bytes, limit)?;
        }
        let is_whole = size.map_or(bytes.len() <= most, |size| bytes.len() == size);
        match is_whole {
            true => Ok(bytes),
            false => Err(format!(
                "it has {} bytes, and its array says {}",
                bytes.len(),
                size.unwrap_or(most)
            )),
        }
    }
}
