//! TCP: blocking sockets, no delay, and reads that wait for all they asked for; with TLS, if
//! both ends agreed on it.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;

use super::tls::Session;

/// Reads of at least this size ask the system to wait until all is there, which
/// saves a wake-up for each segment; smaller ones, as for messages, take what
/// has come.
const WAIT_ALL_FROM: usize = 128 << 10;

/// A connected TCP socket; a clone is another handle to the same socket, so
/// that one thread can read while another writes and a third shuts it down.
#[derive(Debug, Clone)]
pub struct TcpSocket {
    stream: Arc<TcpStream>,
    tls: Option<Arc<Session>>,
}

impl TcpSocket {
    /// Takes over a connected stream and switches off the delay of small writes.
    /// Buffer sizes are left to the system, which tunes them to the path as long
    /// as nobody sets them.
    ///
    /// # Errors
    ///
    /// When the system refuses an option, as it does for a socket that is gone.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(TcpSocket {
            stream: Arc::new(stream),
            tls: None,
        })
    }

    /// The same socket with TLS over it, whose handshake is still to come: see [`TcpSocket::advance`].
    #[must_use]
    pub fn with_tls(self, tls: impl Into<rustls::Connection>) -> Self {
        TcpSocket {
            tls: Some(Arc::new(Session::new(tls.into()))),
            ..self
        }
    }

    /// The same socket without TLS, to say something to a peer that does not speak it.
    #[must_use]
    pub fn without_tls(&self) -> Self {
        TcpSocket {
            stream: Arc::clone(&self.stream),
            tls: None,
        }
    }

    /// Whether TLS is spoken.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Name of the cipher suite, once TLS is agreed on.
    #[must_use]
    pub fn cipher(&self) -> Option<String> {
        self.tls.as_ref().and_then(|tls| tls.cipher())
    }

    /// Whether the handshake of TLS is not done yet.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// One step of the handshake of TLS: sends what is due, reads once, answers.
    ///
    /// # Errors
    ///
    /// [`InvalidData`](io::ErrorKind::InvalidData) for what the peer did wrong, or does not like: the source is a
    /// [`rustls::Error`]; otherwise as reading and writing.
    pub fn advance(&self) -> io::Result<()> {
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        tls.flush(&mut self.plain())?;
        tls.advance(&mut self.plain(), &mut self.plain())
    }

    /// The first four bytes that came, where TLS was expected.
    #[must_use]
    pub fn first_bytes(&self) -> Option<[u8; 4]> {
        self.tls.as_ref().and_then(|tls| tls.first_bytes())
    }

    /// Whether a read returns something without the system having anything new.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_pending())
    }

    /// As `read`, but asks the system at most once, for callers that know when it has something.
    ///
    /// # Errors
    ///
    /// As `read`, and [`WouldBlock`](io::ErrorKind::WouldBlock) when what the system had is no whole record of TLS.
    pub fn read_some(&self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => self.plain().read(buf),
            Some(tls) => tls.read_some(buf, &mut self.plain(), &mut self.plain()),
        }
    }

    fn plain(&self) -> Plain<'_> {
        Plain(&self.stream)
    }

    /// Sets how long one read and one write may go without a single byte.
    ///
    /// # Errors
    ///
    /// When the system refuses, as it does for a zero duration.
    pub fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(read))?;
        self.stream.set_write_timeout(Some(write))
    }

    /// Sets how long one read may go without a single byte.
    ///
    /// # Errors
    ///
    /// When the system refuses, as it does for a zero duration.
    pub fn set_read_timeout(&self, read: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(read))
    }

    /// Address of the other end.
    ///
    /// # Errors
    ///
    /// When the socket is gone.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Ends the connection in one or both directions; whoever waits on it wakes
    /// up. A socket that is gone already is no error.
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
