//! Writes an indexed shard, in one pass from front to back.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::checksum::{Crc32c, crc32c};
use crate::codec::{self, BlockCompression, Codec, Compressor};
use crate::error::{Error, Result};
use crate::frame::{FrameBuffer, MAX_RECORD_BYTES, OVERHEAD_BYTES, Payload, too_long};
use crate::frames::{Frames, KEEP_BYTES};
use crate::index::layout::{BLOCK_ALIGN, BlockHeader, Header};
use crate::index::{Block, Features, FileKind, IndexBuilder, RecordMeta};
use crate::summary::ShardSummary;
use crate::tfrecord::RecordInfo;

/// Upper bound of the size at which a block is closed.
pub const MAX_BLOCK_BYTES: usize = 64 << 20;

/// Options of a [`Writer`].
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

    /// Sets how blocks are stored: a [`Codec`], or a codec with a level. A block that compression does not shrink
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
    /// complete once [`Writer::finish`] returns.
    ///
    /// # Errors
    /// [`Error::NotBuilt`] for a codec that this build lacks, [`Error::Io`] if there is not enough
    /// memory for it.
    pub fn from_writer<W: Write>(&self, writer: W, name: impl AsRef<Path>) -> Result<Writer<W>> {
        let path = name.as_ref();
        let codec = self.compression.codec();
        let features = Features {
            compatible: 0,
            incompatible: codec.feature_bit(),
        };
        codec::check_built(path, features.incompatible)?;
        let compressor = self.compression.compressor();
        let compressor = compressor.map_err(|error| Error::io(path, "compress", error))?;
        let mut frames = FrameBuffer::default();
        frames.reset(0);
        Ok(Writer {
            path: path.to_owned(),
            writer,
            features,
            compressor: compressor.map(|compress| BlockCompressor { codec, compress }),
            compressed: Vec::new(),
            block_bytes: self.block_bytes.unwrap_or(codec.default_block_bytes()),
            frames,
            parts: Vec::new(),
            spent: Vec::new(),
            open: Open::default(),
            index: IndexBuilder::new(),
            sum: Crc32c::default(),
        })
    }
}

/// A compressor, with the codec id for its blocks.
struct BlockCompressor {
    codec: Codec,
    compress: Compressor,
}

impl std::fmt::Debug for BlockCompressor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockCompressor({})", self.codec)
    }
}

/// The block under construction.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    first_record: u64,
    records: u64,
    /// Start of its frames in the concatenated frames of all blocks.
    logical: u64,
    /// Length of its frames.
    bytes: u64,
}

/// Writes the records of an indexed shard.
///
/// A record is passed whole to [`append`](Self::append), or built in the block's own buffer between
/// [`begin`](Self::begin) and [`commit`](Self::commit), so its bytes are copied at most once.
#[derive(Debug)]
pub struct Writer<W: Write> {
    path: PathBuf,
    writer: W,
    features: Features,
    compressor: Option<BlockCompressor>,
    compressed: Vec<u8>,
    block_bytes: usize,
    /// Frames of the open block that were built by this writer.
    frames: FrameBuffer,
    /// Frames after those in the open block, each with the number of its first record to write.
    parts: Vec<(Frames, usize)>,
    /// Buffers whose frames have been written.
    spent: Vec<Frames>,
    open: Open,
    index: IndexBuilder,
    /// Checksum of all bytes written.
    sum: Crc32c,
}

impl<W: Write> Writer<W> {
    /// Writes a record.
    ///
    /// # Errors
    /// If it is longer than 256 MiB, its key cannot be indexed, or writing fails.
    pub fn append(&mut self, record: &[u8], meta: &RecordMeta<'_>) -> Result<RecordInfo> {
        if record.len() as u64 > MAX_RECORD_BYTES {
            return Err(too_long(record.len() as u64));
        }
        self.begin().push(record);
        self.commit(meta)
    }

