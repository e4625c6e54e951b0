//! The connection that the stream uses, or the loss of it.

use std::net::Shutdown;
use std::time::Instant;

use forebay_wire::Socket;

use crate::error::Error;
use crate::options::Via;

/// A lost connection that was not replaced yet.
struct Loss {
    since: Instant,
    /// The last error.
    last: String,
}

enum Status {
    Connected,
    /// The receiving thread waits before the next attempt.
    Lost(Loss),
    /// The receiving thread connects, which no interruption can end at once.
    Dialling(Loss),
}

pub(super) struct Link {
    status: Status,
    /// Number of the current or last connection; 0 before the first one.
    number: u64,
    server: String,
    via: Via,
    /// The socket that an interruption shuts down.
    socket: Option<Socket>,
    /// Sockets of the additional connections.
    more: Vec<Socket>,
    /// When the server sent its last message.
    last_sign: Option<Instant>,
}

impl Link {
    pub(super) const fn new(server: String) -> Self {
        Link {
            status: Status::Connected,
            number: 0,
            server,
            via: Via::Tcp,
            socket: None,
            more: Vec::new(),
            last_sign: None,
        }
    }

    /// Sets the socket that an interruption shuts down.
    pub(super) fn adopt(&mut self, socket: Socket) {
        self.socket = Some(socket);
    }

    /// Changes to a connection with an open stream; returns its number. A lost stream counts as
    /// lost until [`Link::connected`].
    pub(super) fn begin(&mut self, server: &str, via: Via, more: Vec<Socket>, now: Instant) -> u64 {
        self.number += 1;
        server.clone_into(&mut self.server);
        self.via = via;
        self.more = more;
        self.last_sign = Some(now);
        self.number
    }

    /// Marks the stream as connected.
    pub(super) fn connected(&mut self) {
        self.status = Status::Connected;
    }

    /// Forgets the sockets of a connection that has ended.
    pub(super) fn disconnected(&mut self) {
        self.socket = None;
        self.more.clear();
    }

    /// Records that the connection was lost at `since`, or that an attempt to replace it failed.
    pub(super) fn lost(&mut self, since: Instant, last: String) {
        self.status = Status::Lost(Loss { since, last });
    }

    /// Marks the beginning or the end of an attempt to replace a lost connection.
    pub(super) fn dial(&mut self, begins: bool) {
        let status = std::mem::replace(&mut self.status, Status::Connected);
        if let Status::Lost(loss) | Status::Dialling(loss) = status {
            self.status = match begins {
                true => Status::Dialling(loss),
                false => Status::Lost(loss),
            };
        }
    }

    /// Records that the server sent a message.
    pub(super) fn heard(&mut self, now: Instant) {
        self.last_sign = Some(now);
    }

    /// Closes all sockets, which ends waits on them.
    pub(super) fn shut_down(&mut self) {
        for socket in self.socket.take().iter().chain(&self.more) {
            socket.shutdown(Shutdown::Both);
        }
    }

    /// Returns the error for a consumer that waits while the connection is lost.
    pub(super) fn away(&self, now: Instant) -> Option<Error> {
        let (Status::Lost(loss) | Status::Dialling(loss)) = &self.status else {
            return None;
        };
        Some(Error::Away {
            server: self.server.clone(),
            waited: now.saturating_duration_since(loss.since),
            last: loss.last.clone(),
        })
    }

    pub(super) fn is_dialling(&self) -> bool {
        matches!(self.status, Status::Dialling(_))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    pub(super) fn via(&self) -> Via {
        self.via
    }

    pub(super) fn last_sign(&self) -> Option<Instant> {
        self.last_sign
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use super::*;
    use crate::queue::tests::sockets;

    fn lost(link: &Link, now: Instant) -> (String, u64, String) {
        match link.away(now) {
            Some(Error::Away {
                server,
                waited,
                last,
            }) => (server, waited.as_secs(), last),
            _ => panic!("it is not lost"),
        }
    }

    #[test]
    fn a_lost_stream_stays_lost_until_it_is_connected_again() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut link = Link::new("a:1".to_owned());
        assert_eq!(link.begin("a:1", Via::Tcp, Vec::new(), began), 1);
        link.connected();
        assert!(link.away(at(1)).is_none());
        link.lost(at(1), "reset".to_owned());
        let shown = |server: &str, waited, last: &str| (server.to_owned(), waited, last.to_owned());
        assert_eq!(lost(&link, at(3)), shown("a:1", 2, "reset"));
        link.dial(true);
        assert!(link.is_dialling());
        assert_eq!(lost(&link, at(4)), shown("a:1", 3, "reset"));
        link.dial(false);
        assert!(!link.is_dialling());
        link.lost(at(1), "refused".to_owned());
        assert_eq!(lost(&link, at(5)), shown("a:1", 4, "refused"));
        // Another server has opened the stream, but its credit is not sent yet.
        assert_eq!(link.begin("b:1", Via::Shm, Vec::new(), at(5)), 2);
        assert_eq!(lost(&link, at(6)), shown("b:1", 5, "refused"));
        link.connected();
        assert!(link.away(at(7)).is_none());
        assert_eq!((link.server(), link.via()), ("b:1", Via::Shm));
    }

    #[test]
    fn only_a_lost_stream_dials() {
        let mut link = Link::new("a:1".to_owned());
        link.dial(true);
        assert!(!link.is_dialling());
        assert!(link.away(Instant::now()).is_none());
    }

    #[test]
    fn the_last_message_is_that_of_the_current_server() {
        let began = Instant::now();
        let mut link = Link::new("a:1".to_owned());
        assert_eq!(link.last_sign(), None);
        link.begin("a:1", Via::Tcp, Vec::new(), began);
        assert_eq!(link.last_sign(), Some(began));
        let later = began + Duration::from_secs(1);
        link.heard(later);
        assert_eq!(link.last_sign(), Some(later));
    }

    #[test]
    fn all_sockets_of_the_connection_are_shut_down() {
        let (first, mut first_peer) = sockets();
        let (second, mut second_peer) = sockets();
        let mut link = Link::new("a:1".to_owned());
        link.adopt(first.clone());
        link.begin("a:1", Via::Tcp, vec![second.clone()], Instant::now());
        link.shut_down();
        for peer in [&mut first_peer, &mut second_peer] {
            assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        }
        // Those of an earlier connection are not touched.
        let (third, mut third_peer) = sockets();
        link.adopt(third.clone());
        link.disconnected();
        link.shut_down();
        third_peer.set_nonblocking(true).unwrap();
        assert!(third_peer.read(&mut [0]).is_err(), "it is open");
    }
}
