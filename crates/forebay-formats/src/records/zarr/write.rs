//! Writes arrays as a Zarr group (version 3) in a zip, which `zarr.storage.ZipStore` reads. Chunks contain whole rows.

use super::file::NODE_3;
use crate::archive::ZipWriter;
use crate::option_names::{CODEC, DROP_FEATURE};
use crate::records::arrays::{ArrayFormat, Element, SpooledArray, TextAs};
use flate2::Crc;
use forebay_shard::schema::NumberType;
use forebay_shard::{BlockCompression, Codec};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};

/// Approximate size of a chunk in bytes, and most texts of a chunk.
const CHUNK_BYTES: u64 = 1 << 20;
const TEXTS: u64 = 4096;
/// The codec name in options, which is also Forebay's.
const ZSTD: &str = "zstd";

#[derive(Debug)]
pub(super) struct Encoder {
    /// The compression level of Zstandard; `None` if chunks are not compressed.
    level: Option<i32>,
}

impl Encoder {
    pub(super) fn new(compression: BlockCompression) -> Result<Self, String> {
        let codec = compression.codec();
        let level = match codec {
            Codec::NONE => None,
            _ if codec.to_string() == ZSTD => Some(compression.level()),
            _ => {
                return Err(format!(
                    "Zarr has no codec {codec}: use zstd, such as {CODEC} zstd:3"
                ));
            }
        };
        Ok(Self { level })
    }

    /// Returns the metadata of an array with chunks of `rows` rows.
    fn metadata(&self, array: &SpooledArray, rows: u64) -> Value {
        let mut chunk = array.shape.clone();
        chunk.iter_mut().for_each(|dim| *dim = (*dim).max(1));
        chunk[0] = rows;
        let (data_type, fill, first) = match &array.element {
            Element::Number(NumberType::Bool) => ("bool", json!(false), json!({"name": "bytes"})),
            Element::Number(number) if number.bytes() == 1 => {
                (number.name(), json!(0), json!({"name": "bytes"}))
            }
            Element::Number(number) => {
                let codec = json!({"name": "bytes", "configuration": {"endian": "little"}});
                let is_float = number.name().starts_with("float");
                (
                    number.name(),
                    if is_float { json!(0.0) } else { json!(0) },
                    codec,
                )
            }
            _ => ("string", json!(""), json!({"name": "vlen-utf8"})),
        };
        let mut codecs = vec![first];
        if let Some(level) = self.level {
            codecs
                .push(json!({"name": ZSTD, "configuration": {"level": level, "checksum": false}}));
        }
        json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": array.shape,
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": codecs,
            "attributes": {},
        })
    }

    /// Writes the chunks of an array.
    fn chunks(
        &self,
        array: &mut SpooledArray,
        rows: u64,
        zip: &mut ZipWriter<'_>,
    ) -> io::Result<()> {
        let count = array.shape[0];
        let is_text = array.element == Element::Text;
        let row_bytes = array.shape[1..].iter().product::<u64>() * array.width;
        if row_bytes == 0 && !is_text {
            return Ok(());
        }
        let name = array.name.clone();
        let rank = array.shape.len();
        let lens = array.take_lens();
        let mut values = array.reader()?;
        let mut chunk = Vec::new();
        for (number, first) in (0..count).step_by(rows as usize).enumerate() {
            chunk.clear();
            let there = rows.min(count - first);
            if is_text {
                chunk.extend((rows as u32).to_le_bytes());
                for len in &lens[first as usize..(first + there) as usize] {
                    chunk.extend(len.to_le_bytes());
                    (&mut values)
                        .take(u64::from(*len))
                        .read_to_end(&mut chunk)?;
                }
                // All chunks have the same number of texts, so the last one is padded with empty texts.
                chunk.resize(chunk.len() + 4 * (rows - there) as usize, 0);
            } else {
                (&mut values)
                    .take(there * row_bytes)
                    .read_to_end(&mut chunk)?;
                chunk.resize((rows * row_bytes) as usize, 0);
            }
            let mut key = format!("{name}/c/{number}");
            key += &"/0".repeat(rank - 1);
            match self.level {
                Some(level) => put(zip, &key, &zstd::bulk::compress(&chunk, level)?)?,
                None => put(zip, &key, &chunk)?,
            }
        }
        Ok(())
    }
}

fn put(zip: &mut ZipWriter<'_>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut crc = Crc::new();
    crc.update(bytes);
    zip.add(name, bytes.len() as u64, crc.sum(), &mut &*bytes)
}

/// Returns the groups in the names of arrays, such as `image/object` for `image/object/area`; the root group comes first.
fn groups(arrays: &[SpooledArray]) -> io::Result<BTreeSet<String>> {
    let mut groups = BTreeSet::from([String::new()]);
    for array in arrays {
        let slashes = array.name.match_indices('/').map(|(at, _)| at);
        groups.extend(slashes.map(|at| format!("{}/", &array.name[..at])));
    }
    let inside = arrays
        .iter()
        .find(|array| groups.contains(&format!("{}/", array.name)));
    match inside {
        None => Ok(groups),
        Some(array) => Err(io::Error::other(format!(
            "the array {:?} has others in it, which Zarr has no place for: {DROP_FEATURE} leaves one out",
            array.name
        ))),
    }
}

pub(super) static FORMAT: ArrayFormat = ArrayFormat {
    title: "a Zarr group",
    extension: super::ZIP,
    text: TextAs::Utf8,
    is_compressed: true,
    refuses: |number| number == NumberType::Bfloat16,
    encode,
};

fn encode(
    arrays: &mut [SpooledArray],
    compression: BlockCompression,
    out: &mut dyn Write,
) -> io::Result<()> {
    let encoder = Encoder::new(compression).map_err(io::Error::other)?;
    let mut zip = ZipWriter::new(out);
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {}});
    for name in groups(arrays)? {
        put(
            &mut zip,
            &format!("{name}{NODE_3}"),
            group.to_string().as_bytes(),
        )?;
    }
    for array in arrays {
        let row_bytes = array.shape[1..].iter().product::<u64>() * array.width;
        let rows = match array.element {
            Element::Text => TEXTS,
            _ => (CHUNK_BYTES / row_bytes.max(1)).max(1),
        };
        let rows = rows.min(array.shape[0]).max(1);
        let json = encoder.metadata(array, rows);
        put(
            &mut zip,
            &format!("{}/{NODE_3}", array.name),
            json.to_string().as_bytes(),
        )?;
        encoder.chunks(array, rows, &mut zip)?;
    }
    zip.finish()
}