    /// Starts a record in the block's buffer, and drops a record that was not committed.
    pub fn begin(&mut self) -> Payload<'_> {
        for (frames, from) in std::mem::take(&mut self.parts) {
            let (bytes, sum) = frames.part(from..frames.len());
            self.frames.append(bytes, sum);
            self.spend(frames);
        }
        self.frames.begin()
    }

    /// Reserves memory in the index; see [`IndexBuilder::reserve`](crate::IndexBuilder::reserve).
    pub fn reserve(&mut self, records: u64, key_bytes: u64) {
        self.index.reserve(records, key_bytes);
    }

    /// Appends records that were framed elsewhere; see
    /// [`tfrecord::Writer::append_frames`](crate::tfrecord::Writer::append_frames).
    ///
    /// # Errors
    /// As in that function.
    pub fn append_frames<'m>(
        &mut self,
        frames: Frames,
        metas: impl IntoIterator<Item = RecordMeta<'m>>,
    ) -> Result<Option<Frames>> {
        self.frames.rollback();
        self.index.push_frames(&frames, metas)?;
        let mut from = 0;
        for record in 0..frames.len() {
            self.open.records += 1;
            self.open.bytes += frames.record_len(record).unwrap_or(0) + OVERHEAD_BYTES as u64;
            if self.open.bytes >= self.block_bytes as u64 {
                self.close_block(Some((&frames, from..record + 1)))?;
                from = record + 1;
            }
        }
        if from < frames.len() {
            self.parts.push((frames, from));
        } else {
            self.spend(frames);
        }
        Ok(self.spent.pop())
    }

    fn spend(&mut self, mut frames: Frames) {
        frames.clear(KEEP_BYTES);
        self.spent.push(frames);
    }

    /// Ends the record that was started last. The returned offset is its position in the concatenated frames of
    /// all blocks.
    ///
    /// # Errors
    /// If no record was started, it is longer than 256 MiB or its key cannot be indexed (then it is dropped), or
    /// writing fails.
    pub fn commit(&mut self, meta: &RecordMeta<'_>) -> Result<RecordInfo> {
        let len = self
            .frames
            .open_len()
            .ok_or_else(|| Error::invalid("no record was started"))?;
        let (index, offset) = (self.index.records(), self.index.logical_len());
        let fits = if len > MAX_RECORD_BYTES {
            Err(too_long(len))
        } else {
            Ok(())
        };
        if let Err(error) = fits.and_then(|()| self.index.push(len, meta)) {
            self.frames.rollback();
            return Err(error);
        }
        self.frames.commit();
        self.open.records += 1;
        self.open.bytes += len + OVERHEAD_BYTES as u64;
        if self.open.bytes >= self.block_bytes as u64 {
            self.close_block(None)?;
        }
        Ok(RecordInfo { index, offset, len })
    }

    /// Returns the number of records written so far.
    pub fn records(&self) -> u64 {
        self.index.records()
    }

    /// Writes pending data, the index and the trailer. Returns the inner writer, flushed, and a
    /// summary.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(mut self) -> Result<(W, ShardSummary)> {
        self.close_block(None)?;
        self.start()
            .map_err(|error| Error::io(&self.path, "write", error))?;
        let binding = (
            FileKind::Shard,
            self.features,
            self.sum.len(),
            self.sum.value(),
        );
        let at = self.sum.len();
        let written = self.index.write_to(at, binding, &mut self.writer);
        let written = written.and_then(|end| {
            self.sum.combine(end.value(), end.len());
            self.writer.flush()
        });
        written.map_err(|error| Error::io(&self.path, "write", error))?;
        let summary = ShardSummary {
            records: self.index.records(),
            bytes: self.sum.len(),
            crc32c: self.sum.value(),
            samples: self.index.samples(),
            record_bytes: self.index.record_bytes(),
            index: Some(self.index),
        };
        Ok((self.writer, summary))
    }

    /// Writes the file header, unless it was written before.
    fn start(&mut self) -> io::Result<()> {
        if self.sum.is_empty() {
            let header = Header {
                kind: FileKind::Shard,
                features: self.features,
            }
            .encode();
            self.put(&header, crc32c(&header))?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8], crc: u32) -> io::Result<()> {
        self.writer.write_all(bytes)?;
        self.sum.combine(crc, bytes.len() as u64);
        Ok(())
    }

    /// Writes the open block: the buffer, the parts, and the first records of the next part.
    fn close_block(&mut self, more: Option<(&Frames, Range<usize>)>) -> Result<()> {
        self.frames.rollback();
        if self.open.records > 0 {
            self.write_block(more)
                .map_err(|error| Error::io(&self.path, "write", error))?;
            self.open = Open {
                first_record: self.open.first_record + self.open.records,
                logical: self.open.logical + self.open.bytes,
                ..Open::default()
            };
            self.frames.reset(0);
            for (frames, _) in std::mem::take(&mut self.parts) {
                self.spend(frames);
            }
        }
        Ok(())
    }

    fn write_block(&mut self, more: Option<(&Frames, Range<usize>)>) -> io::Result<()> {
        self.start()?;
        // The checksum of the frames is known already, and raw blocks need no other one.
        let mut frames = self.frames.sum();
        let mut pieces: Vec<&[u8]> = Vec::with_capacity(self.parts.len() + 2);
        pieces.push(self.frames.bytes());
        let parts = self
            .parts
            .iter()
            .map(|(part, from)| (part, *from..part.len()));
        for (part, records) in parts.chain(more) {
            let (bytes, sum) = part.part(records);
            frames.combine(sum.value(), sum.len());
            pieces.push(bytes);
        }
        pieces.retain(|piece| !piece.is_empty());
        let mut payload = frames;
        let mut codec = Codec::NONE;
        let joined: Vec<u8>;
        if let Some(compressor) = &mut self.compressor {
            let raw = match pieces.as_slice() {
                [whole] => *whole,
                pieces => {
                    joined = pieces.concat();
                    &joined
                }
            };
            self.compressed.clear();
            (compressor.compress)(raw, &mut self.compressed)?;
            if self.compressed.len() < raw.len() {
                codec = compressor.codec;
                payload = Crc32c::default();
                payload.update(&self.compressed);
                pieces = vec![&self.compressed];
            }
        }
        if codec == Codec::NONE {
            let gap = (self.sum.len().next_multiple_of(BLOCK_ALIGN) - self.sum.len()) as usize;
            let zeros = [0; BLOCK_ALIGN as usize];
            self.writer.write_all(&zeros[..gap])?;
            self.sum.update(&zeros[..gap]);
        }
        let block = Block {
            offset: self.sum.len(),
            stored_len: payload.len(),
            first_record: self.open.first_record,
            crc: payload.value(),
            codec,
        };
        let header = BlockHeader {
            codec,
            records: u32::try_from(self.open.records).map_err(|_| io::ErrorKind::InvalidInput)?,
            first_record: self.open.first_record,
            crc: block.crc,
            stored_len: block.stored_len,
            raw_len: frames.len(),
            logical: self.open.logical,
        }
        .encode();
        self.writer.write_all(&header)?;
        for piece in pieces {
            self.writer.write_all(piece)?;
        }
        self.sum.update(&header);
        self.sum.combine(payload.value(), payload.len());
        self.index.push_block(block);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Found, parse_suffix};

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
