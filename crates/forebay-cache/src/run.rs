//! Reads a range block by block: copies cached blocks, and fetches adjacent missing blocks in one request.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use forebay_shard::CacheHits;

use super::block::Header;
use super::disk::{FillOutcome, Filling, Wanted};
use super::flight::{Lead, Outcome};
use super::memory::{Reservation, Standing};
use super::object::Before;
use super::{Cache, CachedObject, Fetch, Filled, SMALL_PART, now};
use forebay_store::{Error, Result};

/// Adjacent missing blocks are fetched together up to this many bytes: enough that the latency of a request hardly matters.
const MOST_RUN_BYTES: u64 = 16 << 20;
/// How often a block is looked up again that should exist and does not, before the read bypasses the cache.
const MOST_TRIES: u32 = 3;

/// How a missing block is handled.
enum Slot<'a> {
    /// The whole block is fetched and stored.
    Fill(Lead<'a>, FillTarget<'a>),
    /// Only the requested bytes are fetched, and not stored.
    Around,
}

enum FillTarget<'a> {
    Disk(Filling<'a>),
    Memory(Reservation<'a>),
}

/// Why a block needs no fetch by this reader.
enum NoSlot {
    /// The block may be cached now: look it up again.
    Look,
    /// Another reader is filling the block.
    Busy,
    /// Another reader fetched the block and could not store it; these are its bytes.
    Bytes(Arc<Vec<u8>>),
}

/// Adjacent missing blocks, and the range to fetch for them.
struct Run<'a> {
    slots: Vec<(Wanted, Slot<'a>)>,
    bytes: Range<u64>,
}

/// A range that is being read.
struct Reading<'a, 'r> {
    cache: &'a Cache,
    object: &'a CachedObject,
    range: Range<u64>,
    fetch: &'r Fetch<'r>,
    /// The last block whose read was recorded, with its state before, so that each read is recorded once.
    noted: Option<(u64, Before)>,
    /// Whether this is a fill: blocks are only stored, and no bytes are returned.
    is_filling: bool,
    filled: Filled,
    /// The cache hits of this read.
    found: Cell<CacheHits>,
}

/// Reads a range. Returns the hits and misses also if the read fails.
pub(super) fn read(
    cache: &Cache,
    object: &CachedObject,
    range: Range<u64>,
    buf: &mut [u8],
    fetch: &Fetch<'_>,
) -> (Result<()>, CacheHits) {
    let mut reading = Reading::new(cache, object, range, fetch);
    (reading.read(buf), reading.found.get())
}

pub(super) fn fill(
    cache: &Cache,
    object: &CachedObject,
    range: Range<u64>,
    fetch: &Fetch<'_>,
) -> Result<Filled> {
    let mut reading = Reading::new(cache, object, range, fetch);
    reading.is_filling = true;
    reading.fill()?;
    Ok(reading.filled)
}

impl<'a, 'r> Reading<'a, 'r> {
    fn new(
        cache: &'a Cache,
        object: &'a CachedObject,
        range: Range<u64>,
        fetch: &'r Fetch<'r>,
    ) -> Self {
        Self {
            cache,
            object,
            range,
            fetch,
            noted: None,
            is_filling: false,
            filled: Filled::default(),
            found: Cell::default(),
        }
    }

    /// The requested part of a block, as a range of the object.
    fn part(&self, number: u64) -> Range<u64> {
        let (start, end) = self.whole(number, u32::MAX);
        start.max(self.range.start)..end.min(self.range.end)
    }

    /// The start and end, in the object, of a block with this payload.
    fn whole(&self, number: u64, payload_len: u32) -> (u64, u64) {
        let start = number * self.cache.block_bytes;
        (
            start,
            start + self.cache.block_bytes.min(u64::from(payload_len)),
        )
    }

    /// The block with the times of its earlier reads, and whether this is its first read. Records the read, once per block.
    fn wanted(&mut self, number: u64) -> Option<(Wanted, bool)> {
        let mut wanted = self.cache.wanted(self.object, number)?;
        let before = match self.noted {
            Some((noted, before)) if noted == number => before,
            // A fill does not count as a read.
            _ if self.is_filling => Before::default(),
            _ => {
                let part = self.part(number);
                let (bytes, payload) = (part.end - part.start, u64::from(wanted.payload_len));
                self.object.note_read(number, bytes, payload, now())
            }
        };
        self.noted = Some((number, before));
        wanted.reads = before.reads;
        Some((wanted, before.is_first))
    }

    fn read(&mut self, buf: &mut [u8]) -> Result<()> {
        let cache = self.cache;
        let (mut at, mut tries) = (self.range.start, 0);
        while at < self.range.end {
            let number = at / cache.block_bytes;
            let Some((wanted, is_first)) = self.wanted(number) else {
                break;
            };
            let part = self.part(number);
            let out = self.out(buf, &part);
            if self.read_stored(&wanted, &part, out) {
                (at, tries) = (part.end, 0);
                continue;
            }
            let slot = if tries >= MOST_TRIES {
                Ok(Slot::Around)
            } else {
                self.slot(&wanted, is_first, true)
            };
            match slot {
                Ok(slot) => {
                    let run = self.extend(wanted, slot);
                    at = self.fetch(run, Some(&mut *buf))?;
                    tries = 0;
                }
                Err(Refusal::No(NoSlot::Bytes(bytes))) => {
                    let (start, _) = self.whole(number, wanted.payload_len);
                    let from = (part.start - start) as usize;
                    let out = self.out(buf, &part);
                    out.copy_from_slice(&bytes[from..from + out.len()]);
                    let bytes = out.len() as u64;
                    self.missed(bytes);
                    (at, tries) = (part.end, 0);
                }
                Err(Refusal::No(NoSlot::Look | NoSlot::Busy)) => tries += 1,
                Err(Refusal::Failed(error)) => return Err(Error::Shared(error)),
            }
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<()> {
        let (mut at, mut tries) = (self.range.start, 0);
        while at < self.range.end {
            let number = at / self.cache.block_bytes;
            let Some((wanted, _)) = self.wanted(number) else {
                break;
            };
            let part = self.part(number);
            let bytes = part.end - part.start;
            if self.is_stored(&wanted) {
                self.filled.present_bytes += bytes;
                (at, tries) = (part.end, 0);
                continue;
            }
            match self.slot(&wanted, false, true) {
                Ok(slot @ Slot::Fill(..)) => {
                    let run = self.extend(wanted, slot);
                    at = self.fetch(run, None)?;
                    tries = 0;
                }
                Err(Refusal::Failed(error)) => return Err(Error::Shared(error)),
                Err(Refusal::No(NoSlot::Look | NoSlot::Busy)) if tries < MOST_TRIES => tries += 1,
                _ => {
                    self.filled.refused_bytes += bytes;
                    (at, tries) = (part.end, 0);
                }
            }
        }
        Ok(())
    }

    /// The slice of the reader's buffer for a part of the object.
    fn out<'b>(&self, buf: &'b mut [u8], part: &Range<u64>) -> &'b mut [u8] {
        let start = self.range.start;
        &mut buf[(part.start - start) as usize..(part.end - start) as usize]
    }

    fn is_stored(&self, wanted: &Wanted) -> bool {
        let cache = self.cache;
        cache.memory.has((wanted.id, wanted.number))
            || cache.disk.as_ref().is_some_and(|disk| disk.has(wanted))
    }

    fn read_stored(&self, wanted: &Wanted, part: &Range<u64>, out: &mut [u8]) -> bool {
        let cache = self.cache;
        let (start, _) = self.whole(wanted.number, wanted.payload_len);
        let offset = (part.start - start) as usize;
        if let Some(bytes) = cache.memory.get((wanted.id, wanted.number), now())
            && let Some(found) = bytes.get(offset..offset + out.len())
        {
            out.copy_from_slice(found);
            cache.counters.memory.hit(out.len());
            self.hit(out.len() as u64);
            return true;
        }
        let is_read = cache
            .disk
            .as_ref()
            .is_some_and(|disk| disk.read(wanted, offset, out, now()));
        if is_read {
            cache.counters.disk.hit(out.len());
            self.hit(out.len() as u64);
        }
        is_read
    }

    fn hit(&self, bytes: u64) {
        let mut found = self.found.get();
        found.hits += 1;
        found.hit_bytes += bytes;
        self.found.set(found);
    }

    fn missed(&self, bytes: u64) {
        let counters = &self.cache.counters;
        counters.misses.add(1);
        counters.miss_bytes.add(bytes);
        let mut found = self.found.get();
        found.misses += 1;
        found.miss_bytes += bytes;
        self.found.set(found);
    }

    /// Decides how a missing block is handled. With `wait`, waits for another reader that is fetching it.
    fn slot(
        &self,
        wanted: &Wanted,
        is_first: bool,
        wait: bool,
    ) -> std::result::Result<Slot<'a>, Refusal> {
        let cache = self.cache;
        let key = (wanted.id, wanted.number);
        let lead = loop {
            if let Some(follow) = cache.flights.follow(key) {
                if !wait {
                    return Err(Refusal::No(NoSlot::Busy));
                }
                cache.counters.waited.add(1);
                return Err(match follow.wait() {
                    Outcome::Look => Refusal::No(NoSlot::Look),
                    Outcome::Bytes(bytes) => Refusal::No(NoSlot::Bytes(bytes)),
                    Outcome::Failed(error) => Refusal::Failed(error),
                });
            }
            let part = self.part(wanted.number);
            if is_first && (part.end - part.start) < u64::from(wanted.payload_len) / SMALL_PART {
                return Ok(Slot::Around);
            }
            if let Some(lead) = cache.flights.lead(key) {
                break lead;
            }
        };
        let is_pinned = |id, number| cache.is_pinned(id, number);
        if let Some(disk) = &cache.disk {
            match disk.begin(wanted, wait, &is_pinned) {
                FillOutcome::Filling(filling) => {
                    return Ok(Slot::Fill(lead, FillTarget::Disk(filling)));
                }
                FillOutcome::Present => return Err(Refusal::No(NoSlot::Look)),
                FillOutcome::Busy => return Err(Refusal::No(NoSlot::Busy)),
                FillOutcome::Refused => {}
            }
        }
        let standing = Standing {
            is_open: &|id| cache.is_open(id),
            closings: cache.closings(),
            is_pinned: &is_pinned,
        };
        // Another reader may have stored the block before we got the lead.
        if cache.memory.has(key) {
            return Err(Refusal::No(NoSlot::Look));
        }
        let payload = u64::from(wanted.payload_len);
        match cache.memory.reserve(key, payload, wanted.reads, &standing) {
            Some(room) => Ok(Slot::Fill(lead, FillTarget::Memory(room))),
            None => Ok(Slot::Around),
        }
    }

    /// Extends the fetch by the missing blocks after the first one, up to a block that is cached or that another reader fetches.
    fn extend(&mut self, first: Wanted, slot: Slot<'a>) -> Run<'a> {
        let mut number = first.number;
        let mut slots = vec![(first, slot)];
        let most = (MOST_RUN_BYTES / self.cache.block_bytes).max(1);
        while (slots.len() as u64) < most {
            number += 1;
            if number * self.cache.block_bytes >= self.range.end {
                break;
            }
            let Some((wanted, is_first)) = self.wanted(number) else {
                break;
            };
            if self.is_stored(&wanted) {
                break;
            }
            match self.slot(&wanted, is_first && !self.is_filling, false) {
                Ok(Slot::Around) if self.is_filling => break,
                Ok(slot) => slots.push((wanted, slot)),
                Err(_) => break,
            }
        }
        let edge = |(wanted, slot): &(Wanted, Slot<'_>)| match slot {
            Slot::Fill(..) => self.whole(wanted.number, wanted.payload_len),
            Slot::Around => {
                let part = self.part(wanted.number);
                (part.start, part.end)
            }
        };
        let start = slots.first().map_or(0, |slot| edge(slot).0);
        let end = slots.last().map_or(0, |slot| edge(slot).1);
        Run {
            slots,
            bytes: start..end,
        }
    }

    /// Fetches a run, copies the requested bytes to `buf`, and stores whole blocks. Returns the offset up to which the range is
    /// read now.
    fn fetch(&mut self, run: Run<'a>, buf: Option<&mut [u8]>) -> Result<u64> {
        let wanted = run.bytes.start.max(self.range.start)..run.bytes.end.min(self.range.end);
        match buf {
            Some(buf) if wanted == run.bytes => {
                let out = self.out(buf, &wanted);
                let fetched = (self.fetch)(run.bytes.clone(), out);
                self.settle(run, fetched, out)?;
            }
            buf => {
                let mut bytes = self
                    .cache
                    .buffer((run.bytes.end - run.bytes.start) as usize);
                let fetched = (self.fetch)(run.bytes.clone(), &mut bytes);
                let start = run.bytes.start;
                let settled = self.settle(run, fetched, &bytes);
                if let (Some(buf), Ok(())) = (buf, &settled) {
                    let from = (wanted.start - start) as usize;
                    let out = self.out(buf, &wanted);
                    out.copy_from_slice(&bytes[from..from + out.len()]);
                }
                self.cache.give_back(bytes);
                settled?;
            }
        }
        Ok(wanted.end)
    }

    /// Stores the fetched blocks, and gives the outcome to waiting readers.
    fn settle(&mut self, run: Run<'a>, fetched: Result<()>, bytes: &[u8]) -> Result<()> {
        let counters = &self.cache.counters;
        if let Err(error) = fetched {
            // A cancellation concerns this reader only: waiting readers fetch the block themselves.
            let is_of_all = !matches!(error, Error::Cancelled { .. });
            let error = Arc::new(error);
            for (_, slot) in run.slots {
                if let Slot::Fill(lead, place) = slot {
                    // Releases the fill first, so that a reader that looks again finds no fill in progress.
                    drop(place);
                    lead.finish(match is_of_all {
                        true => Outcome::Failed(Arc::clone(&error)),
                        false => Outcome::Look,
                    });
                }
            }
            // Returns the error unwrapped if no other reader shares it.
            return Err(Arc::try_unwrap(error).unwrap_or_else(Error::Shared));
        }
        counters.fetches.add(1);
        counters.fetched_bytes.add(bytes.len() as u64);
        for (wanted, slot) in run.slots {
            let part = self.part(wanted.number);
            let part_bytes = part.end - part.start;
            if !self.is_filling {
                self.missed(part_bytes);
            }
            let Slot::Fill(lead, place) = slot else {
                counters.around_bytes.add(part_bytes);
                continue;
            };
            let (start, end) = self.whole(wanted.number, wanted.payload_len);
            let from = (start - run.bytes.start) as usize;
            let payload = &bytes[from..from + (end - start) as usize];
            if self.store(&wanted, place, payload) {
                self.filled.fetched_bytes += part_bytes;
                lead.finish(Outcome::Look);
            } else {
                self.filled.refused_bytes += part_bytes;
                counters.around_bytes.add(payload.len() as u64);
                lead.finish(Outcome::Bytes(Arc::new(payload.to_vec())));
            }
        }
        Ok(())
    }

    fn store(&self, wanted: &Wanted, place: FillTarget<'_>, payload: &[u8]) -> bool {
        let cache = self.cache;
        match place {
            FillTarget::Memory(room) => {
                room.store(payload, now());
                cache.counters.memory.store(payload.len());
                true
            }
            FillTarget::Disk(filling) => {
                let object = &self.object.0;
                let header = Header::new(
                    (object.id, object.len),
                    (&object.location, &object.key),
                    // Block sizes fit into u32.
                    (wanted.number, cache.block_bytes as u32),
                    payload,
                );
                match filling.publish(&header, payload) {
                    Ok(()) => {
                        cache.counters.disk.store(payload.len());
                        true
                    }
                    Err(error) => {
                        if let Some(disk) = &cache.disk {
                            disk.failed(&error);
                        }
                        false
                    }
                }
            }
        }
    }
}

/// Why this reader does not fetch a block: no slot, or another reader's fetch failed.
enum Refusal {
    No(NoSlot),
    Failed(Arc<Error>),
}
