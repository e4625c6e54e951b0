//! Switches from one connection to the next without a gap: the old one sends what it has credit
//! for, the next one continues after it.
//!
//! The searching thread freezes the credit, which fixes the position at which the old connection
//! has nothing left to send, and opens the stream there on the next connection. The receiving
//! thread switches when it reaches that position. Space that becomes free meanwhile is granted to
//! the next server, so both together never exceed the budget.

use std::net::Shutdown;

use forebay_wire::Socket;

use crate::connection::Connection;
use crate::sequence::Place;

/// The thread that searches for the next server. It may outlast the connection that it is to replace.
enum Search {
    Idle,
    /// With the socket of the connection that it prepares, once there is one.
    Running(Option<Socket>),
}

/// The switch from the current connection to the next one.
enum Switch {
    /// The current server gets the credit that becomes free.
    Idle,
    /// The current server gets no more credit, and has used up what it has at `at`.
    Frozen {
        at: Place,
        /// Bytes that were taken from the queue since.
        held_back: u64,
        /// The next connection, with its stream open at `at`.
        next: Option<Box<Connection>>,
    },
    /// The receiving thread has the next connection, but not yet switched to it.
    Taken,
    /// The current server stops, and no other server can take over.
    Nowhere,
}

/// The batch or the end that the receiving thread finds at its position.
pub(super) enum Offer {
    /// The connection to switch to.
    Ready(Box<Connection>),
    /// The position of the switch has passed, because the old server sends the end of an epoch
    /// without credit.
    Missed,
    /// The current connection continues.
    None,
}

pub(super) struct Handover {
    search: Search,
    switch: Switch,
}

impl Handover {
    pub(super) const fn new() -> Self {
        Handover {
            search: Search::Idle,
            switch: Switch::Idle,
        }
    }

    /// Starts a search; false if one is in progress, or has ended with a result.
    pub(super) fn begin_search(&mut self) -> bool {
        let may = matches!((&self.search, &self.switch), (Search::Idle, Switch::Idle));
        if may {
            self.search = Search::Running(None);
        }
        may
    }

    /// Sets the socket that the search prepares.
    pub(super) fn adopt(&mut self, socket: Socket) {
        if let Search::Running(spare) = &mut self.search {
            *spare = Some(socket);
        }
    }

    /// Ends the search.
    pub(super) fn end_search(&mut self) {
        self.search = Search::Idle;
    }

    /// Closes the connection that the search prepares. The search itself goes on.
    pub(super) fn abort_search(&mut self) {
        if let Search::Running(socket) = &mut self.search
            && let Some(socket) = socket.take()
        {
            socket.shutdown(Shutdown::Both);
        }
    }

    /// Stops granting credit to the current connection, which has none left at `at`.
    pub(super) fn freeze(&mut self, at: Place) {
        let (held_back, next) = (0, None);
        self.switch = Switch::Frozen {
            at,
            held_back,
            next,
        };
    }

    /// Keeps credit for the next server; false if the current one gets it.
    pub(super) fn hold_back(&mut self, bytes: u64) -> bool {
        if let Switch::Frozen { held_back, .. } = &mut self.switch {
            *held_back += bytes;
        }
        matches!(self.switch, Switch::Frozen { .. } | Switch::Taken)
    }

    /// Cancels the switch. Returns the credit that the current server gets, and the connection that
    /// was offered, to be dropped without the lock; `None` if there is nothing to cancel.
    pub(super) fn thaw(&mut self) -> Option<(u64, Option<Box<Connection>>)> {
        let Switch::Frozen {
            held_back, next, ..
        } = &mut self.switch
        else {
            return None;
        };
        let thawed = (*held_back, next.take());
        self.switch = Switch::Idle;
        Some(thawed)
    }

    /// Offers a connection whose stream is open at `place`. Returns it if the switch was cancelled
    /// or is at another position.
    pub(super) fn offer(&mut self, place: Place, offered: Connection) -> Option<Connection> {
        match &mut self.switch {
            Switch::Frozen { at, next, .. } if *at == place && next.is_none() => {
                *next = Some(Box::new(offered));
                None
            }
            _ => Some(offered),
        }
    }

