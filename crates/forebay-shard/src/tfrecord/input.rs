//! A window over a stream: large reads into one reused buffer, from which records are returned without
//! a copy.

use std::io::{self, Read};

/// Initial size of a buffer: small enough to stay in a core's cache between the read that fills it
/// and the computation of the checksum.
pub(super) const BUFFER_BYTES: usize = 512 << 10;

/// The buffer and the underlying stream.
#[derive(Debug)]
pub(super) struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the stream of the byte at `start`.
    position: u64,
    ended: bool,
}

impl<R: Read> Input<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            position: 0,
            ended: false,
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Returns the stream, decompressed if necessary.
    pub(super) fn reader(&self) -> &R {
        &self.reader
    }

    /// Returns the buffered bytes from the current position on.
    pub(super) fn window(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or(&[])
    }

    /// Ensures that `len` bytes are buffered, or fewer at the end of the stream, and returns
    /// their number. The buffer grows as data arrives, never by a length that is only claimed by the
    /// input.
    pub(super) fn fill(&mut self, len: usize) -> io::Result<usize> {
        while self.end - self.start < len && !self.ended {
            if self.start > 0 && (self.end == self.buffer.len() || self.start == self.end) {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            if self.end == self.buffer.len() {
                let grown = (self.buffer.len() * 2).clamp(BUFFER_BYTES, len.max(BUFFER_BYTES));
                // Zeroed memory comes from the system without being touched: a small file uses only the pages
                // that it fills.
                let mut buffer = vec![0; grown];
                buffer[..self.end].copy_from_slice(&self.buffer[..self.end]);
                self.buffer = buffer;
            }
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok((self.end - self.start).min(len))
    }

    /// Advances by `len` buffered bytes.
    pub(super) fn consume(&mut self, len: usize) {
        let len = len.min(self.end - self.start);
        self.start += len;
        self.position += len as u64;
    }

    /// Returns `len` bytes that start `back` bytes before the current position. The range must lie
    /// within the bytes consumed last.
    pub(super) fn consumed(&self, back: usize, len: usize) -> &[u8] {
        let from = self.start.saturating_sub(back);
        self.buffer.get(from..from + len).unwrap_or(&[])
    }
}
