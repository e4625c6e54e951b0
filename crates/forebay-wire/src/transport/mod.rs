//! Transports for frames. Each is a module with its socket options; [`Socket`] is any one of them.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub mod local;
pub mod tcp;
pub mod tls;

use local::LocalSocket;
use tcp::TcpSocket;

/// A connected socket of any kind. A clone is another handle to the same socket, so that one thread
/// can read, another write, and a third shut it down.
#[derive(Debug, Clone)]
pub enum Socket {
    /// A TCP connection, with or without TLS.
    Tcp(TcpSocket),
    /// A connection to a process of the same user on the same host, with which memory can be
    /// shared.
    Local(LocalSocket),
}

/// The other side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A network address.
    Address(SocketAddr),
    /// A process on this host, by its id.
    Process(u32),
}

macro_rules! each {
    ($socket:expr, $inner:ident => $what:expr) => {
        match $socket {
            Socket::Tcp($inner) => $what,
            Socket::Local($inner) => $what,
        }
    };
}

impl Socket {
    /// Returns the other side of the connection.
    ///
    /// # Errors
    ///
    /// Fails if the socket is closed.
    pub fn peer(&self) -> io::Result<Peer> {
        Ok(match self {
            Socket::Tcp(socket) => Peer::Address(socket.peer_addr()?),
            Socket::Local(socket) => Peer::Process(socket.process()),
        })
    }

    /// Returns whether the peer is on this host, as far as the addresses show: a loopback address,
    /// or the same address as this side.
    #[must_use]
    pub fn is_same_host(&self) -> bool {
        self.tcp().is_none_or(TcpSocket::is_same_host)
    }

    /// Sets how long one read and one write may take without any progress.
    ///
    /// # Errors
    ///
    /// Errors of the system, such as for a zero duration.
    pub fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        each!(self, socket => socket.set_timeouts(read, write))
    }

    /// Sets how long one read may take without any progress.
    ///
    /// # Errors
    ///
    /// Errors of the system, such as for a zero duration.
    pub fn set_read_timeout(&self, read: Duration) -> io::Result<()> {
        each!(self, socket => socket.set_read_timeout(read))
    }

    /// Ends the connection in one or both directions and wakes waiting threads. A socket that is
    /// already closed is not an error.
    pub fn shutdown(&self, how: Shutdown) {
        each!(self, socket => socket.shutdown(how));
    }

    /// Returns the TCP socket, if it is one.
    #[must_use]
    pub fn tcp(&self) -> Option<&TcpSocket> {
        match self {
            Socket::Tcp(socket) => Some(socket),
            Socket::Local(_) => None,
        }
    }

    /// Returns whether the connection uses TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tcp().is_some_and(TcpSocket::is_tls)
    }

    /// Returns whether the TLS handshake is incomplete.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.tcp().is_some_and(TcpSocket::is_handshaking)
    }

    /// Advances the TLS handshake, as [`TcpSocket::advance`].
    ///
    /// # Errors
    ///
    /// As [`TcpSocket::advance`].
    pub fn advance(&self) -> io::Result<()> {
        self.tcp().map_or(Ok(()), TcpSocket::advance)
    }

    /// Returns the first four bytes received where TLS was expected.
    #[must_use]
    pub fn first_bytes(&self) -> Option<[u8; 4]> {
        self.tcp().and_then(TcpSocket::first_bytes)
    }

    /// Returns whether a read would succeed without new data from the system.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        self.tcp().is_some_and(TcpSocket::has_pending)
    }

    /// Reads with at most one system call, as [`TcpSocket::read_some`].
    ///
    /// # Errors
    ///
    /// As [`TcpSocket::read_some`].
    pub fn read_some(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read_some(buf),
            Socket::Local(socket) => socket.read(buf),
        }
    }

    /// Returns the local socket, if it is one.
    #[must_use]
    pub fn local(&self) -> Option<&LocalSocket> {
        match self {
            Socket::Local(socket) => Some(socket),
            Socket::Tcp(_) => None,
        }
    }

    /// Takes a descriptor that was received with bytes, on a [`LocalSocket`].
    #[must_use]
    pub fn take_file(&self) -> Option<OwnedFd> {
        self.local()?.take_file()
    }
}

impl From<TcpSocket> for Socket {
    fn from(socket: TcpSocket) -> Socket {
        Socket::Tcp(socket)
    }
}

impl From<LocalSocket> for Socket {
    fn from(socket: LocalSocket) -> Socket {
        Socket::Local(socket)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(self, socket => socket.as_fd())
    }
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        each!(self, socket => socket.read(buf))
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        each!(self, socket => socket.write(buf))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        each!(self, socket => socket.write_vectored(bufs))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Peer {
        Peer::Address(address)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => write!(f, "{address}"),
            Peer::Process(number) => write!(f, "process {number}"),
        }
    }
}

/// Returns 16 cryptographically random bytes.
///
/// # Errors
///
/// If the system has no source of randomness.
pub fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Returns random bytes as 32 hexadecimal digits.
fn random_name() -> io::Result<String> {
    Ok(random_bytes()?
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}
