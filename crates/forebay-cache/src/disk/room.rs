//! The byte limit of the directory, and evictions.

use std::sync::PoisonError;

use super::files::NOTED_EVERY_NS;
use super::ledger::Entry;
use super::survey::{self, Listed};
use super::{Disk, Wanted, block_cost, cost, live};
use crate::block::HEADER_BYTES;
use crate::notices::Notice;
use crate::object_id::{ObjectId, Reads};
use forebay_store::{Error, Result, free_bytes};

/// Bytes that an empty cache counts as used.
pub(super) const BASE_BYTES: u64 = 64 << 10;
/// Minimum number of blocks that must fit: one for each reader of a loader, and as many that are prefetched.
const MIN_BLOCKS: u64 = 16;
/// 1/100 of the file system's size is left free, at most [`MOST_SPARE_BYTES`].
const SPARE_PART: u64 = 100;
const MOST_SPARE_BYTES: u64 = 1 << 30;
/// The part of the free space that a cache may use by default, in tenths.
const DEFAULT_TENTHS: u64 = 8;
/// The uncertainty of recorded times of use, differences of clocks included.
const SLACK_NS: u64 = 2 * NOTED_EVERY_NS;

impl Disk {
    /// Recounts the used bytes, removes files that cannot be blocks, sets the limit, and evicts blocks above it.
    pub(super) fn settle_limit(&mut self, limit: Option<u64>) -> Result<()> {
        let used = {
            let entry = self.ledger.lock()?;
            self.drop_misshapen()?;
            self.recount(&entry)?
        };
        let free = free_bytes(&self.root)?.saturating_sub(self.spare()?);
        let could = used.saturating_add(free);
        self.limit = limit.unwrap_or_else(|| used + free / 10 * DEFAULT_TENTHS);
        let block = u64::from(self.block_bytes);
        let need = MIN_BLOCKS
            .saturating_mul(block_cost(block))
            .saturating_add(BASE_BYTES);
        let room = self.limit.min(could);
        if room < need {
            return Err(Error::CacheTooSmall {
                place: self.root.display().to_string(),
                have_bytes: room,
                need_bytes: need,
                why: if self.limit <= could {
                    "that is what it may hold"
                } else {
                    "that is what its file system has free"
                },
            });
        }
        if limit.is_some_and(|limit| limit > could) {
            self.notices.tell(
                Notice::Space,
                format!(
                    "{} may hold {} bytes, but its file system has room for {could} only: it will hold less",
                    self.root.display(),
                    self.limit
                ),
            );
        }
        if used > self.limit {
            self.shrink()?;
        }
        Ok(())
    }

    /// Bytes that are left free on the file system.
    fn spare(&self) -> Result<u64> {
        let stat = rustix::fs::statvfs(&self.root)
            .map_err(|error| Error::io(&self.root, "ask for the size of", error))?;
        let size = stat.f_blocks.saturating_mul(stat.f_frsize);
        Ok((size / SPARE_PART).min(MOST_SPARE_BYTES))
    }

    /// Removes files whose length no block can have, such as empty files after a power cut.
    fn drop_misshapen(&self) -> Result<()> {
        let most = HEADER_BYTES as u64 + u64::from(self.block_bytes);
        let mut bad = Vec::new();
        survey::walk(&self.folders.blocks, &mut |listed| {
            if listed.file_len <= HEADER_BYTES as u64 || listed.file_len > most {
                bad.push(listed);
            }
        })?;
        for listed in bad {
            self.counters.disk.damaged.add(1);
            let _ = std::fs::remove_file(self.path(listed.id, listed.number));
        }
        Ok(())
    }

    /// Recounts the used bytes from the files, after removing files of dead processes, and writes the ledger.
    fn recount(&self, entry: &Entry<'_>) -> Result<u64> {
        let (filling, _) = survey::clean_fills(&self.folders.fills)?;
        let _ = live::in_use(&self.folders.notes, true);
        let mut used = BASE_BYTES + filling * block_cost(u64::from(self.block_bytes));
        survey::walk(&self.folders.blocks, &mut |listed| {
            used += cost(listed.file_len)
        })?;
        entry.set_used(used)?;
        Ok(used)
    }

