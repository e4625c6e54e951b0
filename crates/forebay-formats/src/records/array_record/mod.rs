//! ArrayRecord: chunks of Riegeli, and a list of the chunks at the end of the file. Records are `tensorflow.Example`s or
//! encoded images.

mod riegeli;
#[cfg(test)]
mod tests;
mod write;

use super::CreateSink;
use super::arrays::places;
use super::conversion::Conversion;
use super::values::{self, ValueFile, Values};
use super::{
    Format, FormatInfo, RecordFile, RecordInput, RecordReader, RecordSource, SourceRecord,
    by_extension,
};
use crate::archive::{Archive, ArchiveKind, FileVersion, Stream};
use crate::error::{Error, Result};
use forebay_shard::ExampleView;
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::mapped::{Extent, ExtentStart, MIN_EXTENT_BYTES};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use riegeli::hash as riegeli_hash;
use riegeli::{BLOCK, Chunk, Compression, numbers};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(super) struct ArrayRecord;

const EXTENSIONS: [&str; 2] = [".array_record", ".arrayrecord"];
/// Value of the second field of the postscript, which identifies the format.
const MAGIC: u64 = 0x7193_0e70_4fda_e05e;

impl Format for ArrayRecord {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "arrayrecord",
            title: "ArrayRecord files",
            extensions: &EXTENSIONS,
            is_read_in_place: true,
            advice: "`forebay convert SRC DST --format indexed` reads tensorflow.Examples and encoded images",
            ..FormatInfo::NONE
        }
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let (root, conversion) = Conversion::of_source(input, self.info().name, |root| {
            by_extension(self.info(), &[&root.to_string_lossy()]).is_some() && !root.is_dir()
        })?;
        let files = places::find(input, conversion.as_ref(), &EXTENSIONS)?;
        if files.is_empty() {
            return Err(Error::source(&root, "there are no ArrayRecord files here"));
        }
        values::open::<ArrayFile>(files, input, conversion, &root)
    }

    fn writer(&self) -> Option<CreateSink> {
        Some(|_, options| Ok(Box::new(write::Sink::new(options.compression)?)))
    }
}

/// A chunk in the list at the end of a file.
#[derive(Debug, Clone, Copy)]
struct Listed {
    /// The number of its first record.
    first: u64,
    offset: u64,
    bytes: u64,
}

/// An ArrayRecord file.
#[derive(Debug)]
struct ArrayFile {
    archive: Archive,
    version: FileVersion,
    chunks: Vec<Listed>,
    records: u64,
    /// The compression of the first chunk.
    compression: Compression,
}

