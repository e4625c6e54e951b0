//! Switches from one connection to the next without a gap: the old one sends what it has credit
//! for, the next one continues after it.
//!
//! The searching thread freezes the credit, which fixes the position at which the old connection
//! has nothing left to send, and opens the stream there on the next connection. The receiving
//! thread switches when it reaches that position. Space that becomes free meanwhile is granted to
//! the next server, so both together never exceed the budget.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use forebay_wire::{Socket, wire};

use super::Queue;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::sequence::{Place, Sequence};

impl Queue {
    /// Number of the current connection; operations for another number are ignored.
    pub(crate) fn connection(&self) -> u64 {
        self.state().connection
    }

    /// Starts a search if none is in progress and none has found a connection; returns the
    /// connection to replace, and its server.
    pub(crate) fn begin_migration(&self) -> Option<(u64, String)> {
        let mut state = self.state();
        if state.migrating || state.interrupted || state.offered.is_some() {
            return None;
        }
        state.migrating = true;
        Some((state.connection, state.server.clone()))
    }

    /// Registers the socket of the next connection, so that an interruption shuts it down too.
    pub(crate) fn adopt_spare(&self, socket: &Socket) -> Result<()> {
        let mut state = self.state();
        if state.interrupted {
            return Err(Error::Interrupted);
        }
        state.spare = Some(socket.clone());
        Ok(())
    }

    /// Stops granting credit to `connection`. Returns the position at which its credit is used up,
    /// at most the end of the epoch; `None` if it is no longer the current connection.
    pub(crate) fn freeze(&self, connection: u64, sequence: &Sequence) -> Option<Place> {
        let mut state = self.state();
        if state.connection != connection || state.interrupted {
            return None;
        }
        let owed = u64::try_from(state.outstanding).unwrap_or(0);
        let batches = match sequence.varies() {
            // With varying sizes, any remaining credit allows one batch.
            true => u64::from(owed > 0),
            false => owed / sequence.batch_bytes().max(1),
        };
        let at = sequence.ahead(state.next, batches);
        state.switch_at = Some(at);
        drop(state);
        // Wakes the receiving thread, which may be waiting for a batch that will not come, through
        // the answer to this ping.
        self.send(&wire::Ping::default().into());
        Some(at)
    }

    /// Cancels the migration: the current server gets its credit again.
    pub(crate) fn thaw(&self, connection: u64) {
        let mut state = self.state();
        if state.connection != connection || state.switch_at.take().is_none() {
            return;
        }
        let offered = state.offered.take();
        let bytes = std::mem::take(&mut state.held_back);
        drop(state);
        drop(offered);
        self.changed.notify_all();
        self.give_back(connection, bytes);
    }

    /// Offers the next connection, with its stream open at the position that [`Queue::freeze`]
    /// returned. Ignored if that migration was cancelled.
    pub(crate) fn offer(&self, connection: u64, place: Place, next: Connection) {
        let mut state = self.state();
        if state.connection == connection && state.switch_at == Some(place) && !state.interrupted {
            state.offered = Some(Box::new(next));
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Ends the search.
    pub(crate) fn migrated(&self, connection: u64, nowhere: bool) {
        let mut state = self.state();
        state.migrating = false;
        state.spare = None;
        let wakes = nowhere && state.connection == connection;
        state.nowhere |= wakes;
        drop(state);
        if wakes {
            self.send(&wire::Ping::default().into());
        }
    }

    /// Takes the next connection if `place` is the switch position, waiting for it up to
    /// `patience`. If it takes longer, the migration is cancelled; also if `place` is later, which
    /// happens because the old server sends the end of an epoch without credit.
    pub(crate) fn take_offer(&self, place: Place, patience: Duration) -> Option<Connection> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            match state.switch_at {
                _ if state.interrupted => return None,
                Some(at) if at < place => break,
                Some(at) if at == place => {}
                _ => return None,
            }
            if let Some(next) = state.offered.take() {
                return Some(*next);
            }
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            (state, _) = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let connection = state.connection;
        if let Some(socket) = state.spare.take() {
            socket.shutdown(Shutdown::Both);
        }
        drop(state);
        self.thaw(connection);
        None
    }
}