    /// Reserves bytes, and evicts blocks if necessary. Returns false if not enough blocks may be evicted.
    pub(super) fn make_room(
        &self,
        bytes: u64,
        reads: Reads,
        is_pinned: &dyn Fn(ObjectId, u64) -> bool,
    ) -> Result<bool> {
        if self.take(bytes)? {
            return Ok(true);
        }
        let mut victims = self.victims.lock().unwrap_or_else(PoisonError::into_inner);
        let closings = self.live.closings();
        victims.refresh(&self.folders.blocks, &self.folders.notes, closings)?;
        let mut kept = Vec::new();
        let mut made = false;
        loop {
            let next = victims.unused.pop_front().or_else(|| {
                let oldest = victims.in_use.front()?;
                is_colder(oldest, reads).then(|| victims.in_use.pop_front())?
            });
            let Some(next) = next else { break };
            if is_pinned(next.id, next.number) {
                kept.push(next);
                continue;
            }
            self.evict(&next)?;
            if self.take(bytes)? {
                made = true;
                break;
            }
        }
        for listed in kept.into_iter().rev() {
            victims.in_use.push_front(listed);
        }
        Ok(made)
    }

    /// Whether there is no room for a block, and the last survey has no block that may be evicted for it.
    pub(super) fn is_full_for(&self, wanted: &Wanted) -> bool {
        let bytes = block_cost(u64::from(wanted.payload_len));
        if self.used().saturating_add(bytes) <= self.limit {
            return false;
        }
        let mut victims = self.victims.lock().unwrap_or_else(PoisonError::into_inner);
        let refreshed = victims.refresh(
            &self.folders.blocks,
            &self.folders.notes,
            self.live.closings(),
        );
        refreshed.is_ok()
            && victims.unused.is_empty()
            && !victims
                .in_use
                .front()
                .is_some_and(|oldest| is_colder(oldest, wanted.reads))
    }

    /// Reserves bytes if they are available.
    fn take(&self, bytes: u64) -> Result<bool> {
        if free_bytes(&self.root)? < bytes.saturating_add(self.spare()?) {
            self.notices.tell(
                Notice::Space,
                format!(
                    "the file system of {} is nearly full: what does not fit is read around the cache",
                    self.root.display()
                ),
            );
            return Ok(false);
        }
        // First without the lock, because this runs at every miss of a full cache.
        let fits = |used: u64| used.saturating_add(bytes) <= self.limit;
        if self.ledger.glance().is_some_and(|used| !fits(used)) {
            return Ok(false);
        }
        let entry = self.ledger.lock()?;
        let used = match entry.used() {
            Some(used) => used,
            None => self.recount(&entry)?,
        };
        if !fits(used) {
            return Ok(false);
        }
        entry.set_used(used + bytes)?;
        Ok(true)
    }

    /// Removes a block, unless it was used since it was listed. Returns whether it was removed.
    fn evict(&self, listed: &Listed) -> Result<bool> {
        let path = self.path(listed.id, listed.number);
        let entry = self.ledger.lock()?;
        let Ok(metadata) = std::fs::symlink_metadata(&path) else {
            return Ok(false);
        };
        if survey::used_at(&metadata) != listed.used_at || metadata.len() != listed.file_len {
            return Ok(false);
        }
        let file = survey::open_own(&path);
        std::fs::remove_file(&path).map_err(|error| Error::io(&path, "remove", error))?;
        self.files.remove((listed.id, listed.number));
        if let Ok(file) = file {
            // Frees the space even if a process has the file open; that process reads too few bytes and looks the block up again.
            let _ = file.set_len(0);
        }
        self.take_off(&entry, cost(listed.file_len));
        drop(entry);
        self.counters.disk.evictions.add(1);
        self.counters.disk.evicted_bytes.add(listed.file_len);
        if let Some(dir) = path.parent() {
            // Fails if the directory is not empty, and then it stays.
            let _ = std::fs::remove_dir(dir);
        }
        Ok(true)
    }

    /// Evicts blocks until the used bytes are within the limit, which may be lower than when the blocks were stored.
    pub(super) fn shrink(&self) -> Result<()> {
        let mut victims = self.victims.lock().unwrap_or_else(PoisonError::into_inner);
        victims.refresh(
            &self.folders.blocks,
            &self.folders.notes,
            self.live.closings(),
        )?;
        while self.used() > self.limit {
            let next = victims.unused.pop_front();
            let Some(next) = next.or_else(|| victims.in_use.pop_front()) else {
                break;
            };
            self.evict(&next)?;
        }
        Ok(())
    }
}

/// Whether a block was not read since the read before last of `newcomer`. An epoch reads each block once, so such a block is
/// not part of the data that is read in every epoch.
fn is_colder(listed: &Listed, newcomer: Reads) -> bool {
    listed.used_at.saturating_add(SLACK_NS) < newcomer.before_last
}
