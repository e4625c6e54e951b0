//! Reads from a client with a deadline for each message.

use std::io::{self, ErrorKind, Read};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use forebay_wire::Socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A reader of a socket. It returns to the caller on every `tick`, when the server stops, and when a message is incomplete at
/// its deadline, even if its bytes keep arriving slowly.
pub(crate) struct DeadlineReader<'a> {
    socket: Socket,
    /// Becomes readable when the server stops.
    stop: BorrowedFd<'a>,
    stop_seen: bool,
    tick: Duration,
    /// When the first byte of the current message arrived.
    began: Option<Instant>,
    limit: Duration,
}

impl<'a> DeadlineReader<'a> {
    /// Creates a reader. The deadline of the first message is `limit` from now.
    pub(crate) fn new(
        socket: Socket,
        stop: BorrowedFd<'a>,
        tick: Duration,
        limit: Duration,
    ) -> Self {
        DeadlineReader {
            socket,
            stop,
            stop_seen: false,
            tick,
            began: Some(Instant::now()),
            limit,
        }
    }

    /// Called when a message is complete. The deadline of the next one is `limit` after its first
    /// byte, which has arrived already if `has_begun`.
    pub(crate) fn next_message(&mut self, limit: Duration, has_begun: bool) {
        self.began = has_begun.then(Instant::now);
        self.limit = limit;
    }

    /// Returns whether the current message has missed its deadline.
    pub(crate) fn overdue(&self) -> bool {
        self.began
            .is_some_and(|began| began.elapsed() >= self.limit)
    }

    /// Returns whether the server stops.
    pub(crate) fn stopping(&self) -> bool {
        self.stop_seen
    }

    /// Performs the TLS handshake, if TLS is used, within the deadline of the first message.
    pub(crate) fn shake_hands(&mut self) -> io::Result<()> {
        while self.socket.is_handshaking() {
            match self.ready() {
                Ok(()) => self.socket.advance()?,
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                Err(_) if self.stop_seen || self.overdue() => {
                    return Err(ErrorKind::TimedOut.into());
                }
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Reads and discards what the client still sends, until it closes, `limit` passes or too many
    /// bytes arrived. Closing a socket with unread bytes resets the connection, which would lose
    /// the last message to the client.
    pub(crate) fn linger(mut self, limit: Duration) {
        const MOST: usize = 8 << 20;
        self.began = Some(Instant::now());
        self.limit = limit;
        self.stop_seen = true;
        let mut scratch = [0; 4096];
        let mut read = 0;
        while read < MOST && !self.overdue() {
            match self.read(&mut scratch) {
                Ok(0) => return,
                Ok(n) => read += n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
        }
    }
}

impl DeadlineReader<'_> {
    /// Waits until data is readable. Returns `WouldBlock` after a tick or when the server stops,
    /// `TimedOut` when the message has missed its deadline.
    fn ready(&mut self) -> io::Result<()> {
        let mut wait = self.tick;
        if let Some(began) = self.began {
            wait = wait.min(self.limit.saturating_sub(began.elapsed()));
            if wait.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        let wait = Timespec::try_from(wait).map_err(|_| ErrorKind::InvalidInput)?;
        let mut fds = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.stop, PollFlags::IN),
        ];
        let watched = if self.stop_seen { 1 } else { 2 };
        poll(&mut fds[..watched], Some(&wait))?;
        let (ready, stop) = (fds[0].revents(), fds[1].revents());
        if !ready.is_empty() {
            return Ok(());
        }
        self.stop_seen |= !stop.is_empty();
        Err(ErrorKind::WouldBlock.into())
    }
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.overdue() {
            return Err(ErrorKind::TimedOut.into());
        }
        if !self.socket.has_pending() {
            self.ready()?;
        }
        let n = self.socket.read_some(buf)?;
        if n > 0 && self.began.is_none() {
            self.began = Some(Instant::now());
        }
        Ok(n)
    }
}
