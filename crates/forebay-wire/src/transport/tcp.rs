//! TCP: blocking sockets without Nagle's delay, with reads that wait for all requested bytes,
//! optionally with TLS.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, sockopt};

use super::tls::Session;

/// Reads of at least this size ask the system to wait for all bytes, which saves a wake-up per
/// segment; smaller reads, as for messages, return the bytes that have arrived.
const WAIT_ALL_FROM: usize = 128 << 10;

/// Send buffer in bytes of a connection within this host. The system's automatic size grows to several megabytes, so that data
/// leaves the CPU caches before the receiver copies it. This size stays in the caches, and suffices for round trips of
/// microseconds.
const SAME_HOST_SEND_BUFFER: usize = 512 << 10;

/// A connected TCP socket. A clone is another handle to the same socket, so that one thread can
/// read, another write, and a third shut it down.
#[derive(Debug, Clone)]
pub struct TcpSocket {
    stream: Arc<TcpStream>,
    tls: Option<Arc<Session>>,
}

impl TcpSocket {
    /// Wraps a connected stream and disables Nagle's algorithm. Buffer sizes stay automatic, because
    /// the system tunes them to the path unless they are set; within a host the send buffer is small.
    ///
    /// # Errors
    ///
    /// Errors of the system, such as for a closed socket.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let socket = TcpSocket {
            stream: Arc::new(stream),
            tls: None,
        };
        if socket.is_same_host() {
            // A failure costs speed only.
            let _ = sockopt::set_socket_send_buffer_size(&socket, SAME_HOST_SEND_BUFFER);
        }
        Ok(socket)
    }

    /// Returns whether the peer is on this host, as far as the addresses show: a loopback address,
    /// or the same address as this side.
    #[must_use]
    pub fn is_same_host(&self) -> bool {
        match (self.stream.local_addr(), self.stream.peer_addr()) {
            (Ok(own), Ok(peer)) => peer.ip().is_loopback() || own.ip() == peer.ip(),
            _ => false,
        }
    }

    /// Returns the same socket with TLS, before its handshake: see [`TcpSocket::advance`].
    #[must_use]
    pub fn with_tls(self, tls: impl Into<rustls::Connection>) -> Self {
        TcpSocket {
            tls: Some(Arc::new(Session::new(tls.into()))),
            ..self
        }
    }

    /// Returns the same socket without TLS, to answer a peer that does not use it.
    #[must_use]
    pub fn without_tls(&self) -> Self {
        TcpSocket {
            stream: Arc::clone(&self.stream),
            tls: None,
        }
    }

    /// Returns whether the connection uses TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns the name of the cipher suite, once negotiated.
    #[must_use]
    pub fn cipher(&self) -> Option<String> {
        self.tls.as_ref().and_then(|tls| tls.cipher())
    }

    /// Returns whether the TLS handshake is incomplete.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Advances the TLS handshake by one step: sends pending bytes, reads once, answers.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) if the peer violates the protocol or rejects
    /// this side, with a [`rustls::Error`] as the source; otherwise errors of reading and writing.
    pub fn advance(&self) -> io::Result<()> {
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        tls.flush(&mut self.plain())?;
        tls.advance(&mut self.plain(), &mut self.plain())
    }

    /// Returns the first four bytes received where TLS was expected.
    #[must_use]
    pub fn first_bytes(&self) -> Option<[u8; 4]> {
        self.tls.as_ref().and_then(|tls| tls.first_bytes())
    }

    /// Returns whether a read would succeed without new data from the system.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_pending())
    }

    /// Reads with at most one system call, for callers that wait for readiness themselves.
    ///
    /// # Errors
    ///
    /// As `read`, and [`WouldBlock`](io::ErrorKind::WouldBlock) if the received bytes are not a
    /// complete TLS record.
    pub fn read_some(&self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => self.plain().read(buf),
            Some(tls) => tls.read_some(buf, &mut self.plain(), &mut self.plain()),
        }
    }

    fn plain(&self) -> Plain<'_> {
        Plain(&self.stream)
    }

    /// Sets how long one read and one write may take without any progress.
    ///
    /// # Errors
    ///
    /// Errors of the system, such as for a zero duration.
    pub fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(read))?;
        self.stream.set_write_timeout(Some(write))
    }

    /// Sets how long one read may take without any progress.
    ///
    /// # Errors
    ///
    /// Errors of the system, such as for a zero duration.
    pub fn set_read_timeout(&self, read: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(read))
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    ///
    /// Fails if the socket is closed.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Ends the connection in one or both directions and wakes waiting threads. A socket that is
    /// already closed is not an error.
    pub fn shutdown(&self, how: Shutdown) {
        if let (Some(tls), Shutdown::Write) = (&self.tls, how) {
            tls.close(&mut self.plain());
        }
        let _ = self.stream.shutdown(how);
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The socket below TLS.
struct Plain<'a>(&'a TcpStream);

impl Read for Plain<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.len() < WAIT_ALL_FROM {
            return self.0.read(buf);
        }
        let (received, _) = rustix::net::recv(self.0, buf, RecvFlags::WAITALL)?;
        Ok(received)
    }
}

impl Write for Plain<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => self.plain().read(buf),
            Some(tls) => tls.read(buf, &mut self.plain(), &mut self.plain()),
        }
    }
}

impl Write for TcpSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &self.tls {
            None => self.plain().write(buf),
            Some(tls) => tls.write(buf, &mut self.plain()),
        }
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match &self.tls {
            None => self.plain().write_vectored(bufs),
            Some(tls) => match bufs.iter().find(|buf| !buf.is_empty()) {
                Some(buf) => tls.write(buf, &mut self.plain()),
                None => Ok(0),
            },
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
