//! Reads frames in order, from any reader.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::frames::{FrameError, Frames};
use super::input::Input;
use super::salvage::LostRange;
use crate::compress::{Compression, Decoder};
use crate::error::{Error, Result};
use crate::frame::{HEAD_BYTES, MAX_RECORD_BYTES, RecordInfo, TAIL_BYTES};

/// The reaction to a damaged frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Stops with an error.
    #[default]
    Strict,
    /// Continues at the next valid frame, and records the lost range.
    Salvage,
}

/// A record in the reader's buffer, valid until the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record<'a> {
    /// Its number, offset and length.
    pub info: RecordInfo,
    /// Its payload.
    pub bytes: &'a [u8],
}

/// Options of a [`Reader`].
#[derive(Debug, Clone)]
pub struct ReaderBuilder {
    compression: Option<Compression>,
    mode: Mode,
    max_record: u64,
    verify: bool,
}

impl Default for ReaderBuilder {
    fn default() -> Self {
        Self {
            compression: None,
            mode: Mode::Strict,
            max_record: MAX_RECORD_BYTES,
            verify: true,
        }
    }
}

impl ReaderBuilder {
    /// Creates default options: strict, verifying, with the compression detected from the first
    /// bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the file's compression; by default it is detected from the first bytes.
    pub fn compression(&mut self, compression: Compression) -> &mut Self {
        self.compression = Some(compression);
        self
    }

    /// Sets the reaction to a damaged frame.
    pub fn mode(&mut self, mode: Mode) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Sets the maximum length of a record, in bytes; 256 MiB by default.
    pub fn max_record(&mut self, bytes: u64) -> &mut Self {
        self.max_record = bytes;
        self
    }

    /// Sets whether payloads are verified against their checksum. Lengths always are, since a wrong
    /// length would misalign all following frames.
    pub fn verify(&mut self, verify: bool) -> &mut Self {
        self.verify = verify;
        self
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn from_path(&self, path: impl AsRef<Path>) -> Result<Reader<File>> {
        let path = path.as_ref();
        let file =
            crate::storage::open_file(path).map_err(|error| Error::io(path, "open", error))?;
        let metadata = file
            .metadata()
            .map_err(|error| Error::io(path, "open", error))?;
        // A device has no known length.
        let len = metadata.is_file().then_some(metadata.len());
        Ok(self.build(file, path, len))
    }

    /// Reads from any reader; `name` is its name in errors.
    pub fn from_reader<R: Read>(&self, reader: R, name: impl AsRef<Path>) -> Reader<R> {
        self.build(reader, name.as_ref(), None)
    }

    fn build<R: Read>(&self, reader: R, path: &Path, file_len: Option<u64>) -> Reader<R> {
        Reader {
            stage: Stage::Start(Some(reader)),
            path: path.to_owned(),
            options: self.clone(),
            file_len,
            next: 0,
            lost: Vec::new(),
            vain: 0,
            done: false,
        }
    }
}

type Stream<R> = Decoder<io::Chain<io::Cursor<Vec<u8>>, R>>;

/// The decoder is created at the first read, when the first bytes are known.
enum Stage<R: Read> {
    Start(Option<R>),
    Open(Input<Stream<R>>),
}

/// Reads the records of a TFRecord file in order.
pub struct Reader<R: Read> {
    stage: Stage<R>,
    path: PathBuf,
    options: ReaderBuilder,
    file_len: Option<u64>,
    next: u64,
    lost: Vec<LostRange>,
    vain: u64,
    done: bool,
}

impl<R: Read> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .field("options", &self.options)
            .field("next", &self.next)
            .field("lost", &self.lost)
            .finish_non_exhaustive()
    }
}

impl Reader<File> {
    /// Opens a file with the default options.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        ReaderBuilder::new().from_path(path)
    }
}

