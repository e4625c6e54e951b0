//! One stream of a hub, and its statistics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use forebay_loader::{Queues, ReadTimes};
use forebay_options::StreamInfo;
use forebay_wire::wire::error::Kind;
use forebay_wire::{Batch, BufferPool, wire};

use super::hub::{Hub, Kept, Steps, StreamPosition, Taken, cancellation};
use super::sums::{Work, less, more};
use super::{Common, OpenRequest, lock};
use crate::source::{BatchSource, Failure, StreamMonitor};

/// A stream that is a member of a hub.
pub(super) struct Member {
    id: u64,
    common: Arc<Common>,
    asked: OpenRequest,
    info: StreamInfo,
    steps: Steps,
    place: StreamPosition,
    hub: Arc<Hub>,
    /// The stream's own source, until it has caught up with its hub.
    own: Option<Box<dyn BatchSource>>,
    copies: BufferPool,
    monitor: Arc<MemberMonitor>,
}

/// A stream before it has a hub.
pub(super) struct NewMember {
    pub(super) id: u64,
    pub(super) place: StreamPosition,
    pub(super) info: StreamInfo,
    pub(super) asked: OpenRequest,
}

impl Member {
    /// Creates a member of `hub`; `own` is the source for catching up.
    pub(super) fn new(
        common: Arc<Common>,
        new_member: NewMember,
        hub: Arc<Hub>,
        own: Option<Box<dyn BatchSource>>,
    ) -> Self {
        let NewMember {
            id,
            place,
            info,
            asked,
        } = new_member;
        let batch_bytes = usize::try_from(info.batch_bytes).unwrap_or(usize::MAX);
        let pool = asked.pool.clone();
        let monitor = Arc::new(MemberMonitor {
            id,
            cancelled: AtomicBool::new(false),
            now: Mutex::new(Now::default()),
        });
        let founded = hub.owner == id;
        let mut now = lock(&monitor.now);
        now.enter(&hub, own.as_deref());
        if let Some((_, before)) = now.hub.as_mut().filter(|_| founded) {
            // The source was opened for this stream, so all of its work since then counts here,
            // including failures.
            *before = wire::Stats::default();
        }
        drop(now);
        Member {
            id,
            place,
            steps: Steps::of(&info),
            copies: pool.unwrap_or_else(|| BufferPool::new(batch_bytes.saturating_mul(2))),
            info,
            asked,
            common,
            hub,
            own,
            monitor,
        }
    }

    /// Leaves the hub, then joins another one nearby or starts one here with `own` as its source.
    fn move_on(&mut self, own: Box<dyn BatchSource>) {
        let left = self.hub.leave(self.id);
        lock(&self.monitor.now).leave(&left);
        let (hub, own) = self.common.join(&self.asked, self.place, self.id, own);
        lock(&self.monitor.now).enter(&hub, own.as_deref());
        self.hub = hub;
        self.own = own;
        self.monitor.pass_on_cancellation();
    }

    /// Closes the stream's own source, once the stream has caught up with the hub.
    fn arrive(&mut self) {
        if let Some(own) = self.own.take() {
            let mut now = lock(&self.monitor.now);
            now.arrive();
            drop(now);
            own.monitor().cancel();
            drop(own);
        }
    }

    fn item(&mut self) -> Result<Option<Batch>, Failure> {
        loop {
            if self.monitor.cancelled.load(Ordering::Acquire) {
                return Err(cancellation());
            }
            if let Some(mut own) = self.own.take() {
                match self.hub.has(self.id, self.place) {
                    Ok(true) => {
                        self.own = Some(own);
                        self.arrive();
                    }
                    Ok(false) => {
                        let batch = own.next_batch();
                        self.own = Some(own);
                        return batch;
                    }
                    Err(()) => self.move_on(own),
                }
                continue;
            }
            match self.hub.take(self.id, &self.monitor.cancelled)? {
                Taken::Item(item) => return self.copy(item),
                Taken::Next => {
                    let item = self.hub.make(self.id)?;
                    return self.copy(item);
                }
                Taken::Fallen => {
                    let own = self.asked.open(&*self.common.source, self.place)?;
                    self.move_on(own);
                }
            }
        }
    }

    /// Returns a batch that this member owns: the original if no other member holds it and its memory suits this client,
    /// otherwise a copy. A slot of another client does not suit, nor does plain memory if this client uses slots.
    fn copy(&self, item: Kept) -> Result<Option<Batch>, Failure> {
        let Some(mut batch) = item.batch else {
            return Ok(None);
        };
        let plain = batch.payload.slot().is_none() && self.asked.pool.is_none();
        if item.owner == self.id || plain {
            match Arc::try_unwrap(batch) {
                Ok(batch) => return Ok(Some(batch)),
                Err(shared) => batch = shared,
            }
        }
        let mut payload = self.copies.try_take(batch.payload.len()).map_err(|e| {
            let text = format!(
                "no memory for a batch of {} bytes: {e}",
                batch.payload.len()
            );
            Failure::new(Kind::Internal, text)
        })?;
        payload.copy_from_slice(&batch.payload);
        Ok(Some(Batch {
            payload,
            epoch: batch.epoch,
            step: batch.step,
            position: batch.position,
            encoded: batch.encoded.clone(),
            dtype: batch.dtype,
            shape: batch.shape,
            layout: batch.layout,
            labels: batch.labels.clone(),
            mixed: batch.mixed.clone(),
            samples: batch.samples.clone(),
            flags: batch.flags.clone(),
            columns: batch.columns.clone(),
            digest: batch.digest,
        }))
    }
}

