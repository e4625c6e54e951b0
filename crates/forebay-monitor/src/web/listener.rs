//! Limits on admin connections: a small number, a short lifetime, and eviction instead of waiting.
//!
//! At the limit, the listener accepts a new connection and closes another one: the oldest that has
//! not sent a complete request, or else the oldest. If the limit of one address is reached, only
//! connections from that address are closed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use forebay_server::origin;

/// Simultaneous connections. File descriptors are reserved for trainers.
const MAX_CONNECTIONS: usize = 64;
/// Simultaneous connections from one address; a browser opens six.
const MAX_PER_ADDRESS: usize = 16;

/// Time limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    /// Time from the start of the connection until the head of the first request must be complete.
    pub(crate) header: Duration,
    /// Time from then on until the connection is closed, active or not.
    pub(crate) lifetime: Duration,
}

/// A listener with a bounded number of connections.
pub(crate) struct Bounded {
    listener: TcpListener,
    deadlines: Deadlines,
    places: Places,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener, deadlines: Deadlines) -> Bounded {
        Bounded {
            listener,
            deadlines,
            places: Places::default(),
        }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Limited;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Limited, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    let (place, evicted) = self.places.take(origin(peer.ip()));
                    let limited = Limited {
                        stream,
                        deadline: Box::pin(tokio::time::sleep(self.deadlines.header)),
                        lifetime: self.deadlines.lifetime,
                        head: Head::default(),
                        evicted: Some(evicted),
                        place,
                    };
                    return (limited, peer);
                }
                // Most likely out of file descriptors: retry once some are closed.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The connections that are open.
#[derive(Clone, Default)]
struct Places(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    next: u64,
    /// In order of arrival.
    guests: Vec<Guest>,
}

struct Guest {
    number: u64,
    from: IpAddr,
    /// Whether the client sent a complete request head.
    asked: bool,
    /// Dropped when another connection takes this place, which closes the connection.
    _evict: oneshot::Sender<()>,
}

