//! Reads ranges of one version of an object.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use forebay_shard::{CacheHits, ReadAt};

use super::ahead::{Fetch, ReadAhead};
use super::error::ReadError;
use crate::{Cache, CachedObject, Filled};
use forebay_store::{Object, Result, Store, for_each_parallel};

/// Large reads are split into parallel pieces of at least this size, because one connection has a limited bandwidth.
pub(super) const PIECE_BYTES: u64 = 4 << 20;
/// Pieces of one read in flight at once.
const PIECES: usize = 8;

/// An object, pinned to the version that it had when it was opened.
#[derive(Debug)]
pub(super) struct Source {
    id: u64,
    store: Store,
    object: Object,
    cached: Option<(Arc<Cache>, CachedObject)>,
    /// Cache hits and misses of all readers of the storage.
    found: Arc<Mutex<CacheHits>>,
}

impl Source {
    pub(super) fn new(
        store: Store,
        object: Object,
        cache: Option<&Arc<Cache>>,
        found: &Arc<Mutex<CacheHits>>,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let cached = cache.and_then(|cache| {
            // Without an etag or a modification time, versions of an object cannot be distinguished: it is not cached.
            let modified = || {
                let since = object.modified?.duration_since(UNIX_EPOCH).ok()?;
                Some(format!("modified {}", since.as_nanos()))
            };
            let version = object.etag.clone().or_else(modified)?;
            let location = store.location().to_string();
            let object = cache.object(&location, &object.key, Some(&version), object.len);
            Some((Arc::clone(cache), object))
        });
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            store,
            object,
            cached,
            found: Arc::clone(found),
        }
    }

    /// Stores these bytes in the cache; `None` without a cache, or if the object cannot be cached.
    pub(super) fn fill(&self, bytes: Range<u64>) -> Option<Result<Filled>> {
        let (cache, object) = self.cached.as_ref()?;
        let fetch = |bytes: Range<u64>, buf: &mut [u8]| self.fetch_far(buf, bytes.start);
        Some(cache.fill(object, bytes, &fetch))
    }

    /// Calls `tell` ([`Cache::will_need`] or [`Cache::done_with`]) for these bytes, if the object is cached.
    fn tell(&self, bytes: Range<u64>, tell: fn(&Cache, &CachedObject, Range<u64>)) {
        if let Some((cache, object)) = &self.cached {
            tell(cache, object, bytes);
        }
    }

    fn fetch_piece(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        self.store.read_at_if(&self.object, offset, buf)
    }

    /// Fetches bytes from the store, in parallel pieces if there are many.
    fn fetch_far(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if buf.len() as u64 <= 2 * PIECE_BYTES {
            return self.fetch_piece(buf, offset);
        }
        // No piece is shorter than `PIECE_BYTES`: stores charge for each request.
        let pieces = (buf.len() / PIECE_BYTES as usize).clamp(1, PIECES);
        let piece = buf.len().div_ceil(pieces);
        let pieces = buf.chunks_mut(piece).zip((offset..).step_by(piece));
        for_each_parallel(pieces, PIECES, |(buf, at)| self.fetch_piece(buf, at))
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
        let Some((cache, object)) = &self.cached else {
            return self.fetch_far(buf, offset).map_err(ReadError::io);
        };
        let end = offset + buf.len() as u64;
        let fetch = |bytes: Range<u64>, buf: &mut [u8]| self.fetch_far(buf, bytes.start);
        let (read, found) = cache.read_counted(object, offset, buf, &fetch);
        {
            // A panic cannot leave the sum inconsistent.
            let mut all = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            *all = all.and(found);
        }
        self.tell(offset..end, Cache::done_with);
        read.map_err(ReadError::io)
    }
}

/// A file of the storage: reads through the cache and the readahead, if there are any.
pub(super) struct RemoteFile {
    own: Arc<Source>,
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
        let own = Arc::new(source);
        Self {
            source: Arc::<Source>::clone(&own),
            own,
            ahead,
        }
    }

    /// As [`Source::fill`].
    pub(super) fn fill(&self, bytes: Range<u64>) -> Option<Result<Filled>> {
        self.own.fill(bytes)
    }
}

impl ReadAt for RemoteFile {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn version(&self) -> Option<&str> {
        self.own.object.version()
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
        self.own.tell(bytes.clone(), Cache::will_need);
        if let Some(ahead) = &self.ahead {
            ahead.will_need(&self.source, bytes);
        }
    }

    fn forget(&self, bytes: Range<u64>) {
        self.own.tell(bytes.clone(), Cache::done_with);
        if let Some(ahead) = &self.ahead {
            ahead.forget(&self.source, bytes);
        }
    }
}