impl ValueFile for ArrayFile {
    fn open(archive: Archive) -> Result<Self> {
        let (version, file) = FileVersion::open(&archive)?;
        let (path, bytes) = (version.path.clone(), version.bytes);
        let mut all = Self {
            archive,
            version,
            chunks: Vec::new(),
            records: 0,
            compression: Compression::None,
        };
        let last = bytes
            .checked_sub(BLOCK)
            .filter(|_| bytes.is_multiple_of(BLOCK));
        let stream = || {
            Stream::new(file.clone(), ArchiveKind::Tar)
                .map_err(|error| Error::io(&path, "read", error))
        };
        let Some(last) = last else {
            let what = format!(
                "it is no ArrayRecord file, or cut short: {bytes} bytes are no whole blocks of 64 KiB"
            );
            return Err(Error::source(&path, what));
        };
        let at = |offset: u64| {
            let path = path.clone();
            move |what: String| {
                let what =
                    format!("it is no ArrayRecord file, or damaged: offset {offset}: {what}");
                Error::source(&path, what)
            }
        };
        let postscript = Chunk::read(&mut stream()?, bytes, last).map_err(at(last))?;
        let fields = postscript.record(0).and_then(numbers).unwrap_or_default();
        let field = |fields: &[(u64, u64)], number: u64| {
            let found = fields.iter().rev().find(|(field, _)| *field == number);
            found.map_or(0, |(_, value)| *value)
        };
        if field(&fields, 2) != MAGIC {
            return Err(at(last)("there is no postscript of ArrayRecord".to_owned()));
        }
        let list_at = field(&fields, 1);
        let list = Chunk::read(&mut stream()?, bytes, list_at).map_err(at(list_at))?;
        for number in 1..list.len() {
            let damaged = |what: &str| {
                at(list_at)(format!(
                    "entry {} of the list of chunks: {what}",
                    number - 1
                ))
            };
            let entry = list.record(number).and_then(numbers);
            let entry = entry.ok_or_else(|| damaged("it is damaged"))?;
            let (offset, count) = (field(&entry, 1), field(&entry, 3));
            let before = all.chunks.last().map_or(0, |chunk| chunk.offset);
            // Each record has its own offset, so a file has more bytes than records.
            let total = all
                .records
                .checked_add(count)
                .filter(|total| *total <= bytes);
            let (Some(total), true) = (total, offset > before && offset < list_at) else {
                return Err(damaged(
                    "its chunk lies elsewhere, or has more records than the file",
                ));
            };
            all.chunks.push(Listed {
                first: all.records,
                offset,
                bytes: field(&entry, 2),
            });
            all.records = total;
        }
        if let Some(first) = all.chunks.first() {
            let found = riegeli::compression(&mut stream()?, bytes, first.offset);
            all.compression = found.map_err(at(first.offset))?;
        }
        Ok(all)
    }

    fn version(&self) -> &FileVersion {
        &self.version
    }

    fn first(&self) -> Result<Option<Vec<u8>>> {
        if self.records == 0 {
            return Ok(None);
        }
        let chunk = self.chunk(&mut self.stream()?, self.chunk_of(0));
        let chunk =
            chunk.map_err(|what| Error::source(&self.version.path, format!("record 0: {what}")))?;
        // An empty record is damaged, and does not show the kind of the others.
        let mut all = (0..chunk.len()).filter_map(|number| chunk.record(number));
        let first = all.find(|record| !record.is_empty());
        Ok(first.map(<[u8]>::to_vec))
    }

    fn into_records(self, values: Arc<Values>) -> Box<dyn RecordFile> {
        Box::new(Records { file: self, values })
    }
}

impl ArrayFile {
    /// Returns the index of the chunk that contains a record.
    fn chunk_of(&self, record: u64) -> usize {
        let after = self.chunks.partition_point(|chunk| chunk.first <= record);
        after.saturating_sub(1)
    }

    /// Returns the number of the first record after a chunk.
    fn end_of(&self, chunk: usize) -> u64 {
        self.chunks
            .get(chunk + 1)
            .map_or(self.records, |next| next.first)
    }

    fn stream(&self) -> Result<Stream> {
        let file = self.version.reopen(&self.archive)?;
        Stream::new(file, ArchiveKind::Tar)
            .map_err(|error| Error::io(&self.version.path, "read", error))
    }

    /// Reads a chunk by its index in the list.
    fn chunk(&self, stream: &mut Stream, number: usize) -> std::result::Result<Chunk, String> {
        let listed = self.chunks[number];
        let at = |what: String| format!("offset {}: {what}", listed.offset);
        let chunk = Chunk::read(stream, self.version.bytes, listed.offset).map_err(at)?;
        let count = self.end_of(number) - listed.first;
        match chunk.len() as u64 == count {
            true => Ok(chunk),
            false => Err(at(format!(
                "the chunk has {} records, and the list says {count}",
                chunk.len()
            ))),
        }
    }
}

/// A file whose values are read as records.
#[derive(Debug)]
struct Records {
    file: ArrayFile,
    values: Arc<Values>,
}

impl RecordFile for Records {
    fn path(&self) -> &Path {
        &self.file.version.path
    }

    fn bytes(&self) -> u64 {
        self.file.version.bytes
    }

