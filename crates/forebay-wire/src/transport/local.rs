//! Unix sockets between processes of one user on one host, which pass file descriptors besides
//! bytes. Servers use them to share the memory of batches with clients.
//!
//! The server's address is abstract and random. It has no file, so nothing remains when the server
//! is gone, and only a client that got the address from the server, in the same network namespace,
//! can connect. Both sides check the peer's credentials and accept only their own user.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
};

/// Reads of at least this size ask the system to wait for all bytes, as TCP reads do.
const WAIT_ALL_FROM: usize = 128 << 10;
/// Maximum number of received descriptors that no message has referred to yet; each message carries
/// at most one.
const MOST_WAITING: usize = 4;
/// Prefix of all server addresses. A client connects to no other address, whatever a server claims.
const PREFIX: &str = "forebay-";

/// A connected Unix socket; a clone is another handle to the same socket.
#[derive(Debug, Clone)]
pub struct LocalSocket {
    stream: Arc<UnixStream>,
    process: u32,
    /// Descriptor to send with the next bytes that are written.
    outgoing: Arc<Mutex<Option<OwnedFd>>>,
    /// Descriptors received with bytes; `None` if this side accepts none and the system closes them.
    incoming: Option<Arc<Mutex<VecDeque<OwnedFd>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalSocket {
    /// Wraps a connected socket, whose peer must be a process of the same user. `takes_files` says
    /// whether received descriptors are kept.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` for another user's process; errors of the system.
    pub fn new(stream: UnixStream, takes_files: bool) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        let process = system::same_user(&stream)?;
        Ok(LocalSocket {
            stream: Arc::new(stream),
            process,
            outgoing: Arc::default(),
            incoming: takes_files.then(Arc::default),
        })
    }

    /// Connects to the server that listens at `name` within `timeout`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for an invalid name; errors of the system; another user's process.
    pub fn connect(name: &str, timeout: Duration) -> io::Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !name.starts_with(PREFIX) || name.len() > 100 || !name.chars().all(plain) {
            return Err(ErrorKind::InvalidInput.into());
        }
        LocalSocket::new(system::connect(name, timeout)?, true)
    }

    /// Returns the process id of the peer.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
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

    /// Ends the connection in one or both directions and wakes waiting threads. A socket that is
    /// already closed is not an error.
    pub fn shutdown(&self, how: Shutdown) {
        let _ = self.stream.shutdown(how);
    }

    /// Sends `file` with the next bytes that are written.
    pub fn attach(&self, file: OwnedFd) {
        *lock(&self.outgoing) = Some(file);
    }

    /// Takes the oldest received descriptor that no message has referred to yet.
    #[must_use]
    pub fn take_file(&self) -> Option<OwnedFd> {
        lock(self.incoming.as_ref()?).pop_front()
    }

    fn receive(
        &self,
        buf: &mut [u8],
        files: &Mutex<VecDeque<OwnedFd>>,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buf)];
        // The system closes descriptors that do not fit into the space.
        let flags = flags | system::RECEIVE;
        let received = rustix::net::recvmsg(&*self.stream, &mut parts, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                let mut files = lock(files);
                files.extend(rights);
                if files.len() > MOST_WAITING {
                    let what = "more files came than messages that speak of them";
                    return Err(io::Error::new(ErrorKind::InvalidData, what));
                }
            }
        }
        Ok(received.bytes)
    }
}

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for LocalSocket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let flags = match buf.len() {
            WAIT_ALL_FROM.. => RecvFlags::WAITALL,
            _ => RecvFlags::empty(),
        };
        match &self.incoming {
            Some(files) => self.receive(buf, files, flags),
            None => Ok(rustix::net::recv(&*self.stream, buf, flags)?.0),
        }
    }
}