impl<R: Read> Reader<R> {
    /// Returns the next record, in the reader's buffer; `None` after the last.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for damage in strict mode, [`Error::Io`] if reading fails. After an error
    /// there are no more records.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>> {
        if self.done {
            return Ok(None);
        }
        let found = self.advance();
        self.done = !matches!(found, Ok(Some(_)));
        let Some(info) = found? else { return Ok(None) };
        let Stage::Open(input) = &self.stage else {
            return Ok(None);
        };
        let bytes = input.consumed(info.len as usize + TAIL_BYTES, info.len as usize);
        Ok(Some(Record { info, bytes }))
    }

    /// Replaces `record` by the next record's payload.
    ///
    /// # Errors
    /// As [`next_record`](Self::next_record).
    pub fn read_into(&mut self, record: &mut Vec<u8>) -> Result<Option<RecordInfo>> {
        record.clear();
        let Some(next) = self.next_record()? else {
            return Ok(None);
        };
        record.extend_from_slice(next.bytes);
        Ok(Some(next.info))
    }

    /// Returns an iterator over the records, each in a new vector.
    pub fn records(self) -> Records<R> {
        Records { reader: self }
    }

    /// Returns the ranges that salvage mode has left out so far.
    pub fn lost(&self) -> &[LostRange] {
        &self.lost
    }

    /// Returns the file's compression; `None` before the first record was requested.
    pub fn compression(&self) -> Option<Compression> {
        match &self.stage {
            Stage::Start(_) => self.options.compression,
            Stage::Open(input) => Some(input.reader().compression()),
        }
    }

    /// Returns the number of bytes of the (decompressed) stream that have been consumed.
    pub fn position(&self) -> u64 {
        match &self.stage {
            Stage::Start(_) => 0,
            Stage::Open(input) => input.position(),
        }
    }

    fn advance(&mut self) -> Result<Option<RecordInfo>> {
        if let Stage::Start(reader) = &mut self.stage
            && let Some(reader) = reader.take()
        {
            let input = open(reader, self.options.compression)
                .map_err(|error| Error::io(&self.path, "read", error))?;
            self.stage = Stage::Open(input);
        }
        let Stage::Open(input) = &mut self.stage else {
            return Ok(None);
        };
        let plain = input.reader().compression() == Compression::None;
        let mut frames = Frames {
            input,
            limit: self.file_len.filter(|_| plain),
            max_record: self.options.max_record,
            verify: self.options.verify || self.options.mode == Mode::Salvage,
            vain: &mut self.vain,
        };
        let known = self.lost.len();
        let step = match self.options.mode {
            Mode::Strict => frames.next(),
            Mode::Salvage => frames.next_valid(&mut self.lost),
        };
        for lost in self.lost.iter_mut().skip(known) {
            lost.records_before = self.next;
            lost.cause.shard.clone_from(&self.path);
        }
        match step {
            Ok(None) => Ok(None),
            Ok(Some((offset, len))) => {
                let info = RecordInfo {
                    index: self.next,
                    offset,
                    len,
                };
                self.next += 1;
                Ok(Some(info))
            }
            Err(FrameError::Damage(damage)) => {
                Err(damage.record(self.next).shard(&self.path).into())
            }
            Err(FrameError::Io(source)) => Err(Error::io(&self.path, "read", source)),
        }
    }
}

/// Detects the compression from the first bytes and sets up the decoder.
fn open<R: Read>(mut reader: R, known: Option<Compression>) -> io::Result<Input<Stream<R>>> {
    let mut start = Vec::new();
    let compression = match known {
        Some(compression) => compression,
        None => {
            reader
                .by_ref()
                .take(HEAD_BYTES as u64)
                .read_to_end(&mut start)?;
            Compression::detect(&start)
        }
    };
    let decoder = Decoder::new(compression, io::Cursor::new(start).chain(reader))?;
    Ok(Input::new(decoder))
}

/// An iterator over the records of a file, each in a new vector.
#[derive(Debug)]
pub struct Records<R: Read> {
    reader: Reader<R>,
}

impl<R: Read> Records<R> {
    /// Returns the reader, for its lost ranges.
    pub fn reader(&self) -> &Reader<R> {
        &self.reader
    }
}

impl<R: Read> Iterator for Records<R> {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut record = Vec::new();
        match self.reader.read_into(&mut record) {
            Ok(Some(_)) => Some(Ok(record)),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        }
    }
}
