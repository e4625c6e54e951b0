//! Writes records as `array_record` does: one chunk for each record, then the list of chunks, then the offset of the list.
//!
//! The key is appended to its record as a further feature of the same protobuf message.

use super::MAGIC;
use super::riegeli::{BLOCK, BLOCK_HEADER, CHUNK_HEADER, PADDING, RECORDS, SIGNATURE, hash};
use crate::error::Result;
use crate::option_names::CODEC;
use crate::records::SourceRecord;
use crate::records::sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError};
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::{BlockCompression, Codec, ExampleBuilder, varint};
use serde_json::Value;
use std::io::{self, Write};

/// The feature that holds the key of a record.
const KEY: &str = "__key__";
/// The codec name in options, which is also Forebay's.
const ZSTD: &str = "zstd";
/// Wire types of protobuf fields: varint, 64-bit number and byte string.
const NUMBER: u64 = 0;
const FIXED: u64 = 1;
const BYTES: u64 = 2;

/// Writes ArrayRecord files.
#[derive(Debug)]
pub(super) struct Sink {
    /// The compression level of Zstandard; `None` if records are not compressed.
    level: Option<i32>,
}

impl Sink {
    pub(super) fn new(compression: BlockCompression) -> std::result::Result<Self, String> {
        let codec = compression.codec();
        let level = match codec {
            Codec::NONE => None,
            _ if codec.to_string() == ZSTD => Some(compression.level()),
            _ => {
                return Err(format!(
                    "ArrayRecord is not written with the codec {codec}: use zstd, such as {CODEC} zstd:3"
                ));
            }
        };
        Ok(Self { level })
    }
}

impl RecordSink for Sink {
    fn file_name(&self, split: &str, number: u32, count: u32) -> String {
        let ending = super::EXTENSIONS[0];
        format!("{split}-{number:05}-of-{count:05}{ending}")
    }

    fn begin(&self, _first: u64, _scratch: Scratch<'_>) -> Result<Box<dyn RecordWriter>> {
        Ok(Box::new(Writer {
            level: self.level,
            at: 0,
            list: Vec::new(),
            records: 0,
        }))
    }
}

/// Appends a varint field of a message. Zero is the default and is omitted.
fn put_number(field: u64, value: u64, out: &mut Vec<u8>) {
    if value > 0 {
        varint::put(field << 3 | NUMBER, out);
        varint::put(value, out);
    }
}

fn put_bytes(field: u64, value: &[u8], out: &mut Vec<u8>) {
    varint::put(field << 3 | BYTES, out);
    varint::put(value.len() as u64, out);
    out.extend_from_slice(value);
}

/// Returns the key as an `Example` message. Appending it to another encoded `Example` merges both.
fn key_message(key: &[u8]) -> Vec<u8> {
    let mut builder = ExampleBuilder::new();
    builder.add_bytes(KEY, key);
    builder.to_vec()
}

/// Splits a value into the record and the key that was appended to it.
pub(super) fn split_key(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = value;
    let mut last = 0;
    while !rest.is_empty() {
        last = value.len() - rest.len();
        let key = varint::read(&mut rest)?;
        match key & 7 {
            NUMBER => {
                varint::read(&mut rest)?;
            }
            FIXED => rest = rest.get(8..)?,
            BYTES => {
                let len = usize::try_from(varint::read(&mut rest)?).ok()?;
                rest = rest.get(len..)?;
            }
            5 => rest = rest.get(4..)?,
            _ => return None,
        }
    }
    let (record, message) = value.split_at(last);
    let example = forebay_shard::ExampleView::parse(message).ok()?;
    let key = example.bytes(KEY).ok()??;
    (key.len() <= MAX_KEY_BYTES && key_message(key) == message).then_some((record, key))
}

/// Writes the records of one file.
struct Writer {
    level: Option<i32>,
    /// The offset in the file.
    at: u64,
    /// Offset and record size of each chunk.
    list: Vec<(u64, u64)>,
    records: u64,
}

impl Writer {
    /// Writes a chunk, and the headers of the blocks that begin inside it.
    fn chunk(
        &mut self,
        kind: u8,
        records: u64,
        decoded: u64,
        data: &[u8],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut header = Vec::with_capacity(CHUNK_HEADER as usize);
        for word in [
            data.len() as u64,
            hash(data),
            records << 8 | u64::from(kind),
            decoded,
        ] {
            header.extend(word.to_le_bytes());
        }
        let header = [&hash(&header).to_le_bytes(), header.as_slice()].concat();
        let begin = self.at;
        let end = end_of(begin, CHUNK_HEADER + data.len() as u64);
        for mut part in [header.as_slice(), data] {
            while !part.is_empty() {
                if self.at.is_multiple_of(BLOCK) {
                    let words = [self.at - begin, end - self.at];
                    let words = words.map(u64::to_le_bytes).concat();
                    out.write_all(&hash(&words).to_le_bytes())?;
                    out.write_all(&words)?;
                    self.at += BLOCK_HEADER;
                }
                let room = (BLOCK - self.at % BLOCK) as usize;
                let (now, later) = part.split_at(part.len().min(room));
                out.write_all(now)?;
                self.at += now.len() as u64;
                part = later;
            }
        }
        Ok(())
    }