impl Table {
    /// The connection to evict for a new one from `from`: the oldest without a complete request, or
    /// else the oldest.
    fn victim(&self, from: IpAddr) -> Option<usize> {
        let own = |guest: &&Guest| guest.from == from;
        let full_here = self.guests.iter().filter(own).count() >= MAX_PER_ADDRESS;
        if !full_here && self.guests.len() < MAX_CONNECTIONS {
            return None;
        }
        let candidates = self.guests.iter().enumerate();
        let candidates = candidates.filter(|(_, guest)| !full_here || guest.from == from);
        candidates
            .min_by_key(|(_, guest)| (guest.asked, guest.number))
            .map(|(at, _)| at)
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection; the receiver fires when the connection is evicted.
    fn take(&self, from: IpAddr) -> (ConnectionSlot, oneshot::Receiver<()>) {
        let (evict, evicted) = oneshot::channel();
        let mut table = self.lock();
        if let Some(victim) = table.victim(from) {
            table.guests.remove(victim);
        }
        let number = table.next;
        table.next += 1;
        table.guests.push(Guest {
            number,
            from,
            asked: false,
            _evict: evict,
        });
        drop(table);
        let place = ConnectionSlot {
            number,
            places: self.clone(),
        };
        (place, evicted)
    }
}

/// One connection's entry in the table.
struct ConnectionSlot {
    number: u64,
    places: Places,
}

impl ConnectionSlot {
    fn has_asked(&self) {
        let mut table = self.places.lock();
        let own = table.guests.iter_mut().find(|g| g.number == self.number);
        if let Some(guest) = own {
            guest.asked = true;
        }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.places.lock();
        table.guests.retain(|guest| guest.number != self.number);
    }
}

/// Looks for the empty line that ends the head of a request.
#[derive(Default)]
struct Head {
    began: bool,
    complete: bool,
    newlines: u8,
}

impl Head {
    /// Returns whether these bytes complete the head.
    fn completes(&mut self, bytes: &[u8]) -> bool {
        if self.complete {
            return false;
        }
        for &byte in bytes {
            match byte {
                b'\n' => self.newlines += 1,
                b'\r' => {}
                _ => (self.began, self.newlines) = (true, 0),
            }
            // Empty lines before a request are ignored.
            if !self.began {
                self.newlines = 0;
            }
            if self.newlines == 2 {
                self.complete = true;
                return true;
            }
        }
        false
    }
}

/// A connection that counts against the limit and has a deadline.
pub(crate) struct Limited {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    lifetime: Duration,
    head: Head,
    /// `None` once it has fired.
    evicted: Option<oneshot::Receiver<()>>,
    place: ConnectionSlot,
}

impl Limited {
    /// Ready with an error once the connection is evicted or past its deadline.
    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(evicted) = &mut self.evicted {
            if Pin::new(evicted).poll(context).is_pending() {
                return self.deadline.as_mut().poll(context).map(|()| {
                    let late = io::ErrorKind::TimedOut;
                    Err(late.into())
                });
            }
            self.evicted = None;
        }
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buf);
        if self.head.completes(&buf.filled()[before..]) {
            self.place.has_asked();
            let ends = Instant::now() + self.lifetime;
            self.deadline.as_mut().reset(ends);
        }
        // Checked first: a client that sends without pause must not outrun its deadline.
        match self.poll_over(context) {
            Poll::Pending => read,
            over => over,
        }
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, buf) {
            return Poll::Ready(written);
        }
        self.poll_over(context).map_ok(|()| 0)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn silent_connections_lose_their_places_first() {
        let places = Places::default();
        let mut held: Vec<_> = (0..MAX_PER_ADDRESS)
            .map(|_| places.take(address(1)))
            .collect();
        held[0].0.has_asked();
        let other = places.take(address(2));
        held.push(places.take(address(1)));
        let lost = |evicted: &mut oneshot::Receiver<()>| {
            evicted
                .try_recv()
                .is_err_and(|e| e == oneshot::error::TryRecvError::Closed)
        };
        let gone: Vec<usize> = (0..held.len()).filter(|&i| lost(&mut held[i].1)).collect();
        assert_eq!(gone, [1], "the oldest silent one from there");
        // If all have sent a request, the oldest is evicted.
        for (place, _) in &held {
            place.has_asked();
        }
        held.push(places.take(address(1)));
        assert!(lost(&mut held[0].1));
        let mut other = other;
        assert!(!lost(&mut other.1), "other addresses keep theirs");
        drop((held, other));
        assert!(places.lock().guests.is_empty());
    }

    #[test]
    fn many_addresses_share_all_places() {
        let places = Places::default();
        let held: Vec<_> = (0..=u8::MAX)
            .map(|last| places.take(address(last)))
            .collect();
        assert_eq!(places.lock().guests.len(), MAX_CONNECTIONS);
        drop(held);
        assert!(places.lock().guests.is_empty());
    }

    #[test]
    fn a_head_ends_with_an_empty_line() {
        let ends = |pieces: &[&str]| {
            let mut head = Head::default();
            let found: Vec<bool> = pieces
                .iter()
                .map(|p| head.completes(p.as_bytes()))
                .collect();
            found.iter().position(|&found| found)
        };
        assert_eq!(ends(&["GET / HTTP/1.1\r\nHost: x\r\n\r\n"]), Some(0));
        assert_eq!(ends(&["GET / HTTP/1.1\r", "\n", "\r", "\nmore"]), Some(3));
        assert_eq!(ends(&["GET / HTTP/1.1\n\n"]), Some(0));
        assert_eq!(ends(&["\r\n\r\n\r\nGET / HTTP/1.1\r\n"]), None);
        assert_eq!(ends(&["GET / HTTP/1.1\r\nHost: x\r\n"]), None);
        assert_eq!(ends(&["G\r\n\r\n", "G\r\n\r\n"]), Some(0), "once");
    }
}
