//! Options of the writer of indexed shards.

use std::io::Write;
use std::path::Path;

use crate::blocks::Blocks;
use crate::codec::{self, BlockCompression};
use crate::error::{Error, Result};
use crate::index::Features;
use crate::writer::{Body, ShardWriter};

/// Upper bound of the size at which a block is closed.
pub const MAX_BLOCK_BYTES: usize = 64 << 20;

/// Options of a [`ShardWriter`] of an indexed shard.
#[derive(Debug, Clone, Default)]
pub struct WriterBuilder {
    compression: BlockCompression,
    block_bytes: Option<usize>,
}

impl WriterBuilder {
    /// Creates options for raw blocks of about 1 MiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how blocks are stored: a [`Codec`](crate::Codec), or a codec with a level. A block that compression does not shrink
    /// is stored raw.
    pub fn compression(&mut self, compression: impl Into<BlockCompression>) -> &mut Self {
        self.compression = compression.into();
        self
    }

    /// Closes a block once its frames take this many bytes, 64 MiB at most. The default is 1 MiB
    /// for raw blocks, and the codec's own for compressed ones.
    pub fn block_bytes(&mut self, bytes: usize) -> &mut Self {
        self.block_bytes = Some(bytes.min(MAX_BLOCK_BYTES));
        self
    }

    /// Writes to any writer; `name` is its name in errors. Output is buffered here, so `writer` needs no buffer. The file is
    /// complete once [`ShardWriter::finish`] returns.
    ///
    /// # Errors
    /// [`Error::NotBuilt`] for a codec that this build lacks, [`Error::Io`] if there is not enough
    /// memory for it.
    pub fn from_writer<W: Write>(
        &self,
        writer: W,
        name: impl AsRef<Path>,
    ) -> Result<ShardWriter<W>> {
        let path = name.as_ref();
        let codec = self.compression.codec();
        let features = Features {
            compatible: 0,
            incompatible: codec.feature_bit(),
        };
        codec::check_built(path, features.incompatible)?;
        let compressor = self.compression.compressor();
        let compressor = compressor.map_err(|error| Error::io(path, "compress", error))?;
        let compressor = compressor.map(|compress| (codec, compress));
        let block_bytes = self.block_bytes.unwrap_or(codec.default_block_bytes());
        let blocks = Blocks::new(writer, features, compressor, block_bytes);
        Ok(ShardWriter::new(path, Body::Blocks(blocks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::crc32c;
    use crate::codec::Codec;
    use crate::frames::Frames;
    use crate::index::layout::{BLOCK_ALIGN, BlockHeader};
    use crate::index::{FileKind, Found, RecordMeta, parse_suffix};

    /// Records of various sizes, some longer than a block of 4 KiB.
    fn record(number: usize) -> Vec<u8> {
        let len = [0, 10, 700, 2047, 2048, 5000, 9][number % 7];
        (0..len).map(|at| (at * number % 251) as u8).collect()
    }

    fn write(codec: Codec, batches: &[(bool, usize)]) -> (Vec<u8>, u64) {
        let mut builder = WriterBuilder::new();
        builder.compression(codec).block_bytes(4096);
        let mut writer = builder.from_writer(Vec::new(), "shard").unwrap();
        let mut number = 0;
        let mut spare = Frames::new();
        for &(apart, count) in batches {
            let numbers = number..number + count;
            number += count;
            let keys: Vec<String> = numbers.clone().map(|n| format!("key {n}")).collect();
            let metas = numbers
                .clone()
                .zip(&keys)
                .map(|(n, key)| RecordMeta::new(n as i64, key.as_bytes()));
            if apart {
                for n in numbers {
                    spare.begin().push(&record(n));
                    spare.commit().unwrap();
                }
                spare = writer
                    .append_frames(spare, metas)
                    .unwrap()
                    .unwrap_or_default();
                assert!(spare.is_empty());
            } else {
                for (n, meta) in numbers.zip(metas) {
                    writer.append(&record(n), &meta).unwrap();
                }
            }
        }
        let (bytes, summary) = writer.finish().unwrap();
        assert_eq!(summary.crc32c, crc32c(&bytes));
        (bytes, summary.records)
    }

    #[test]
    fn separately_framed_records_give_the_same_bytes() {
        for codec in Codec::all() {
            let (expected, _) = write(codec, &[(false, 60)]);
            let all = (expected, 60);
            assert_eq!(write(codec, &[(true, 60)]), all);
            assert_eq!(write(codec, &[(true, 1); 60]), all);
            assert_eq!(write(codec, &[(true, 7), (true, 13), (true, 40)]), all);
            let mixed = [
                (true, 3),
                (false, 2),
                (true, 20),
                (true, 1),
                (false, 9),
                (false, 1),
                (true, 24),
            ];
            assert_eq!(write(codec, &mixed), all);
        }
    }

    #[test]
    fn files_carry_the_id_and_the_feature_bit_of_their_codec() {
        for codec in Codec::all() {
            let mut builder = WriterBuilder::new();
            let mut writer = builder.compression(codec).from_writer(vec![], "x").unwrap();
            writer.append(&[0; 1000], &RecordMeta::default()).unwrap();
            let (bytes, _) = writer.finish().unwrap();
            assert_eq!(Codec::of_shard(bytes.first_chunk().unwrap()), Some(codec));
            let at = if codec == Codec::NONE {
                BLOCK_ALIGN
            } else {
                64
            };
            let block = bytes[at as usize..].first_chunk().unwrap();
            assert_eq!(BlockHeader::decode(block, at).unwrap().codec, codec);
            let (path, len) = (Path::new("x"), bytes.len() as u64);
            let found = parse_suffix(path, FileKind::Shard, len, 1 << 20, &bytes).unwrap();
            let Found::Index(index) = found else {
                panic!("the whole file is there")
            };
            assert_eq!(index.features.incompatible, codec.feature_bit());
            assert_eq!(index.blocks[0].codec, codec);
        }
    }

    #[test]
    fn the_number_of_labels_and_keys_must_match_the_records() {
        for count in [0, 2] {
            let mut writer = WriterBuilder::new().from_writer(Vec::new(), "x").unwrap();
            let mut frames = Frames::new();
            frames.begin().push(b"one");
            frames.commit().unwrap();
            let metas = vec![RecordMeta::default(); count];
            assert!(writer.append_frames(frames, metas).is_err(), "{count}");
        }
    }
}
