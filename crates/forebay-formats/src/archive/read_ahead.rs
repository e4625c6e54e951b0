//! Reads an object sequentially with readahead, because the latency of a request is as long as the transfer of many bytes.

use super::bytes::{ObjectFile, ReadAt};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Size of a request in bytes.
const PIECE_BYTES: u64 = 4 << 20;
/// Most requests in flight, which is also the most pieces in memory. Readahead grows by one with each piece that is read in
/// sequence.
const PIECES: usize = 6;

/// Reads an object at offsets that mostly increase.
pub(super) struct ReadAhead {
    file: ObjectFile,
    /// Offset of the current piece.
    start: u64,
    piece: Vec<u8>,
    pending: VecDeque<PendingRead>,
    /// Offset of the next request.
    next: u64,
    /// Number of requests that should be in flight.
    depth: usize,
}

struct PendingRead {
    start: u64,
    bytes: JoinHandle<io::Result<Vec<u8>>>,
}

impl ReadAhead {
    pub(super) fn new(file: ObjectFile) -> Self {
        Self {
            file,
            start: 0,
            piece: Vec::new(),
            pending: VecDeque::new(),
            next: 0,
            depth: 1,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.file.len()
    }

    /// Fills `out` with bytes at `position`, at most to the end of their piece.
    pub(super) fn read_at(&mut self, position: u64, out: &mut [u8]) -> io::Result<usize> {
        if position >= self.len() {
            return Ok(0);
        }
        while !self.holds(position) {
            self.advance(position)?;
        }
        let from = (position - self.start) as usize;
        let there = self.piece.get(from..).unwrap_or_default();
        let count = there.len().min(out.len());
        out[..count].copy_from_slice(&there[..count]);
        Ok(count)
    }

    fn holds(&self, position: u64) -> bool {
        position >= self.start && position - self.start < self.piece.len() as u64
    }

    /// Replaces the current piece by the next one in the direction of `position`.
    fn advance(&mut self, position: u64) -> io::Result<()> {
        let covers =
            |read: &PendingRead| (read.start..read.start + PIECE_BYTES).contains(&position);
        if self.pending.iter().any(covers) {
            while !self.pending.front().is_some_and(covers) {
                self.pending.pop_front();
            }
        } else if position != self.next {
            // The requests in flight were skipped over. Their threads end by themselves.
            self.pending.clear();
            self.next = position;
            self.depth = 1;
        }
        while self.pending.len() < self.depth && self.next < self.len() {
            self.request();
        }
        let Some(read) = self.pending.pop_front() else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        self.depth = (self.depth + 1).min(PIECES);
        while self.pending.len() + 1 < self.depth && self.next < self.len() {
            self.request();
        }
        let panicked = |_| io::Error::other("a thread that read ahead ended");
        self.piece = read.bytes.join().map_err(panicked)??;
        self.start = read.start;
        Ok(())
    }

    fn request(&mut self) {
        let start = self.next;
        let len = (self.len() - start).min(PIECE_BYTES);
        self.next += len;
        let file = self.file.clone();
        let bytes = std::thread::spawn(move || {
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, start)?;
            Ok(bytes)
        });
        self.pending.push_back(PendingRead { start, bytes });
    }
}

/// Reads an object sequentially for a decoder, and publishes its position.
pub(super) struct Sequential {
    ahead: ReadAhead,
    position: Arc<AtomicU64>,
}

impl Sequential {
    pub(super) fn new(file: ObjectFile, position: Arc<AtomicU64>) -> Self {
        Self {
            ahead: ReadAhead::new(file),
            position,
        }
    }
}

impl Read for Sequential {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let at = self.position.load(Ordering::Relaxed);
        let read = self.ahead.read_at(at, out)?;
        self.position.store(at + read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes::{Archive, ArchiveFile};
    use super::*;
    use forebay_store::{Location, Store, StoreOptions};

    #[test]
    fn any_positions_give_the_bytes_there() {
        let dir = tempfile::tempdir().unwrap();
        let len = 3 * PIECE_BYTES as usize + 12_345;
        let bytes: Vec<u8> = (0..len as u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        std::fs::write(dir.path().join("a"), &bytes).unwrap();
        let store = Store::open(&Location::from(dir.path()), &StoreOptions::default()).unwrap();
        let (ArchiveFile::Object(file), _) = Archive::Object(store, "a".into()).open().unwrap()
        else {
            panic!("an object was opened");
        };
        let mut ahead = ReadAhead::new(file.clone());
        let end = len as u64;
        for position in [
            0,
            5,
            PIECE_BYTES - 1,
            PIECE_BYTES,
            3 * PIECE_BYTES,
            7,
            2 * PIECE_BYTES,
            end - 1,
            end,
        ] {
            let mut out = [0; 100];
            let mut filled = 0;
            while filled < out.len() {
                match ahead
                    .read_at(position + filled as u64, &mut out[filled..])
                    .unwrap()
                {
                    0 => break,
                    read => filled += read,
                }
            }
            let from = position as usize;
            assert_eq!(
                out[..filled],
                bytes[from..(from + 100).min(len)],
                "{position}"
            );
        }
        let mut all = Vec::new();
        let position = Arc::default();
        Sequential::new(file, Arc::clone(&position))
            .read_to_end(&mut all)
            .unwrap();
        assert!(all == bytes);
        assert_eq!(position.load(Ordering::Relaxed), end);
    }
}
