//! Readahead within a byte budget.
//!
//! Readers announce the next ranges ([`will_need`](ReadAhead::will_need)), and readahead threads fetch them in that order, in
//! pieces, as long as all pieces together fit into the budget. A read of a piece in flight waits for it; a read of a piece that
//! is still queued fetches the bytes itself. Each byte is returned once: a piece is dropped when all of its bytes were read.
//! Reads succeed without readahead as well. A byte that was read ahead is not fetched a second time.

mod pieces;

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pieces::{Content, State};

/// A thread without work exits after this time.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of free buffers for reuse: filling them is several times faster than filling fresh pages.
const SPARE: usize = 4;

/// Bytes that can be fetched.
pub(super) trait Fetch: Send + Sync {
    /// A number that is unique in this process.
    fn id(&self) -> u64;
    /// The number of bytes.
    fn len(&self) -> u64;
    /// Fills `buf` with the bytes from `offset` on.
    fn fetch(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

/// The readahead buffer that all readers of a storage share.
pub(super) struct ReadAhead {
    /// The process that created this. Threads do not survive a fork: in a forked child nothing is read ahead.
    process: u32,
    shared: Arc<Shared>,
}

struct Shared {
    budget: u64,
    most_threads: usize,
    state: Mutex<State>,
    /// A piece arrived.
    arrived: Condvar,
    /// A piece was queued, or budget was freed.
    work: Condvar,
}

/// The readahead state of a range.
enum Found {
    /// The piece's bytes, and the position of the requested offset in them.
    Bytes(Arc<Vec<u8>>, usize),
    /// No piece covers the bytes up to this offset: the reader fetches them itself.
    Nothing(u64),
    Failed(Arc<io::Error>),
}

impl fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadAhead")
            .field("budget", &self.shared.budget)
            .finish_non_exhaustive()
    }
}

impl ReadAhead {
    pub(super) fn new(budget: u64, most_threads: usize) -> Self {
        Self {
            process: std::process::id(),
            shared: Arc::new(Shared {
                budget,
                most_threads: most_threads.max(1),
                state: Mutex::default(),
                arrived: Condvar::new(),
                work: Condvar::new(),
            }),
        }
    }

    pub(super) fn budget(&self) -> u64 {
        self.shared.budget
    }

    fn is_elsewhere(&self) -> bool {
        self.process != std::process::id()
    }

    /// Fills `buf` with the bytes from `offset` on. The range must be within the object.
    pub(super) fn read(
        &self,
        source: &Arc<dyn Fetch>,
        buf: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        if self.is_elsewhere() {
            return source.fetch(buf, offset);
        }
        let end = offset + buf.len() as u64;
        let mut at = offset;
        while at < end {
            let rest = &mut buf[(at - offset) as usize..];
            match self.shared.find(source, at, end) {
                Found::Bytes(bytes, from) => {
                    let len = rest.len().min(bytes.len() - from);
                    rest[..len].copy_from_slice(&bytes[from..from + len]);
                    at += len as u64;
                    self.shared.give_back(bytes);
                }
                Found::Nothing(until) => {
                    source.fetch(&mut rest[..(until - at) as usize], at)?;
                    at = until;
                }
                Found::Failed(error) => return Err(again(&error)),
            }
        }
        Ok(())
    }

    /// Queues these bytes for readahead; they are fetched once the budget allows it.
    pub(super) fn will_need(&self, source: &Arc<dyn Fetch>, bytes: Range<u64>) {
        if self.is_elsewhere() {
            return;
        }
        let bytes = bytes.start..bytes.end.min(source.len());
        let mut state = self.shared.lock();
        let added = state.enqueue(source, bytes);
        for _ in 0..added.saturating_sub(state.idle) {
            if state.threads >= self.shared.most_threads {
                break;
            }
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("fb-ahead".into());
            if thread.spawn(move || run(&shared)).is_err() {
                // Without threads, readers fetch the bytes themselves.
                break;
            }
            state.threads += 1;
        }
        drop(state);
        self.shared.work.notify_all();
    }

