//! One object, pinned, and how ranges of it are read.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_shard::ReadAt;

use super::ahead::{Fetch, ReadAhead};
use super::error::ReadError;
use crate::{Object, Store};

/// Larger reads are made in pieces of this size at once: one connection gives only so much.
pub(super) const PIECE_BYTES: u64 = 4 << 20;
/// Pieces of one read on their way at once.
const PIECES: usize = 8;

/// An object as it was when it was opened.
#[derive(Debug)]
pub(super) struct Source {
    id: u64,
    store: Store,
    object: Object,
}

impl Source {
    pub(super) fn new(store: Store, object: Object) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            store,
            object,
        }
    }

    fn fetch_piece(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        self.store
            .read_at_if(&self.object, offset, buf)
            .map_err(ReadError::io)
    }
}

impl Fetch for Source {
    fn id(&self) -> u64 {
        self.id
    }

    fn len(&self) -> u64 {
        self.object.len
    }

    fn fetch(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if buf.len() as u64 <= 2 * PIECE_BYTES {
            return self.fetch_piece(buf, offset);
        }
        let piece = buf.len().div_ceil(PIECES).max(PIECE_BYTES as usize);
        std::thread::scope(|scope| {
            let mut pieces = buf.chunks_mut(piece).zip((offset..).step_by(piece));
            let first = pieces.next();
            let others: Vec<_> = pieces
                .map(|(buf, at)| scope.spawn(move || self.fetch_piece(buf, at)))
                .collect();
            let mut result = first.map_or(Ok(()), |(buf, at)| self.fetch_piece(buf, at));
            for other in others {
                let other = other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(other);
            }
            result
        })
    }
}

/// An object that is read.
pub(super) struct RemoteFile {
    source: Arc<dyn Fetch>,
    ahead: Option<Arc<ReadAhead>>,
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile")
            .field("len", &self.source.len())
            .finish_non_exhaustive()
    }
}

impl RemoteFile {
    pub(super) fn new(source: Source, ahead: Option<Arc<ReadAhead>>) -> Self {
        Self {
            source: Arc::new(source),
            ahead,
        }
    }
}

impl ReadAt for RemoteFile {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.source.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match &self.ahead {
            Some(ahead) => ahead.read(&self.source, buf, offset),
            None => self.source.fetch(buf, offset),
        }
    }

    fn will_need(&self, bytes: Range<u64>) {
        if let Some(ahead) = &self.ahead {
            ahead.will_need(&self.source, bytes);
        }
    }

    fn forget(&self, bytes: Range<u64>) {
        if let Some(ahead) = &self.ahead {
            ahead.forget(&self.source, bytes);
        }
    }
}