impl Write for LocalSocket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let file = lock(&self.outgoing).take();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.as_ref().map(AsFd::as_fd);
        if files.is_some() {
            control.push(SendAncillaryMessage::ScmRights(files.as_slice()));
        }
        let sent = rustix::net::sendmsg(&*self.stream, bufs, &mut control, system::SEND);
        if sent.is_err() {
            // Nothing was written: the descriptor goes with the next write.
            *lock(&self.outgoing) = file;
        }
        Ok(sent?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A listener for clients of the same host and user.
#[derive(Debug)]
pub struct LocalListener {
    listener: std::os::unix::net::UnixListener,
    name: String,
}

impl LocalListener {
    /// Listens at a random address.
    ///
    /// # Errors
    ///
    /// Errors of the system; `Unsupported` without abstract addresses.
    pub fn bind() -> io::Result<Self> {
        let name = format!("{PREFIX}{}", super::random_name()?);
        let listener = system::bind(&name)?;
        listener.set_nonblocking(true)?;
        Ok(LocalListener { listener, name })
    }

    /// Returns the name of the address.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Accepts the next client; `None` if it belongs to another user or has disconnected.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if none waits; errors of the system.
    pub fn accept(&self) -> io::Result<Option<LocalSocket>> {
        let (stream, _) = self.listener.accept()?;
        Ok(LocalSocket::new(stream, false).ok())
    }
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::io::{self, ErrorKind};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::time::Duration;

    use rustix::net::sockopt::{self, Timeout};
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    };

    pub(super) const RECEIVE: RecvFlags = RecvFlags::CMSG_CLOEXEC;
    pub(super) const SEND: SendFlags = SendFlags::NOSIGNAL;

    pub(super) fn bind(name: &str) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
    }

    pub(super) fn connect(name: &str, timeout: Duration) -> io::Result<UnixStream> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
        // If a server hangs, its queue fills up and connecting blocks.
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        rustix::net::connect(&socket, &address)?;
        Ok(socket.into())
    }

    /// Returns the process id of the peer, if it belongs to the same user.
    pub(super) fn same_user(stream: &UnixStream) -> io::Result<u32> {
        let peer = sockopt::socket_peercred(stream)?;
        let (own, found) = (rustix::process::geteuid(), peer.uid);
        if own != found {
            let what = format!(
                "the other process is of user {}, this one of user {}",
                found.as_raw(),
                own.as_raw()
            );
            return Err(io::Error::new(ErrorKind::PermissionDenied, what));
        }
        Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io::{self, ErrorKind};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::time::Duration;

    use rustix::net::{RecvFlags, SendFlags};

    // No socket is ever connected here.
    pub(super) const RECEIVE: RecvFlags = RecvFlags::empty();
    pub(super) const SEND: SendFlags = SendFlags::empty();

    pub(super) fn bind(_: &str) -> io::Result<UnixListener> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(super) fn connect(_: &str, _: Duration) -> io::Result<UnixStream> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(super) fn same_user(_: &UnixStream) -> io::Result<u32> {
        Err(ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::fs::File;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn pair() -> (LocalSocket, LocalSocket) {
        let listener = LocalListener::bind().unwrap();
        let near = LocalSocket::connect(listener.name(), LONG).unwrap();
        let far = listener.accept().unwrap().unwrap();
        (near, far)
    }

    /// Counts the descriptors that this process has open for `path`. Concurrent tests open other files.
    fn open_files(path: &str) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let links = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link.as_os_str() == path).count()
    }

    #[test]
    fn descriptors_arrive_with_their_bytes_if_accepted() {
        let (mut near, mut far) = pair();
        assert_eq!(near.process(), std::process::id());
        far.write_all(b"a").unwrap();
        far.attach(File::open("/dev/zero").unwrap().into());
        far.write_all(b"b").unwrap();
        far.write_all(b"c").unwrap();
        let mut bytes = [0; 3];
        near.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"abc");
        let mut zero = File::from(near.take_file().unwrap());
        assert!(near.take_file().is_none());
        zero.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 3]);
        // Servers accept no descriptors.
        let before = open_files("/dev/zero");
        for _ in 0..20 {
            near.attach(zero.try_clone().unwrap().into());
            near.write_all(b"x").unwrap();
            far.read_exact(&mut bytes[..1]).unwrap();
        }
        assert!(far.take_file().is_none());
        assert_eq!(open_files("/dev/zero"), before);
    }

    #[test]
    fn unclaimed_descriptors_end_the_connection() {
        let (mut near, mut far) = pair();
        for _ in 0..=MOST_WAITING {
            far.attach(File::open("/dev/null").unwrap().into());
            far.write_all(b"x").unwrap();
        }
        let error = near.read_exact(&mut [0; MOST_WAITING + 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    }

    #[test]
    fn only_addresses_of_servers_are_connected_to() {
        for name in [
            "",
            "docker.sock",
            "/run/docker.sock",
            "forebay-../x",
            "forebay-\0",
            "X0",
        ] {
            let error = LocalSocket::connect(name, LONG).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?}: {error}");
        }
        let name = LocalListener::bind().unwrap().name().to_owned();
        let error = LocalSocket::connect(&name, LONG).unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::ConnectionRefused,
            "nothing is left of it"
        );
    }

    #[test]
    fn the_end_of_one_side_is_seen_by_the_other() {
        let (mut near, far) = pair();
        drop(far);
        assert_eq!(near.read(&mut [0; 8]).unwrap(), 0);
        assert!(near.write_all(b"x").is_err());
    }
}