    /// Drops the pieces of these bytes, queued or fetched.
    pub(super) fn forget(&self, source: &Arc<dyn Fetch>, bytes: Range<u64>) {
        if self.is_elsewhere() {
            return;
        }
        let mut state = self.shared.lock();
        let starts: Vec<u64> = match state.pieces.get(&source.id()) {
            Some(pieces) => {
                let before = pieces.range(..bytes.start).next_back();
                let into = before.filter(|(_, piece)| piece.end > bytes.start);
                let inside = pieces.range(bytes.clone());
                into.into_iter()
                    .chain(inside)
                    .map(|(start, _)| *start)
                    .collect()
            }
            None => return,
        };
        for start in starts {
            state.remove(source.id(), start);
        }
        drop(state);
        self.shared.work.notify_all();
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if self.is_elsewhere() {
            return;
        }
        // Waiting threads exit now, fetching threads after their fetch.
        let mut state = self.shared.lock();
        state.stopped = true;
        state.queue.clear();
        state.pieces.clear();
        drop(state);
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs while the state is inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes from `at` to `end` that were read ahead, and waits for those in flight.
    fn find(&self, source: &Arc<dyn Fetch>, at: u64, end: u64) -> Found {
        let mut state = self.lock();
        loop {
            let Some(pieces) = state.pieces.get_mut(&source.id()) else {
                return Found::Nothing(end);
            };
            let here = pieces.range_mut(..=at).next_back();
            let Some((&start, piece)) = here.filter(|(_, piece)| at < piece.end) else {
                let next = pieces.range(at..end).next();
                return Found::Nothing(next.map_or(end, |(&start, _)| start));
            };
            let until = end.min(piece.end);
            match &piece.content {
                Content::Here(bytes) => {
                    let bytes = Arc::clone(bytes);
                    piece.touched = Instant::now();
                    piece.unread = piece.unread.saturating_sub(until - at);
                    if piece.unread == 0 {
                        state.remove(source.id(), start);
                        self.work.notify_all();
                    }
                    return Found::Bytes(bytes, (at - start) as usize);
                }
                Content::Coming(_) => {
                    state = self
                        .arrived
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Content::Failed(error) => {
                    let error = Arc::clone(error);
                    state.remove(source.id(), start);
                    return Found::Failed(error);
                }
                Content::Queued => {
                    // The part before `at` is dropped: a sequential reader does not come back for it.
                    let rest = until..piece.end;
                    state.remove(source.id(), start);
                    if !rest.is_empty() {
                        state.insert(source.id(), rest.clone());
                        state.queue.push_front((Arc::clone(source), rest.start));
                    }
                    return Found::Nothing(until);
                }
            }
        }
    }

    /// Keeps a buffer for reuse if no other reader holds it.
    fn give_back(&self, bytes: Arc<Vec<u8>>) {
        if let Some(bytes) = Arc::into_inner(bytes) {
            let mut state = self.lock();
            if state.spare.len() < SPARE && !state.stopped {
                state.spare.push(bytes);
            }
        }
    }
}

/// The loop of a readahead thread: fetches pieces, and returns after [`IDLE`] without work.
fn run(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if state.stopped {
            break;
        }
        if let Some((source, bytes, token)) = state.take(shared.budget) {
            let mut data = state.spare.pop().unwrap_or_default();
            drop(state);
            // `resize` zeroes only bytes beyond the old length; the others are overwritten.
            data.resize((bytes.end - bytes.start) as usize, 0);
            let fetched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                source.fetch(&mut data, bytes.start)
            }));
            let result = match fetched {
                Ok(result) => result.map(|()| data),
                Err(_) => Err(io::Error::other("reading ahead panicked")),
            };
            state = shared.lock();
            state.finish(source.id(), &bytes, token, result);
            shared.arrived.notify_all();
            continue;
        }
        let waits_for_room = !state.queue.is_empty();
        state.idle += 1;
        let (back, waited) = shared
            .work
            .wait_timeout(state, IDLE)
            .unwrap_or_else(PoisonError::into_inner);
        state = back;
        state.idle -= 1;
        if waited.timed_out() && !waits_for_room && state.queue.is_empty() {
            break;
        }
    }
    state.threads -= 1;
}

/// A copy of the error for one of several readers.
fn again(error: &Arc<io::Error>) -> io::Error {
    io::Error::new(error.kind(), Shown(Arc::clone(error)))
}

