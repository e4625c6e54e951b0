//! The bytes of a file, as input for the decoder.

use super::memory::ColumnMemory;
use super::page_header::PageHeader;
use crate::error::{Error, Result};
use bytes::Bytes;
use forebay_shard::storage::{ReadAt, Storage};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Buffer size in bytes for reading page headers.
const READ_AHEAD_BYTES: usize = 64 << 10;
/// Largest page header in bytes; it may contain statistics with long values.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// A file, as input for the decoder.
#[derive(Debug)]
pub(super) struct Input {
    file: Arc<dyn ReadAt>,
    /// Offset and length of the most recent read.
    last: Mutex<(u64, u64)>,
    /// The last two offsets at which the decoder started to read: the header of a page, and possibly the data after it.
    starts: Mutex<[u64; 2]>,
    /// Counts the memory of the pages of a column.
    memory: Option<Arc<ColumnMemory>>,
}

impl Input {
    pub(super) fn open(path: &Path, storage: &dyn Storage) -> Result<Self> {
        let file = storage.open(path);
        let file = file.map_err(|error| Error::io(path, "open", error))?;
        Ok(Self::new(file, None))
    }

    fn new(file: Arc<dyn ReadAt>, memory: Option<Arc<ColumnMemory>>) -> Self {
        Self {
            file,
            last: Mutex::default(),
            starts: Mutex::default(),
            memory,
        }
    }

    /// Returns an input for the same file that counts the pages of a column.
    pub(super) fn of_column(&self, memory: Arc<ColumnMemory>) -> Self {
        Self::new(Arc::clone(&self.file), Some(memory))
    }

    /// Reads the page header that ends at offset `start`, where the bytes of the page begin.
    fn page_header(&self, start: u64) -> ParquetResult<PageHeader> {
        let [last, before] = *lock(&self.starts);
        let at = if last < start { last } else { before };
        let refused = || ParquetError::General("the header of a page is damaged".to_owned());
        let len = start.checked_sub(at);
        let len = len.filter(|len| *len <= MAX_HEADER_BYTES);
        let mut bytes = vec![0; len.ok_or_else(refused)? as usize];
        let read = self.file.read_exact_at(&mut bytes, at);
        read.map_err(|error| ParquetError::External(Box::new(error)))?;
        PageHeader::parse(&bytes).ok_or_else(refused)
    }

    /// Returns the offset and the length of the most recent read.
    pub(super) fn last_read(&self) -> (u64, u64) {
        *lock(&self.last)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Length for Input {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for Input {
    type T = InputReader;

    fn get_read(&self, start: u64) -> ParquetResult<InputReader> {
        let mut starts = lock(&self.starts);
        *starts = [start, starts[0]];
        Ok(InputReader {
            input: Arc::clone(&self.file),
            next: start,
            buffer: Vec::new(),
            taken: 0,
        })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let left = self.file.len().saturating_sub(start);
        if length as u64 > left {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at offset {start} go beyond the end of the file"
            )));
        }
        let page = match &self.memory {
            Some(memory) => {
                let header = self.page_header(start)?;
                memory.admit(&header, length as u64)?;
                Some((memory, header))
            }
            None => None,
        };
        let mut bytes = vec![0; length];
        *lock(&self.last) = (start, length as u64);
        let read = self.file.read_exact_at(&mut bytes, start);
        read.map_err(|error| ParquetError::External(Box::new(error)))?;
        if let Some((memory, header)) = page {
            memory.check_expanded(&header, &bytes)?;
        }
        Ok(bytes.into())
    }
}

/// Reads sequentially from an offset.
#[derive(Debug)]
pub(super) struct InputReader {
    input: Arc<dyn ReadAt>,
    next: u64,
    buffer: Vec<u8>,
    taken: usize,
}

impl Read for InputReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.buffer.len() {
            let left = self.input.len().saturating_sub(self.next);
            let len = left.min(READ_AHEAD_BYTES as u64) as usize;
            self.buffer.resize(len, 0);
            self.taken = 0;
            self.input.read_exact_at(&mut self.buffer, self.next)?;
            self.next += len as u64;
        }
        let rest = &self.buffer[self.taken..];
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        self.taken += len;
        Ok(len)
    }
}
