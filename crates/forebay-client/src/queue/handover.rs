//! From one connection to the next without a gap: the old one sends what it has credit for, the next one what follows.
//!
//! The thread that looks for the next server freezes the credit, which fixes the place where the old one will have nothing
//! left to send, and opens the stream there. The receiving thread goes over when it has come to that place and
//! not before. What was taken from the queue meanwhile becomes credit of the next server, so neither gets
//! more than the budget allows.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use forebay_wire::{Socket, wire};

use super::Queue;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::sequence::{Place, Sequence};

impl Queue {
    /// Number of the present connection: what is done for another one is not done.
    pub(crate) fn connection(&self) -> u64 {
        self.state().connection
    }

    /// One thread may look for another server from now on, unless one does already: to replace the connection of this
    /// number, to this server.
    pub(crate) fn begin_move(&self) -> Option<(u64, String)> {
        let mut state = self.state();
        if state.moving || state.interrupted {
            return None;
        }
        state.moving = true;
        Some((state.connection, state.server.clone()))
    }

    /// From now on an interruption ends what happens on `socket` as well.
    pub(crate) fn adopt_spare(&self, socket: &Socket) -> Result<()> {
        let mut state = self.state();
        if state.interrupted {
            return Err(Error::Interrupted);
        }
        state.spare = Some(socket.clone());
        Ok(())
    }

    /// Gives the server of this `connection` no further credit. Tells the place that it will have reached when it has used up what it
    /// has: the end of the epoch at most. None if there is another connection by now.
    pub(crate) fn freeze(&self, connection: u64, sequence: &Sequence) -> Option<Place> {
        let mut state = self.state();
        if state.connection != connection || state.interrupted {
            return None;
        }
        let owed = u64::try_from(state.outstanding).unwrap_or(0);
        let batches = match sequence.is_raw() {
            // It may send one if it may send anything.
            true => u64::from(owed > 0),
            false => owed / sequence.batch_bytes().max(1),
        };
        let at = sequence.ahead(state.next, batches);
        state.switch_at = Some(at);
        drop(state);
        // The receiving thread may be waiting for a batch that will not come: the answer wakes it.
        self.send(&wire::Ping::default().into());
        Some(at)
    }

    /// Gives up going over: the server gets its credit again.
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

    /// The connection to go over to, its stream open at the place that [`Queue::freeze`] told.
    pub(crate) fn offer(&self, connection: u64, next: Connection) {
        let mut state = self.state();
        if state.connection == connection && state.switch_at.is_some() && !state.interrupted {
            state.offered = Some(Box::new(next));
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Looking for another server is over.
    pub(crate) fn moved(&self, connection: u64, nowhere: bool) {
        let mut state = self.state();
        state.moving = false;
        state.spare = None;
        let wakes = nowhere && state.connection == connection;
        state.nowhere |= wakes;
        drop(state);
        if wakes {
            self.send(&wire::Ping::default().into());
        }
    }

    /// The connection to go over to, if its place is `place`: then it is waited for, for at most `patience`. One that takes
    /// longer is not wanted any more.
    pub(crate) fn take_offer(&self, place: Place, patience: Duration) -> Option<Connection> {
        let began = Instant::now();
        let mut state = self.state();
        loop {
            if state.interrupted || state.switch_at != Some(place) {
                return None;
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