/// An error that several readers share.
#[derive(Debug)]
pub(super) struct Shown(pub(super) Arc<io::Error>);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Shown {}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::remote::file::PIECE_BYTES;

    /// Lets a fetch succeed, or makes it fail.
    type Gate = Result<(), &'static str>;

    /// A source whose bytes depend on their offset. A fetch returns when the test sends a gate.
    struct Slow {
        len: u64,
        gates: Mutex<Option<Receiver<Gate>>>,
        begun: Mutex<Sender<Range<u64>>>,
    }

    fn slow(len: u64) -> (Arc<dyn Fetch>, Sender<Gate>, Receiver<Range<u64>>) {
        let ((open, gates), (begun, seen)) = (channel(), channel());
        let slow = Slow {
            len,
            gates: Mutex::new(Some(gates)),
            begun: Mutex::new(begun),
        };
        (Arc::new(slow), open, seen)
    }

    fn byte(at: u64) -> u8 {
        (at % 251) as u8
    }

    impl Fetch for Slow {
        fn id(&self) -> u64 {
            7
        }

        fn len(&self) -> u64 {
            self.len
        }

        fn fetch(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            let bytes = offset..offset + buf.len() as u64;
            assert!(bytes.end <= self.len && !bytes.is_empty());
            let _ = self.begun.lock().unwrap().send(bytes);
            let gate = self.gates.lock().unwrap().as_ref().map(Receiver::recv);
            if let Some(Ok(Err(why))) = gate {
                return Err(io::Error::other(why));
            }
            buf.iter_mut()
                .zip(offset..)
                .for_each(|(to, at)| *to = byte(at));
            Ok(())
        }
    }

    fn check(ahead: &ReadAhead, source: &Arc<dyn Fetch>, bytes: Range<u64>) {
        let mut buf = vec![0; (bytes.end - bytes.start) as usize];
        ahead.read(source, &mut buf, bytes.start).unwrap();
        assert!(buf.iter().copied().eq(bytes.map(byte)));
    }

    #[test]
    fn reads_wait_for_pieces_in_flight_and_fetch_once() {
        let ahead = ReadAhead::new(64 << 20, 1);
        let (source, open, begun) = slow(3 * PIECE_BYTES);
        ahead.will_need(&source, 0..2 * PIECE_BYTES);
        assert_eq!(begun.recv().unwrap(), 0..PIECE_BYTES);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| check(&ahead, &source, 1000..2000));
            open.send(Ok(())).unwrap();
            reader.join().unwrap();
        });
        assert_eq!(begun.recv().unwrap(), PIECE_BYTES..2 * PIECE_BYTES);
        open.send(Ok(())).unwrap();
        // Reads across pieces, and beyond the announced range.
        open.send(Ok(())).unwrap();
        check(&ahead, &source, 2000..2 * PIECE_BYTES + 10);
        assert_eq!(begun.recv().unwrap(), 2 * PIECE_BYTES..2 * PIECE_BYTES + 10);
        check(&ahead, &source, 0..1000);
        assert!(begun.try_recv().is_err(), "nothing was fetched twice");
        let state = ahead.shared.lock();
        assert_eq!((state.held, state.pieces.len()), (0, 0));
    }

    #[test]
    fn the_budget_holds_and_readers_never_wait_for_it() {
        let ahead = ReadAhead::new(2 * PIECE_BYTES, 4);
        let (source, open, begun) = slow(8 * PIECE_BYTES);
        drop(open);
        ahead.will_need(&source, 0..8 * PIECE_BYTES);
        let two: Vec<u64> = (0..2).map(|_| begun.recv().unwrap().start).collect();
        assert!(two.contains(&0) && two.contains(&PIECE_BYTES));
        // The fourth piece does not fit into the budget, so the reader fetches the bytes itself.
        check(&ahead, &source, 3 * PIECE_BYTES..3 * PIECE_BYTES + 100);
        assert_eq!(
            begun.recv().unwrap(),
            3 * PIECE_BYTES..3 * PIECE_BYTES + 100
        );
        assert!(ahead.shared.lock().held <= 2 * PIECE_BYTES);
        // Sequential reads: each piece that is read frees the budget for the next one.
        check(&ahead, &source, 0..3 * PIECE_BYTES);
        check(&ahead, &source, 3 * PIECE_BYTES + 100..8 * PIECE_BYTES);
        let mut fetched: Vec<Range<u64>> = begun.try_iter().collect();
        fetched.sort_by_key(|bytes| bytes.start);
        assert_eq!(
            fetched.first().map(|bytes| bytes.start),
            Some(2 * PIECE_BYTES)
        );
        assert!(
            fetched.windows(2).all(|two| two[0].end <= two[1].start),
            "{fetched:?}"
        );
        let state = ahead.shared.lock();
        assert_eq!((state.held, state.pieces.len()), (0, 0));
    }

    #[test]
    fn a_failure_is_returned_and_the_next_read_retries() {
        let ahead = ReadAhead::new(64 << 20, 1);
        let (source, open, begun) = slow(PIECE_BYTES);
        ahead.will_need(&source, 0..PIECE_BYTES);
        begun.recv().unwrap();
        open.send(Err("gone")).unwrap();
        let error = ahead.read(&source, &mut [0; 10], 0).unwrap_err();
        assert_eq!(error.to_string(), "gone");
        drop(open);
        check(&ahead, &source, 0..10);
    }

    #[test]
    fn forgotten_pieces_free_the_budget() {
        let ahead = ReadAhead::new(64 << 20, 1);
        let (source, open, begun) = slow(4 * PIECE_BYTES);
        ahead.will_need(&source, 0..4 * PIECE_BYTES);
        begun.recv().unwrap();
        ahead.forget(&source, 0..4 * PIECE_BYTES);
        drop(open);
        check(&ahead, &source, 0..4 * PIECE_BYTES);
        // The piece in flight is discarded when it arrives.
        while ahead.shared.lock().held > 0 {
            std::thread::yield_now();
        }
    }
}