impl BatchSource for Member {
    fn info(&self) -> StreamInfo {
        self.info.clone()
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        let batch = self.item()?;
        self.place = self.steps.after(self.place, batch.as_ref());
        Ok(batch)
    }

    fn monitor(&self) -> Arc<dyn StreamMonitor> {
        Arc::clone(&self.monitor) as Arc<dyn StreamMonitor>
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.arrive();
        let left = self.hub.leave(self.id);
        lock(&self.monitor.now).leave(&left);
    }
}

/// Monitor of a member. The oldest member reports the work of the hub's source, so that it is
/// counted once.
struct MemberMonitor {
    id: u64,
    cancelled: AtomicBool,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    /// The current hub, with the statistics of its source when the stream joined; `None` once the
    /// stream has ended.
    hub: Option<(Arc<Hub>, wire::Stats)>,
    own: Option<Arc<dyn StreamMonitor>>,
    /// Statistics of earlier sources, as this stream saw them.
    past: wire::Stats,
    /// The part of the work of earlier sources that this stream reports.
    told: Work,
}

impl Now {
    fn enter(&mut self, hub: &Arc<Hub>, own: Option<&dyn BatchSource>) {
        self.own = own.map(|own| own.monitor());
        self.hub = Some((Arc::clone(hub), hub.monitor.stats()));
    }

    /// Records that the stream's own source is closed.
    fn arrive(&mut self) {
        if let Some(own) = self.own.take() {
            self.past = more(std::mem::take(&mut self.past), &own.stats());
            self.told = std::mem::take(&mut self.told).plus(&Work::of(&*own));
        }
    }

    /// Records that the stream leaves the hub; `left` is the work that it has to report.
    fn leave(&mut self, left: &Work) {
        if let Some((hub, before)) = self.hub.take() {
            let seen = less(hub.monitor.stats(), &before);
            self.past = more(std::mem::take(&mut self.past), &seen);
            self.told = std::mem::take(&mut self.told).plus(left);
        }
        // This source becomes the one of the next hub, which reports its work.
        if let Some(own) = self.own.take() {
            self.past = more(std::mem::take(&mut self.past), &own.stats());
        }
    }
}

impl MemberMonitor {
    /// Cancels sources that work for this stream alone, and wakes the stream if it waits for other
    /// members.
    fn pass_on_cancellation(&self) {
        if !self.cancelled.load(Ordering::Acquire) {
            return;
        }
        let now = lock(&self.now);
        if let Some(own) = &now.own {
            own.cancel();
        }
        let Some((hub, _)) = &now.hub else { return };
        let mut state = lock(&hub.state);
        let alone = state.members.keys().all(|id| *id == self.id);
        if alone {
            state.ended.get_or_insert_with(cancellation);
        }
        drop(state);
        if alone {
            hub.monitor.cancel();
        }
        hub.changed.notify_all();
    }
}

impl MemberMonitor {
    /// The work that this stream reports.
    fn work(&self) -> Work {
        let now = lock(&self.now);
        let mut work = now.told.clone();
        if let Some(own) = &now.own {
            work = work.plus(&Work::of(&**own));
        }
        if let Some((hub, _)) = &now.hub {
            let state = lock(&hub.state);
            if state.members.keys().next() == Some(&self.id) {
                work = work.plus(&hub.untold(&state));
            }
        }
        work
    }
}

impl StreamMonitor for MemberMonitor {
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.pass_on_cancellation();
    }

    fn stats(&self) -> wire::Stats {
        let now = lock(&self.now);
        let mut stats = now.past.clone();
        if let Some(own) = &now.own {
            stats = more(stats, &own.stats());
        }
        if let Some((hub, before)) = &now.hub {
            stats = more(stats, &less(hub.monitor.stats(), before));
        }
        stats
    }

    fn counted(&self) -> wire::Stats {
        self.work().stats
    }

    fn reads(&self) -> ReadTimes {
        self.work().reads
    }

    fn queues(&self) -> Queues {
        let now = lock(&self.now);
        match (&now.own, &now.hub) {
            (Some(own), _) => own.queues(),
            (None, Some((hub, _))) => hub.monitor.queues(),
            (None, None) => Queues::default(),
        }
    }
}
