//! Room in the area: taken before anything is written, given back when a file is stored and gone.

use super::queue::LOOK;
use super::session::{AreaLock, Session, Usage, others};
use super::{Shared, StagingArea};
use crate::unit;
use forebay_store::{Cancel, Error, Result};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes of an area that the holder may write. Given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    bytes: u64,
}

/// The result of a request for room.
enum Answer {
    Taken,
    /// Something will be stored, or given back.
    Wait,
}

impl StagingArea {
    /// Takes room for this many bytes, and waits while there is none.
    ///
    /// # Errors
    /// [`Error::AreaTooSmall`] if the area could never have that much; the error of a file that could not be brought to its place,
    /// once; a stop that was requested. Never because the area is full.
    pub fn reserve(&self, bytes: u64, cancel: &Cancel) -> Result<Reservation> {
        let taken = self.reserve_unless(bytes, &|| cancel.is_cancelled())?;
        taken.ok_or_else(|| Error::Cancelled {
            object: self.shared.dir.display().to_string(),
            op: "reserve room in",
        })
    }

    /// As [`reserve`](Self::reserve); none if `stopped` says so while it waits.
    pub fn reserve_unless(
        &self,
        bytes: u64,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<Reservation>> {
        let shared = &self.shared;
        shared.check_process()?;
        loop {
            shared.tell_failure()?;
            if let Answer::Taken = shared.take(bytes)? {
                return Ok(Some(Reservation {
                    shared: Arc::clone(shared),
                    bytes,
                }));
            }
            // Asked only where there is no room: what a writer that stops still has goes in.
            if stopped() {
                return Ok(None);
            }
            // Other processes give back without a word: so it looks again after a moment.
            shared.queue.wait_a_moment(LOOK);
        }
    }

    /// Room for files that were in the session when it was opened and are handed in only now: it is theirs already.
    pub fn reserve_found(&self, bytes: u64) -> Result<Reservation> {
        let shared = &self.shared;
        let mut found = shared.found_bytes.lock().unwrap_or_else(|e| e.into_inner());
        let known = bytes.min(*found);
        shared.own.hold(|held| {
            held.bytes = held.bytes.saturating_add(bytes - known);
            held.reserved = held.reserved.saturating_add(bytes);
        })?;
        *found -= known;
        Ok(Reservation {
            shared: Arc::clone(shared),
            bytes,
        })
    }
}

/// Usage of all other sessions.
#[derive(Default)]
struct Others {
    live: Usage,
    dead: u64,
}

/// Bytes that all sessions hold, and checkpoints in the same directory.
pub(super) fn all_held(area: &Path, own: &Session) -> Result<u64> {
    let _lock = AreaLock::lock(area)?;
    let others = others(area, &BTreeSet::from([own.name.clone()]))?;
    let checkpoints = unit::held_in(area)?;
    Ok(others
        .iter()
        .map(|seen| seen.held.bytes)
        .fold(own.held().bytes, u64::saturating_add)
        .saturating_add(checkpoints.bytes)
        .saturating_add(checkpoints.promised))
}

/// Bytes that sessions may still write into an area. Hold the area's lock.
pub fn reserved(area: &Path) -> Result<u64> {
    let sessions = others(area, &BTreeSet::new())?;
    let reserved = sessions.iter().map(|seen| seen.held.reserved);
    Ok(reserved.fold(0, u64::saturating_add))
}

impl Shared {
    fn others(&self) -> Result<Others> {
        let mut sum = Others::default();
        for seen in others(&self.dir, &BTreeSet::from([self.own.name.clone()]))? {
            if seen.owner.is_some() {
                sum.live.bytes = sum.live.bytes.saturating_add(seen.held.bytes);
                sum.live.reserved = sum.live.reserved.saturating_add(seen.held.reserved);
            } else {
                sum.dead = sum.dead.saturating_add(seen.held.bytes);
            }
        }
        Ok(sum)
    }