    /// Writes records as one chunk.
    fn records(
        &mut self,
        records: &[&[u8]],
        level: Option<i32>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut sizes = Vec::new();
        records
            .iter()
            .for_each(|record| varint::put(record.len() as u64, &mut sizes));
        let decoded: usize = records.iter().map(|record| record.len()).sum();
        let mut data = Vec::with_capacity(decoded + sizes.len() + 8);
        match level {
            None => {
                data.push(0);
                varint::put(sizes.len() as u64, &mut data);
                data.extend(sizes);
                records
                    .iter()
                    .for_each(|record| data.extend_from_slice(record));
            }
            Some(level) => {
                let compressed = |bytes: &[u8]| -> io::Result<Vec<u8>> {
                    let mut part = Vec::new();
                    varint::put(bytes.len() as u64, &mut part);
                    part.extend(zstd::bulk::compress(bytes, level)?);
                    Ok(part)
                };
                let sizes = compressed(&sizes)?;
                data.push(b'z');
                varint::put(sizes.len() as u64, &mut data);
                data.extend(sizes);
                data.extend(compressed(&records.concat())?);
            }
        }
        self.chunk(RECORDS, records.len() as u64, decoded as u64, &data, out)
    }

    /// Writes zeros up to the next block.
    fn pad(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let used = self.at % BLOCK;
        if used == 0 {
            return Ok(());
        }
        let mut room = BLOCK - used;
        if room < CHUNK_HEADER {
            room += BLOCK - BLOCK_HEADER;
        }
        let zeros = vec![0; (room - CHUNK_HEADER) as usize];
        self.chunk(PADDING, 0, 0, &zeros, out)
    }

    fn start(&mut self, out: &mut dyn Write) -> io::Result<()> {
        match self.at {
            0 => self.chunk(SIGNATURE, 0, 0, &[], out),
            _ => Ok(()),
        }
    }
}

/// Returns the offset after `len` bytes and the headers of the blocks that begin inside them.
fn end_of(begin: u64, len: u64) -> u64 {
    let room = BLOCK - BLOCK_HEADER;
    // Bytes since the beginning of the block, without its header.
    let inside = (begin % BLOCK).saturating_sub(BLOCK_HEADER);
    let total = inside + len;
    let (blocks, rest) = (total / room, total % room);
    let block_start = begin - begin % BLOCK;
    match rest {
        0 => block_start + blocks * BLOCK,
        rest => block_start + blocks * BLOCK + BLOCK_HEADER + rest,
    }
}

impl RecordWriter for Writer {
    fn append(
        &mut self,
        record: &SourceRecord<'_>,
        out: &mut dyn Write,
    ) -> std::result::Result<Appended, SinkError> {
        let value = [record.bytes, &key_message(record.key)].concat();
        if split_key(&value).is_none() {
            let what = "it is no tensorflow.Example, or its key is too long".to_owned();
            return Err(SinkError::Record(what));
        }
        self.start(out)?;
        self.list.push((self.at, value.len() as u64));
        self.records(&[&value], self.level, out)?;
        self.records += 1;
        Ok(Appended::default())
    }

    fn finish(
        &mut self,
        _name: &str,
        out: &mut dyn Write,
    ) -> std::result::Result<Value, SinkError> {
        self.start(out)?;
        let compression = match self.level {
            None => "uncompressed".to_owned(),
            Some(level) => format!("zstd:{level}"),
        };
        let options = format!(
            "group_size:1,transpose:false,pad_to_block_boundary:false,{compression},max_parallelism:1"
        );
        let mut facts = Vec::new();
        put_number(1, 1, &mut facts);
        put_number(2, self.records, &mut facts);
        put_number(3, self.records, &mut facts);
        put_bytes(4, options.as_bytes(), &mut facts);
        let mut first = Vec::new();
        put_bytes(1, &facts, &mut first);
        let entries = std::mem::take(&mut self.list)
            .into_iter()
            .map(|(offset, bytes)| {
                let mut entry = Vec::new();
                put_number(1, offset, &mut entry);
                put_number(2, bytes, &mut entry);
                put_number(3, 1, &mut entry);
                entry
            });
        let entries: Vec<Vec<u8>> = entries.collect();
        let mut list = vec![first.as_slice()];
        list.extend(entries.iter().map(Vec::as_slice));
        let list_at = self.at;
        self.records(&list, self.level, out)?;
        self.pad(out)?;
        let mut postscript = Vec::new();
        put_number(1, list_at, &mut postscript);
        varint::put(2 << 3 | NUMBER, &mut postscript);
        varint::put(MAGIC, &mut postscript);
        self.records(&[postscript.as_slice(); 3], None, out)?;
        self.pad(out)?;
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_split_from_their_records() {
        let record = key_message(b"another");
        for key in [&b""[..], b"k/1.jpg", &[0xff; 300]] {
            let value = [record.as_slice(), &key_message(key)].concat();
            assert_eq!(split_key(&value), Some((record.as_slice(), key)));
        }
        assert_eq!(split_key(b""), None);
        assert_eq!(split_key(b"\x0a\x7fabc"), None);
    }

    #[test]
    fn chunks_end_behind_the_headers_of_their_blocks() {
        for (begin, len, end) in [
            (0, 40, 64),
            (160, 70_045, 70_229),
            (70_229, 200_045, 270_346),
            (270_746, 56_934, 327_680),
            (327_680, 87, 327_791),
        ] {
            assert_eq!(end_of(begin, len), end);
        }
    }
}
