//! Ensures a single fetch of a block at a time in this process: later readers wait for the first one's fetch.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::object_id::ObjectId;
use forebay_store::Error;

pub(super) type Key = (ObjectId, u64);

/// The result of a fetch, for the readers that wait for it.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// The block may be in a tier now: look it up again.
    Look,
    /// The block was fetched and could not be stored; these are its bytes.
    Bytes(Arc<Vec<u8>>),
    /// The block could not be fetched.
    Failed(Arc<Error>),
}

#[derive(Debug, Default)]
struct Flight {
    outcome: Mutex<Option<Outcome>>,
    landed: Condvar,
}

/// The fetches in flight.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Key, Arc<Flight>>>);

/// The right to fetch a block. If it is dropped without an outcome, waiting readers look the block up again.
#[derive(Debug)]
pub(super) struct Lead<'a> {
    flights: &'a Flights,
    key: Key,
    flight: Arc<Flight>,
}

/// A fetch of another reader, to wait for.
#[derive(Debug)]
pub(super) struct Follow(Arc<Flight>);

impl Flights {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<Flight>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fetch of this block, if one is in flight.
    pub(super) fn follow(&self, key: Key) -> Option<Follow> {
        self.lock()
            .get(&key)
            .map(|flight| Follow(Arc::clone(flight)))
    }

    /// The right to fetch this block; `None` if another reader has it.
    pub(super) fn lead(&self, key: Key) -> Option<Lead<'_>> {
        let mut flights = self.lock();
        if flights.contains_key(&key) {
            return None;
        }
        let flight = Arc::new(Flight::default());
        flights.insert(key, Arc::clone(&flight));
        Some(Lead {
            flights: self,
            key,
            flight,
        })
    }
}

impl Lead<'_> {
    pub(super) fn finish(self, outcome: Outcome) {
        self.land(outcome);
    }

    fn land(&self, outcome: Outcome) {
        let mut slot = self
            .flight
            .outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(outcome);
        self.flight.landed.notify_all();
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
        self.land(Outcome::Look);
    }
}

impl Follow {
    /// Waits for the outcome. Fetches have their own timeouts, so the wait is bounded.
    pub(super) fn wait(self) -> Outcome {
        let mut slot = self
            .0
            .outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*slot {
                return outcome.clone();
            }
            slot = self
                .0
                .landed
                .wait(slot)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn followers_get_what_the_leader_got() {
        let flights = Flights::default();
        let key = (ObjectId::of("a", "b", None, 1), 0);
        assert!(flights.follow(key).is_none());
        let lead = flights.lead(key).unwrap();
        assert!(flights.lead(key).is_none());
        let follow = flights.follow(key).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| follow.wait());
            lead.finish(Outcome::Bytes(Arc::new(vec![7])));
            assert!(matches!(waiting.join().unwrap(), Outcome::Bytes(bytes) if *bytes == [7]));
        });
        assert!(flights.lead(key).is_some(), "the next fetch is a new one");
    }

    #[test]
    fn followers_do_not_hang_if_the_leader_panics() {
        let flights = Flights::default();
        let key = (ObjectId::of("a", "b", None, 1), 0);
        std::thread::scope(|scope| {
            let lead = flights.lead(key).unwrap();
            let follow = flights.follow(key).unwrap();
            let leading = scope.spawn(move || {
                let _lead = lead;
                std::panic::resume_unwind(Box::new("the store's client"));
            });
            assert!(leading.join().is_err());
            assert!(matches!(follow.wait(), Outcome::Look));
        });
    }
}