    fn take(&self, bytes: u64) -> Result<Answer> {
        if bytes > self.max_bytes {
            return Err(self.too_small(bytes, 0));
        }
        let _lock = AreaLock::lock(&self.dir)?;
        let others = self.others()?;
        let own = self.own.held();
        let left_for_living = self.max_bytes.saturating_sub(others.dead);
        if bytes > left_for_living {
            return Err(self.too_small(bytes, others.dead));
        }
        let sessions = own.bytes.saturating_add(others.live.bytes);
        let mut checkpoints = unit::held_in(&self.dir)?;
        let mut held = sessions.saturating_add(checkpoints.all());
        if held.saturating_add(bytes) > left_for_living && checkpoints.copies > 0 {
            // Copies of what is in a store already make room for what is not.
            unit::drop_copies(&self.dir)?;
            checkpoints = unit::held_in(&self.dir)?;
            held = sessions.saturating_add(checkpoints.all());
        }
        if held.saturating_add(bytes) > left_for_living {
            let left_behind = unit::left_behind(&self.dir)?;
            if bytes > left_for_living.saturating_sub(left_behind) {
                return Err(self.too_small(bytes, others.dead.saturating_add(left_behind)));
            }
            return Ok(Answer::Wait);
        }
        // The disk may be fuller than the bound knows. What is reserved may not be written yet.
        let promised = own
            .reserved
            .saturating_add(others.live.reserved)
            .saturating_add(checkpoints.promised);
        if forebay_store::free_bytes(&self.dir)? < promised.saturating_add(bytes) {
            if held == 0 {
                return Err(Error::io(
                    &self.dir,
                    "reserve room in",
                    io::Error::from(io::ErrorKind::StorageFull),
                ));
            }
            return Ok(Answer::Wait);
        }
        self.own.hold(|held| {
            held.bytes = held.bytes.saturating_add(bytes);
            held.reserved = held.reserved.saturating_add(bytes);
        })?;
        Ok(Answer::Taken)
    }

    /// Fails if the area could never have this much room. Files of dead processes stay until they are recovered.
    pub(super) fn require(&self, bytes: u64) -> Result<()> {
        let _lock = AreaLock::lock(&self.dir)?;
        let dead = self.others()?.dead;
        if bytes > self.max_bytes.saturating_sub(dead) {
            return Err(self.too_small(bytes, dead));
        }
        Ok(())
    }

    fn too_small(&self, needed_bytes: u64, left_bytes: u64) -> Error {
        Error::AreaTooSmall {
            dir: self.dir.clone(),
            max_bytes: self.max_bytes,
            left_bytes,
            needed_bytes,
        }
    }

    pub(super) fn recount(&self) -> Result<()> {
        let bytes = self.own.size()?;
        let queued: u64 = self.left().iter().map(|entry| entry.submitted.len).sum();
        *self.found_bytes.lock().unwrap_or_else(|e| e.into_inner()) = bytes.saturating_sub(queued);
        self.own
            .hold(|held| held.bytes = bytes.saturating_add(held.reserved))?;
        self.queue.notify();
        Ok(())
    }

    /// A file is gone from the area.
    pub(super) fn gone(&self, session: &Session, bytes: u64) {
        // If this cannot be written, others take the area for fuller than it is, until the session ends.
        let _ = session.hold(|held| held.bytes = held.bytes.saturating_sub(bytes));
        self.queue.notify();
    }
}

impl Reservation {
    /// Bytes that may be written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes a part of it, or all there is.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            shared: Arc::clone(&self.shared),
            bytes,
        }
    }

    /// The room is now that of a file of this many bytes, be they more or less than was reserved.
    pub(super) fn becomes(mut self, len: u64) -> Result<()> {
        let reserved = std::mem::take(&mut self.bytes);
        self.shared.own.hold(|held| {
            held.bytes = held.bytes.saturating_sub(reserved).saturating_add(len);
            held.reserved = held.reserved.saturating_sub(reserved);
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes == 0 || self.shared.process != std::process::id() {
            return;
        }
        let bytes = self.bytes;
        let _ = self.shared.own.hold(|held| {
            held.bytes = held.bytes.saturating_sub(bytes);
            held.reserved = held.reserved.saturating_sub(bytes);
        });
        self.shared.queue.notify();
    }
}
