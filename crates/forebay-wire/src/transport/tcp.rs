//! TCP: blocking sockets, no delay, and reads that wait for all they asked for.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::RecvFlags;

/// Reads of at least this size ask the system to wait until all is there, which
/// saves a wake-up for each segment; smaller ones, as for messages, take what
/// has come.
const WAIT_ALL_FROM: usize = 128 << 10;

/// A connected TCP socket; a clone is another handle to the same socket, so
/// that one thread can read while another writes and a third shuts it down.
#[derive(Debug, Clone)]
pub struct TcpSocket {
    stream: Arc<TcpStream>,
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
        })
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
        let _ = self.stream.shutdown(how);
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for TcpSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.len() < WAIT_ALL_FROM {
            return (&*self.stream).read(buf);
        }
        let (received, _) = rustix::net::recv(&*self.stream, buf, RecvFlags::WAITALL)?;
        Ok(received)
    }
}

impl Write for TcpSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self.stream).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        (&*self.stream).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
