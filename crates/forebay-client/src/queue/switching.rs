//! The steps of a migration, as the searching and the receiving thread take them.

use std::time::Duration;

use forebay_wire::{Socket, wire};

use super::Queue;
use super::handover::Offer;
use crate::connection::Connection;
use crate::error::Result;
use crate::sequence::{Place, Sequence};

impl Queue {
    /// Number of the current connection; operations for another number are ignored.
    pub(crate) fn connection(&self) -> u64 {
        self.state().link.number()
    }

    /// Starts a search if none is in progress and none has found a connection; returns the
    /// connection to replace, and its server.
    pub(crate) fn begin_migration(&self) -> Option<(u64, String)> {
        let mut state = self.state();
        let may = !state.delivery.is_interrupted() && state.handover.begin_search();
        may.then(|| (state.link.number(), state.link.server().to_owned()))
    }

    /// Registers the socket of the next connection, so that an interruption shuts it down too.
    pub(crate) fn adopt_spare(&self, socket: &Socket) -> Result<()> {
        self.unless_interrupted()?.handover.adopt(socket.clone());
        Ok(())
    }

    /// Stops granting credit to `connection`. Returns the position at which its credit is used up,
    /// at most the end of the epoch; `None` if it is no longer the current connection.
    pub(crate) fn freeze(&self, connection: u64, sequence: &Sequence) -> Option<Place> {
        let mut state = self.state();
        if state.link.number() != connection || state.delivery.is_interrupted() {
            return None;
        }
        let at = state.credit.used_up_at(sequence);
        state.handover.freeze(at);
        drop(state);
        // Wakes the receiving thread, which may be waiting for a batch that will not come, through
        // the answer to this ping.
        self.send(&wire::Ping::default().into());
        Some(at)
    }

    /// Cancels the migration: the current server gets its credit again.
    pub(crate) fn thaw(&self, connection: u64) {
        let mut state = self.state();
        if state.link.number() != connection {
            return;
        }
        let Some((bytes, offered)) = state.handover.thaw() else {
            return;
        };
        drop(state);
        drop(offered);
        self.changed.notify_all();
        self.give_back(connection, bytes);
    }

    /// Offers the next connection, with its stream open at the position that [`Queue::freeze`]
    /// returned. Ignored if that migration was cancelled.
    pub(crate) fn offer(&self, connection: u64, place: Place, next: Connection) {
        let mut state = self.state();
        let refused = match state.link.number() == connection && !state.delivery.is_interrupted() {
            true => state.handover.offer(place, next),
            false => Some(next),
        };
        drop(state);
        drop(refused);
        self.changed.notify_all();
    }

    /// Ends the search. `nowhere`: the current server stops, and no other can take over.
    pub(crate) fn migrated(&self, connection: u64, nowhere: bool) {
        let mut state = self.state();
        state.handover.end_search();
        let wakes = nowhere && state.link.number() == connection;
        if wakes {
            state.handover.find_nowhere();
        }
        drop(state);
        if wakes {
            self.send(&wire::Ping::default().into());
        }
    }

    /// Returns whether the current server stops, and no other can take over.
    pub(crate) fn is_nowhere(&self) -> bool {
        self.state().handover.is_nowhere()
    }

    /// Takes the next connection if `place` is the switch position, waiting for it up to
    /// `patience`. If it takes longer, or the position has passed, the migration is cancelled.
    pub(crate) fn take_offer(&self, place: Place, patience: Duration) -> Option<Connection> {
        let (mut state, offer) =
            self.wait(patience, |state| match state.delivery.is_interrupted() {
                true => Some(Offer::None),
                false => state.handover.take(place),
            });
        match offer {
            Some(Offer::Ready(next)) => return Some(*next),
            Some(Offer::None) => return None,
            Some(Offer::Missed) | None => {}
        }
        let connection = state.link.number();
        state.handover.abort_search();
        drop(state);
        self.thaw(connection);
        None
    }
}
