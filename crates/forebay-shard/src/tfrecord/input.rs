//! A window over a stream: large reads into one reused buffer, from which
//! records are handed out in place.

use std::io::{self, Read};

/// The first size of a buffer. Small enough to stay in a core's cache between
/// the read that fills it and the checksum that goes over it.
pub(super) const BUFFER_BYTES: usize = 512 << 10;

/// The buffer and the stream behind it.
#[derive(Debug)]
pub(super) struct Input<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Byte of the stream at `start`.
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

    /// The stream, expanded if it is compressed.
    pub(super) fn reader(&self) -> &R {
        &self.reader
    }

    /// Returns the buffered bytes from the current position on.
    pub(super) fn window(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or(&[])
    }

    /// Makes `len` bytes be at hand, fewer only at the end of the stream, and
    /// says how many are. The buffer grows as data comes, never by a length
    /// that the input only claims.
    pub(super) fn fill(&mut self, len: usize) -> io::Result<usize> {
        while self.end - self.start < len && !self.ended {
            if self.start > 0 && (self.end == self.buffer.len() || self.start == self.end) {
                self.buffer.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            if self.end == self.buffer.len() {
                let grown = (self.buffer.len() * 2).clamp(BUFFER_BYTES, len.max(BUFFER_BYTES));
                // Fresh zeros come from the system untouched: a small file
                // costs only the pages that it fills.
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

    /// Goes on by `len` bytes that are at hand.
    pub(super) fn consume(&mut self, len: usize) {
        let len = len.min(self.end - self.start);
        self.start += len;
        self.position += len as u64;
    }

    /// `len` bytes that start `back` bytes before the current position, both
    /// within what was consumed last.
    pub(super) fn consumed(&self, back: usize, len: usize) -> &[u8] {
        let from = self.start.saturating_sub(back);
        self.buffer.get(from..from + len).unwrap_or(&[])
    }
}
