//! A hub: one source of batches, the batches that some member has not taken yet, and the members.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::Batch;
use forebay_wire::wire::error::Kind;

use super::sums::Work;
use super::{Budget, OpenRequest, lock};
use crate::source::{BatchSource, Failure, StreamMonitor};

/// Epoch, and position in it of the next batch, in samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamPosition(pub(super) u64, pub(super) u64);

/// How positions advance from batch to batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    pub(super) global: u64,
    pub(super) samples: u64,
    pub(super) per_epoch: u64,
}

impl Steps {
    pub(super) fn of(info: &StreamInfo) -> Self {
        Steps {
            global: info.global_batch_size().max(1),
            samples: info.samples,
            per_epoch: info.batches_per_epoch,
        }
    }

    /// The position after a batch, or after the end of an epoch.
    pub(super) fn after(&self, place: StreamPosition, batch: Option<&Batch>) -> StreamPosition {
        match batch {
            Some(batch) => StreamPosition(
                batch.epoch,
                batch.position.saturating_add(self.global).min(self.samples),
            ),
            None => StreamPosition(place.0.saturating_add(1), 0),
        }
    }

    /// Number of batches between two positions; `None` if `to` is earlier or not reachable by whole
    /// batches.
    pub(super) fn between(&self, from: StreamPosition, to: StreamPosition) -> Option<u64> {
        let epochs = to.0.checked_sub(from.0)?;
        // A short last batch ends at the end of the epoch.
        let step = |place: StreamPosition| match place.1 {
            end if end == self.samples => Some(end.div_ceil(self.global)),
            at => (at % self.global == 0).then_some(at / self.global),
        };
        let steps = epochs.checked_mul(self.per_epoch)?.checked_add(step(to)?)?;
        steps.checked_sub(step(from)?)
    }
}

/// A hub of streams with the same options and nearby positions.
pub(super) struct Hub {
    /// The member whose memory the source fills.
    pub(super) owner: u64,
    pub(super) options: LoaderOptions,
    /// The stream description, which every member sends in its `Opened` message.
    pub(super) info: StreamInfo,
    steps: Steps,
    feed: Mutex<Box<dyn BatchSource>>,
    pub(super) monitor: Arc<dyn StreamMonitor>,
    budget: Arc<Budget>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

pub(super) struct State {
    /// Position of the source's next item.
    place: StreamPosition,
    /// Number of the source's next item. Ends of epochs count as items.
    next: u64,
    /// Whether a member is making the next item.
    making: bool,
    /// The most recent items that at least one member has not taken.
    kept: VecDeque<Kept>,
    /// Number of the next item of each member.
    pub(super) members: BTreeMap<u64, u64>,
    /// Why the source ended. No stream may join after that.
    pub(super) ended: Option<Failure>,
    /// The part of the source's work that departed members have reported.
    told: Work,
}

#[derive(Clone)]
pub(super) struct Kept {
    place: StreamPosition,
    /// `None` at the end of an epoch.
    pub(super) batch: Option<Arc<Batch>>,
    /// The member whose memory holds the batch.
    pub(super) owner: u64,
}

/// Position of a new member relative to the hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Its next item is kept or comes next.
    There,
    /// It is behind, and decodes on its own up to the hub's current position.
    OnItsWay,
}

/// Result of asking the hub for the next item.
pub(super) enum Taken {
    Item(Kept),
    /// The item is not made yet: the caller has to make it.
    Next,
    /// The member fell too far behind and has been removed.
    Fallen,
}

impl Kept {
    pub(super) fn bytes(&self) -> u64 {
        self.batch
            .as_ref()
            .map_or(0, |batch| batch.payload.len() as u64)
    }
}

impl State {
    /// Number of the oldest kept item.
    pub(super) fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// Drops items that every member has taken.
    pub(super) fn trim(&mut self, budget: &Budget) {
        let needed = self.members.values().copied().min().unwrap_or(self.next);
        while self.first() < needed {
            let Some(gone) = self.kept.pop_front() else {
                break;
            };
            budget.give(gone.bytes());
        }
    }

    /// Counts a new item, and keeps it if other members need it. Removes the slowest members until
    /// it fits into the budget.
    pub(super) fn add(&mut self, item: &Kept, budget: &Budget) {
        let number = self.next;
        let mut room = false;
        // The member that made this item already needs the next one.
        while let Some((&last, &needs)) = self.members.iter().min_by_key(|(_, needs)| **needs)
            && needs <= number
        {
            room = budget.take(item.bytes());
            if room {
                break;
            }
            self.members.remove(&last);
            self.trim(budget);
        }
        if room {
            self.kept.push_back(item.clone());
        } else {
            // Every remaining member needs the next item only.
            for gone in self.kept.drain(..) {
                budget.give(gone.bytes());
            }
        }
        self.next += 1;
    }
}

