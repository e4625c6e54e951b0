//! Reservations: bytes of the area are reserved before a file is written, and released when the uploaded file is deleted.

use super::queue::LOOK;
use super::session::{AreaLock, Session, Usage, others};
use super::{Shared, StagingArea};
use crate::unit;
use forebay_store::{Cancel, Error, Result};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes of an area that the holder may write. Released on drop.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    bytes: u64,
}

/// The result of an attempt to reserve.
enum Answer {
    Taken,
    /// There is no room now; it becomes free when files are stored or reservations released.
    Wait,
}

impl StagingArea {
    /// Reserves this many bytes, and waits while the area is full.
    ///
    /// # Errors
    /// [`Error::AreaTooSmall`] if the area can never hold that many bytes; the error of a file that could not be uploaded, once;
    /// [`Error::Cancelled`]. A full area is not an error.
    pub fn reserve(&self, bytes: u64, cancel: &Cancel) -> Result<Reservation> {
        let taken = self.reserve_unless(bytes, &|| cancel.is_cancelled())?;
        taken.ok_or_else(|| Error::Cancelled {
            object: self.shared.dir.display().to_string(),
            op: "reserve room in",
        })
    }

    /// As [`reserve`](Self::reserve), but returns `None` if `stopped` returns true during the wait.
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
            // Checked only if there is no room, so that a writer that stops can still stage its last files.
            if stopped() {
                return Ok(None);
            }
            // Other processes release bytes without a notification, so check again after a short wait.
            shared.queue.wait_a_moment(LOOK);
        }
    }

    /// Reserves bytes for files that were in the session when it was opened and are submitted now. Their bytes are counted as
    /// used already, so this does not wait.
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

/// Bytes of all sessions and of all checkpoints in the area.
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

/// Bytes that sessions have reserved and may still write. The caller must hold the area's lock.
pub(crate) fn reserved(area: &Path) -> Result<u64> {
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
            // Local copies of uploaded checkpoints are removed first.
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
        // Files outside the area may have filled the disk. Reserved bytes may not be written yet, so they are added.
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

    /// Fails if the area can never hold this many bytes. Files of ended processes count as used until they are recovered.
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

    /// Releases the bytes of a file that was deleted from the area.
    pub(super) fn gone(&self, session: &Session, bytes: u64) {
        // If the write fails, other processes count these bytes as used until the session ends.
        let _ = session.hold(|held| held.bytes = held.bytes.saturating_sub(bytes));
        self.queue.notify();
    }
}

impl Reservation {
    /// Bytes that may be written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Splits off at most `bytes` of the reservation.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self {
            shared: Arc::clone(&self.shared),
            bytes,
        }
    }

    /// Converts the reservation into the usage of a file of `len` bytes, which may be more or less than was reserved.
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