    fn records(&self) -> u64 {
        self.file.records
    }

    fn record_bytes(&self, record: u64) -> u64 {
        if record >= self.file.records {
            return 0;
        }
        let number = self.file.chunk_of(record);
        let listed = self.file.chunks[number];
        let count = self.file.end_of(number) - listed.first;
        (listed.bytes / count.max(1)).min(self.file.version.bytes.saturating_mul(1024))
    }

    fn in_place_refusal(&self) -> Option<String> {
        let found = self.file.compression;
        (found != Compression::None).then(|| {
            format!(
                "its chunks are compressed ({}): convert it, or write it with the options `group_size:1,uncompressed`",
                found.name()
            )
        })
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        Ok(Box::new(Reader {
            records: self,
            stream: self.file.stream()?,
            next: records.start,
            end: records.end.min(self.file.records),
            chunk: None,
            record: Vec::new(),
            key: Vec::new(),
        }))
    }
}

/// Reads records of a file in order.
struct Reader<'a> {
    records: &'a Records,
    stream: Stream,
    next: u64,
    end: u64,
    /// The index of the current chunk, and the chunk or the reason why it cannot be read.
    chunk: Option<(usize, std::result::Result<Chunk, String>)>,
    record: Vec<u8>,
    key: Vec<u8>,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        self.read(None)
    }

    fn next_mapped(&mut self, extents: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        extents.clear();
        self.read(Some(extents))
    }
}

impl Reader<'_> {
    fn read(&mut self, extents: Option<&mut Vec<Extent>>) -> Result<Option<SourceRecord<'_>>> {
        let Records { file, values } = self.records;
        let number = self.next;
        if number >= self.end {
            return Ok(None);
        }
        let at = file.chunk_of(number);
        if self.chunk.as_ref().is_none_or(|(open, _)| *open != at) {
            self.chunk = Some((at, file.chunk(&mut self.stream, at)));
        }
        self.next += 1;
        let refused = |what: String| Error::record(&file.version.path, number, what);
        let chunk = match &self.chunk {
            Some((_, Ok(chunk))) => chunk,
            Some((_, Err(what))) => return Err(refused(what.clone())),
            None => return Ok(None),
        };
        let refused = |what: String| refused(format!("offset {}: {what}", file.chunks[at].offset));
        let inside = (number - file.chunks[at].first) as usize;
        let mut value = chunk.record(inside).unwrap_or_default();
        self.key.clear();
        match &**values {
            Values::Own(_) => {
                let split = write::split_key(value);
                let (record, key) =
                    split.ok_or_else(|| refused("it has no key behind it".to_owned()))?;
                (value, self.key) = (record, key.to_vec());
            }
            Values::Foreign(schema) => {
                let example = ExampleView::parse(value).ok();
                let key = example.and_then(|example| example.bytes(&schema.key).ok().flatten());
                let key = key.filter(|key| key.len() <= MAX_KEY_BYTES);
                self.key.extend_from_slice(key.unwrap_or_default());
            }
            _ => {}
        }
        self.record.clear();
        let label = values.encode(value, &mut self.record).map_err(refused)?;
        let bytes = match values.are_records() {
            true => value,
            false => &self.record,
        };
        if let Some(extents) = extents {
            // A value that is an encoded image is one contiguous part of the record.
            let shift = match values.are_records() {
                true => Some(0),
                false => memchr::memmem::find(bytes, value),
            };
            for piece in chunk.pieces(inside) {
                let end = piece.data.end.min(value.len());
                let start = piece.data.start;
                if let Some(shift) = shift
                    && end.saturating_sub(start) >= MIN_EXTENT_BYTES
                {
                    extents.push(Extent {
                        record: start + shift..end + shift,
                        start: ExtentStart::File(piece.offset),
                    });
                }
            }
        }
        Ok(Some(SourceRecord {
            number,
            bytes,
            label,
            key: &self.key,
        }))
    }
}