impl Hub {
    pub(super) fn new(
        asked: &OpenRequest,
        place: StreamPosition,
        id: u64,
        feed: Box<dyn BatchSource>,
        budget: &Arc<Budget>,
    ) -> Hub {
        let info = feed.info();
        Hub {
            owner: id,
            options: asked.options.clone(),
            steps: Steps::of(&info),
            info,
            monitor: feed.monitor(),
            feed: Mutex::new(feed),
            budget: Arc::clone(budget),
            state: Mutex::new(State {
                place,
                next: 0,
                making: false,
                kept: VecDeque::new(),
                members: BTreeMap::from([(id, 0)]),
                ended: None,
                told: Work::default(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Adds a stream as a member, if it is near enough.
    pub(super) fn admit(&self, id: u64, place: StreamPosition, reach: u64) -> Option<Arrival> {
        let mut state = lock(&self.state);
        if state.ended.is_some() || state.members.is_empty() {
            return None;
        }
        if let Some(number) = state.number_of(place) {
            state.members.insert(id, number);
            return Some(Arrival::There);
        }
        let way = self.steps.between(place, state.place)?;
        if way > reach {
            return None;
        }
        // Every item from here on is kept for the new member.
        let next = state.next;
        state.members.insert(id, next);
        Some(Arrival::OnItsWay)
    }

    /// Returns whether a member's next item is kept; `Err` if it is no longer a member.
    pub(super) fn has(&self, id: u64, place: StreamPosition) -> Result<bool, ()> {
        let mut state = lock(&self.state);
        if !state.members.contains_key(&id) || state.ended.is_some() {
            state.members.remove(&id);
            state.trim(&self.budget);
            return Err(());
        }
        let Some(number) = state.number_of(place) else {
            return Ok(false);
        };
        state.members.insert(id, number);
        state.trim(&self.budget);
        Ok(true)
    }

    pub(super) fn take(&self, id: u64, cancelled: &AtomicBool) -> Result<Taken, Failure> {
        let mut state = lock(&self.state);
        loop {
            if cancelled.load(Ordering::Acquire) {
                return Err(cancellation());
            }
            let Some(&needs) = state.members.get(&id) else {
                return Ok(Taken::Fallen);
            };
            if needs < state.next {
                let at = (needs - state.first()) as usize;
                let item = state.kept[at].clone();
                state.members.insert(id, needs + 1);
                state.trim(&self.budget);
                return Ok(Taken::Item(item));
            }
            if let Some(failure) = &state.ended {
                return Err(failure.clone());
            }
            if !std::mem::replace(&mut state.making, true) {
                return Ok(Taken::Next);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes the next item, for a member that got [`Taken::Next`]. If no other member needs it, the
    /// hub keeps no reference.
    pub(super) fn make(&self, id: u64) -> Result<Kept, Failure> {
        let _making = MakingGuard { hub: self };
        let made = lock(&self.feed).next_batch();
        let mut state = lock(&self.state);
        let batch = made.inspect_err(|failure| state.ended = Some(failure.clone()))?;
        let place = state.place;
        state.place = self.steps.after(place, batch.as_ref());
        let next = state.next + 1;
        if let Some(needs) = state.members.get_mut(&id) {
            *needs = next;
        }
        let item = Kept {
            place,
            owner: self.owner,
            batch: batch.map(Arc::new),
        };
        state.add(&item, &self.budget);
        Ok(item)
    }

    /// Work of the source that departed members have not reported.
    pub(super) fn untold(&self, state: &State) -> Work {
        Work::of(&*self.monitor).minus(&state.told)
    }

    /// Removes a member. Returns the work to report, if this member is the one that reports the
    /// source's work.
    pub(super) fn leave(&self, id: u64) -> Work {
        let mut state = lock(&self.state);
        let tells = state.members.keys().next() == Some(&id);
        state.members.remove(&id);
        state.trim(&self.budget);
        let mut work = Work::default();
        if tells {
            work = self.untold(&state);
            state.told = Work::of(&*self.monitor);
        }
        work
    }
}

impl State {
    /// The number of the item at a position, if it is kept or comes next.
    pub(super) fn number_of(&self, place: StreamPosition) -> Option<u64> {
        if place == self.place {
            return Some(self.next);
        }
        let at = self.kept.iter().position(|kept| kept.place == place)?;
        Some(self.first() + at as u64)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for kept in &state.kept {
            self.budget.give(kept.bytes());
        }
    }
}

/// Guard of the member that makes the next item: wakes the waiting members even after a failure or
/// panic.
struct MakingGuard<'a> {
    hub: &'a Hub,
}

impl Drop for MakingGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.hub.state);
        state.making = false;
        if std::thread::panicking() {
            let text = "internal error of the server while making a batch; see its log";
            state
                .ended
                .get_or_insert_with(|| Failure::new(Kind::Internal, text));
        }
        drop(state);
        self.hub.changed.notify_all();
    }
}

pub(super) fn cancellation() -> Failure {
    Failure::new(Kind::Shutdown, "cancelled")
}
