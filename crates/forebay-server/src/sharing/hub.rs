//! A hub: one source of batches, those of its batches that somebody has yet to take, and who that is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::Batch;
use forebay_wire::wire::error::Kind;

use super::sums::Work;
use super::{Asked, Budget, lock};
use crate::source::{BatchSource, Failure, Monitor};

/// Epoch, and position in it of the next batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) u64, pub(super) u64);

/// How places follow each other.
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

    /// The place behind a batch, or behind the end of an epoch.
    pub(super) fn after(&self, place: Place, batch: Option<&Batch>) -> Place {
        match batch {
            Some(batch) => Place(
                batch.epoch,
                batch.position.saturating_add(self.global).min(self.samples),
            ),
            None => Place(place.0.saturating_add(1), 0),
        }
    }

    /// Batches from one place to a later one; `None` where it is not later, or another sequence.
    pub(super) fn between(&self, from: Place, to: Place) -> Option<u64> {
        let epochs = to.0.checked_sub(from.0)?;
        // A short last batch ends where the epoch does.
        let step = |place: Place| match place.1 {
            end if end == self.samples => Some(end.div_ceil(self.global)),
            at => (at % self.global == 0).then_some(at / self.global),
        };
        let steps = epochs.checked_mul(self.per_epoch)?.checked_add(step(to)?)?;
        steps.checked_sub(step(from)?)
    }
}

/// Streams with one spec near each other.
pub(super) struct Hub {
    /// The member whose memory the feed fills.
    pub(super) owner: u64,
    pub(super) options: LoaderOptions,
    /// What a member is told.
    pub(super) info: StreamInfo,
    steps: Steps,
    feed: Mutex<Box<dyn BatchSource>>,
    pub(super) monitor: Arc<dyn Monitor>,
    budget: Arc<Budget>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

pub(super) struct State {
    /// Of what the feed gives next.
    place: Place,
    /// Its number: what the feed gives is counted, ends of epochs too.
    next: u64,
    /// Whether somebody is making it.
    making: bool,
    /// The last of what was given: what some member has not taken yet.
    kept: VecDeque<Kept>,
    /// What each member needs next.
    pub(super) members: BTreeMap<u64, u64>,
    /// Why there is no more: nobody may join.
    pub(super) ended: Option<Failure>,
    /// What members that are gone have told of the feed's work.
    told: Work,
}

#[derive(Clone)]
pub(super) struct Kept {
    place: Place,
    /// None at the end of an epoch.
    pub(super) batch: Option<Arc<Batch>>,
    /// Whose memory it is in.
    pub(super) owner: u64,
}

/// Where a stream is that becomes a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// What it needs next is at hand.
    There,
    /// It has to go some way by itself, to where the hub is now.
    OnItsWay,
}

/// What a member gets of its hub.
pub(super) enum Taken {
    Item(Kept),
    /// To be made by whoever asked.
    Next,
    /// The member is too far behind and is none any more.
    Fallen,
}

impl Kept {
    pub(super) fn bytes(&self) -> u64 {
        self.batch
            .as_ref()
            .map_or(0, |batch| batch.images.len() as u64)
    }
}

impl State {
    /// Number of the oldest that is kept.
    pub(super) fn first(&self) -> u64 {
        self.next - self.kept.len() as u64
    }

    /// Gives up what nobody needs any more.
    pub(super) fn trim(&mut self, budget: &Budget) {
        let needed = self.members.values().copied().min().unwrap_or(self.next);
        while self.first() < needed {
            let Some(gone) = self.kept.pop_front() else {
                break;
            };
            budget.give(gone.bytes());
        }
    }

    /// Counts what was just given, and keeps it if others need it: those who are furthest behind leave until there is room.
    pub(super) fn add(&mut self, item: &Kept, budget: &Budget) {
        let number = self.next;
        let mut room = false;
        // Its maker has it already, and so needs the next one.
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
            // Nobody needs anything before the next one.
            for gone in self.kept.drain(..) {
                budget.give(gone.bytes());
            }
        }
        self.next += 1;
    }
}

impl Hub {
    pub(super) fn new(
        asked: &Asked,
        place: Place,
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

    /// Makes a stream a member, if it is near enough.
    pub(super) fn admit(&self, id: u64, place: Place, reach: u64) -> Option<Arrival> {
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
        // From here on everything is kept for it.
        let next = state.next;
        state.members.insert(id, next);
        Some(Arrival::OnItsWay)
    }

    /// Whether what a member needs at this place is here; `Err` if it is no member any more.
    pub(super) fn has(&self, id: u64, place: Place) -> Result<bool, ()> {
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

    /// Makes the next one, for a member that was told to. Nobody else has it where nobody else needs it.
    pub(super) fn make(&self, id: u64) -> Result<Kept, Failure> {
        let _making = Making { hub: self };
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

    /// What was done since others told of it.
    pub(super) fn untold(&self, state: &State) -> Work {
        Work::of(&*self.monitor).minus(&state.told)
    }

    /// Ends the membership. Gives what there is to tell, if that is this member's part.
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
    /// The number of what begins at a place, if it is kept or comes next.
    pub(super) fn number_of(&self, place: Place) -> Option<u64> {
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

/// Somebody makes the next batch. However that ends, others are told.
struct Making<'a> {
    hub: &'a Hub,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.hub.state);
        state.making = false;
        if std::thread::panicking() {
            let text = "the server met a bug while making a batch; its log has more";
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
