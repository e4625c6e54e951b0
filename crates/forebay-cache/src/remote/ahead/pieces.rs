//! The pieces of each object, and the queue of pieces to fetch.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Fetch;
use crate::remote::file::PIECE_BYTES;

/// A fetched piece that no reader has used for this time may be dropped for another one.
const STALE: Duration = Duration::from_secs(30);
/// Maximum number of queued pieces over all objects.
const MOST_QUEUED: usize = 4096;

#[derive(Default)]
pub(super) struct State {
    /// By object id and first byte. Pieces do not overlap.
    pub(super) pieces: HashMap<u64, BTreeMap<u64, Piece>>,
    pub(super) queue: VecDeque<(Arc<dyn Fetch>, u64)>,
    /// Bytes of pieces that are in flight or fetched, which count towards the budget.
    pub(super) held: u64,
    pub(super) next_token: u64,
    pub(super) threads: usize,
    pub(super) idle: usize,
    pub(super) stopped: bool,
    pub(super) spare: Vec<Vec<u8>>,
}

pub(super) struct Piece {
    pub(super) end: u64,
    pub(super) content: Content,
    /// Bytes that no reader has received yet.
    pub(super) unread: u64,
    pub(super) touched: Instant,
}

pub(super) enum Content {
    Queued,
    /// In flight, fetched by the thread that has this token.
    Coming(u64),
    Here(Arc<Vec<u8>>),
    Failed(Arc<io::Error>),
}

impl State {
    pub(super) fn insert(&mut self, id: u64, bytes: Range<u64>) {
        let piece = Piece {
            end: bytes.end,
            content: Content::Queued,
            unread: bytes.end - bytes.start,
            touched: Instant::now(),
        };
        self.pieces
            .entry(id)
            .or_default()
            .insert(bytes.start, piece);
    }

    /// Removes a piece. A piece in flight counts towards the budget until it arrives and is discarded.
    pub(super) fn remove(&mut self, id: u64, start: u64) {
        let Some(pieces) = self.pieces.get_mut(&id) else {
            return;
        };
        if let Some(piece) = pieces.remove(&start)
            && matches!(piece.content, Content::Here(_))
        {
            self.held -= piece.end - start;
        }
        if pieces.is_empty() {
            self.pieces.remove(&id);
        }
    }

    /// Queues pieces for those of these bytes that no piece covers yet. Returns the number of new pieces.
    pub(super) fn enqueue(&mut self, source: &Arc<dyn Fetch>, bytes: Range<u64>) -> usize {
        let mut missing = Vec::new();
        let mut at = bytes.start;
        if let Some(pieces) = self.pieces.get(&source.id()) {
            if let Some((_, piece)) = pieces.range(..=at).next_back() {
                at = at.max(piece.end);
            }
            for (&start, piece) in pieces.range(at..bytes.end.max(at)) {
                missing.push(at..start);
                at = piece.end;
            }
        }
        missing.push(at..bytes.end);
        let mut added = 0;
        for gap in missing.into_iter().filter(|gap| !gap.is_empty()) {
            // Pieces of about equal size, so that none is much shorter than the others.
            let count = (gap.end - gap.start).div_ceil(PIECE_BYTES);
            let len = (gap.end - gap.start).div_ceil(count);
            let mut start = gap.start;
            while start < gap.end && self.queue.len() < MOST_QUEUED {
                let end = gap.end.min(start + len);
                self.insert(source.id(), start..end);
                self.queue.push_back((Arc::clone(source), start));
                start = end;
                added += 1;
            }
        }
        added
    }

    /// Drops stale pieces until `bytes` fit into the budget.
    pub(super) fn make_room(&mut self, bytes: u64, budget: u64) {
        let now = Instant::now();
        let mut stale: Vec<(Instant, u64, u64)> = Vec::new();
        for (&id, pieces) in &self.pieces {
            for (&start, piece) in pieces {
                let is_here = matches!(piece.content, Content::Here(_));
                if is_here && now.duration_since(piece.touched) >= STALE {
                    stale.push((piece.touched, id, start));
                }
            }
        }
        stale.sort_unstable();
        for (_, id, start) in stale {
            if self.held + bytes <= budget {
                return;
            }
            self.remove(id, start);
        }
    }

    /// The next piece to fetch: source, range and token. `None` if the queue is empty or the budget is used up.
    pub(super) fn take(&mut self, budget: u64) -> Option<(Arc<dyn Fetch>, Range<u64>, u64)> {
        loop {
            let (source, start) = self.queue.front()?;
            let (id, start) = (source.id(), *start);
            let piece = self.pieces.get(&id).and_then(|pieces| pieces.get(&start));
            let end = match piece {
                Some(piece) if matches!(piece.content, Content::Queued) => piece.end,
                // The piece was forgotten, or a reader has fetched it itself.
                _ => {
                    self.queue.pop_front();
                    continue;
                }
            };
            let len = end - start;
            if self.held > 0 && self.held + len > budget {
                self.make_room(len, budget);
                if self.held > 0 && self.held + len > budget {
                    return None;
                }
            }
            let (source, _) = self.queue.pop_front()?;
            let token = self.next_token;
            self.next_token += 1;
            self.held += len;
            let piece = self.pieces.get_mut(&id)?.get_mut(&start)?;
            piece.content = Content::Coming(token);
            return Some((source, start..end, token));
        }
    }

    /// Records that a piece arrived, or that its fetch failed.
    pub(super) fn finish(
        &mut self,
        id: u64,
        bytes: &Range<u64>,
        token: u64,
        result: io::Result<Vec<u8>>,
    ) {
        let piece = self.pieces.get_mut(&id);
        let piece = piece.and_then(|pieces| pieces.get_mut(&bytes.start));
        match piece {
            Some(piece) if matches!(piece.content, Content::Coming(own) if own == token) => {
                piece.touched = Instant::now();
                piece.content = match result {
                    Ok(data) => Content::Here(Arc::new(data)),
                    Err(error) => {
                        self.held -= bytes.end - bytes.start;
                        Content::Failed(Arc::new(error))
                    }
                };
            }
            // The piece was forgotten meanwhile.
            _ => self.held -= bytes.end - bytes.start,
        }
    }
}