    /// Returns what to do at `place`; `None` if the search is preparing the connection to switch to
    /// here.
    pub(super) fn take(&mut self, place: Place) -> Option<Offer> {
        match &mut self.switch {
            Switch::Frozen { at, .. } if *at < place => Some(Offer::Missed),
            Switch::Frozen { at, next, .. } if *at == place => {
                let next = next.take()?;
                self.switch = Switch::Taken;
                Some(Offer::Ready(next))
            }
            _ => Some(Offer::None),
        }
    }

    /// Records that the current server stops and no other server can take over.
    pub(super) fn find_nowhere(&mut self) {
        self.switch = Switch::Nowhere;
    }

    pub(super) fn is_nowhere(&self) -> bool {
        matches!(self.switch, Switch::Nowhere)
    }

    /// Forgets the switch: another connection is the current one, or the stream ends.
    pub(super) fn clear(&mut self) -> Option<Box<Connection>> {
        let offered = self.thaw().and_then(|(_, offered)| offered);
        self.switch = Switch::Idle;
        offered
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::queue::tests::{prepared, sockets};

    const AT: Place = (0, 8);

    fn frozen() -> Handover {
        let mut handover = Handover::new();
        assert!(handover.begin_search());
        handover.freeze(AT);
        handover
    }

    fn offered() -> Handover {
        let mut handover = frozen();
        assert!(handover.offer(AT, prepared()).is_none());
        handover.end_search();
        handover
    }

    #[test]
    fn one_search_runs_at_a_time() {
        let mut handover = Handover::new();
        assert!(handover.begin_search());
        assert!(!handover.begin_search());
        // The thread of a search outlasts the connection that it was to replace.
        handover.clear();
        assert!(!handover.begin_search());
        handover.end_search();
        assert!(handover.begin_search());
    }

    #[test]
    fn no_search_begins_after_one_that_had_a_result() {
        assert!(!offered().begin_search());
        let mut handover = Handover::new();
        assert!(handover.begin_search());
        handover.find_nowhere();
        handover.end_search();
        assert!(handover.is_nowhere());
        assert!(!handover.begin_search());
        handover.clear();
        assert!(!handover.is_nowhere());
        assert!(handover.begin_search());
    }

    #[test]
    fn an_offer_is_taken_at_its_position_only() {
        let mut handover = offered();
        assert!(matches!(handover.take((0, 6)), Some(Offer::None)));
        assert!(matches!(handover.take(AT), Some(Offer::Ready(_))));
        assert!(matches!(handover.take(AT), Some(Offer::None)), "once");
        let mut handover = offered();
        assert!(matches!(handover.take((1, 0)), Some(Offer::Missed)));
    }

    #[test]
    fn the_receiver_waits_for_a_search_at_its_position() {
        let mut handover = frozen();
        assert!(matches!(handover.take((0, 6)), Some(Offer::None)));
        assert!(handover.take(AT).is_none());
        assert!(handover.offer(AT, prepared()).is_none());
        assert!(matches!(handover.take(AT), Some(Offer::Ready(_))));
    }

    #[test]
    fn offers_that_no_switch_waits_for_are_refused() {
        let mut handover = frozen();
        assert!(handover.offer((0, 6), prepared()).is_some());
        handover.thaw();
        assert!(handover.offer(AT, prepared()).is_some());
        assert!(offered().offer(AT, prepared()).is_some());
    }

    #[test]
    fn credit_is_held_back_until_the_switch_or_its_end() {
        let mut handover = Handover::new();
        assert!(!handover.hold_back(1));
        assert!(handover.thaw().is_none());
        handover.freeze(AT);
        assert!(handover.hold_back(10) && handover.hold_back(20));
        assert!(matches!(handover.thaw(), Some((30, None))));
        assert!(!handover.hold_back(1));
        let mut handover = offered();
        assert!(handover.hold_back(5));
        assert!(matches!(handover.thaw(), Some((5, Some(_)))));
        let mut handover = offered();
        assert!(handover.hold_back(5));
        handover.take(AT);
        assert!(handover.hold_back(6));
        assert!(handover.thaw().is_none());
        assert!(handover.clear().is_none());
        assert!(!handover.hold_back(1));
    }

    #[test]
    fn an_aborted_search_loses_its_connection() {
        let (socket, mut peer) = sockets();
        let mut handover = Handover::new();
        assert!(handover.begin_search());
        handover.abort_search();
        handover.adopt(socket.clone());
        handover.abort_search();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        assert!(!handover.begin_search(), "it goes on");
    }
}
