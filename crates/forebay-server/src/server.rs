//! The server: listens, keeps its limits, survives its clients, stops in order.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_shard::Dataset;
use forebay_wire::{LocalListener, Socket, TcpSocket, wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connection;
use crate::dataset::DatasetSource;
use crate::error::{Error, Result};
use crate::link::{Ending, Link, Stop};
use crate::observer::Event;
use crate::options::ServerOptions;
use crate::source::Source;
use crate::stats::{Counters, ServerStats};

/// Stack of the threads that listen to clients: they parse small messages.
const LISTEN_STACK: usize = 256 << 10;
/// Clients that are being told that there are too many, at once. What comes
/// beyond that is closed without a word.
const MAX_REFUSALS: usize = 64;
/// First and longest wait after the system refused a connection.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A server that is bound to its address.
///
/// Clients are served from [`Server::run`], [`Server::run_until`] or
/// [`Server::spawn`] on; until then they wait in the system's queue.
pub struct Server {
    listener: TcpListener,
    /// For clients on this host, if there can be shared memory with them.
    local: Option<LocalListener>,
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) counters: Counters,
    sources: BTreeMap<String, Arc<dyn Source>>,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    link_gone: Condvar,
    refusals: AtomicUsize,
    signal: Arc<StopSignal>,
    /// Where clients on this host find shared memory.
    local: Option<wire::LocalSocket>,
    /// Which connection further ones join with which key.
    joins: Mutex<HashMap<Vec<u8>, u64>>,
}

/// Readable for everybody from the moment [`Stopper::stop`] is called.
struct StopSignal {
    readable: UnixStream,
    closes: Mutex<Option<UnixStream>>,
    stopped: AtomicBool,
}

/// Stops a server from anywhere.
#[derive(Clone)]
pub struct Stopper {
    signal: Arc<StopSignal>,
}

impl Stopper {
    /// Makes the server stop: no new clients, batches that are being sent arrive,
    /// then every client is told. Returns at once; calling it again does nothing.
    pub fn stop(&self) {
        self.signal.stopped.store(true, Ordering::Release);
        // Closing one end makes the other readable, now and for ever.
        drop(lock(&self.signal.closes).take());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Maps and numbers, changed by single calls: valid after a panic elsewhere.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Binds to the address of `options`.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoopback`], [`Error::PortTaken`], [`Error::Listen`] and
    /// [`Error::Option`], as they say.
    pub fn bind(options: ServerOptions) -> Result<Server> {
        options.check()?;
        let address = options.listen;
        let refused = |source: io::Error| match source.kind() {
            ErrorKind::AddrInUse => Error::PortTaken { address },
            _ => Error::Listen { address, source },
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let (readable, closes) = UnixStream::pair().map_err(|source| Error::System {
            doing: "making a socket pair",
            source,
        })?;
        let local = listen_locally(&options);
        let shown = local.as_ref().map(|(_, shown)| shown.clone());
        Ok(Server {
            listener,
            local: local.map(|(listener, _)| listener),
            address,
            shared: Arc::new(Shared {
                options,
                counters: Counters::default(),
                sources: BTreeMap::new(),
                links: Mutex::default(),
                link_gone: Condvar::new(),
                refusals: AtomicUsize::new(0),
                signal: Arc::new(StopSignal {
                    readable,
                    closes: Mutex::new(Some(closes)),
                    stopped: AtomicBool::new(false),
                }),
                local: shown,
                joins: Mutex::default(),
            }),
        })
    }

    /// Where the server listens; the port is the real one.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves all splits of `dataset` under `name`.
    ///
    /// # Errors
    ///
    /// [`Error::Dataset`] when its shards cannot be opened, and as [`Server::add_source`].
    pub fn add_dataset(&mut self, name: &str, dataset: &Dataset) -> Result<()> {
        let source = DatasetSource::new(dataset).map_err(|source| Error::Dataset {
            name: name.to_owned(),
            source,
        })?;
        self.add_source(name, Arc::new(source))
    }

    /// Serves `source` under `name`.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for a name that does not fit into a URL, [`Error::Duplicate`].
    pub fn add_source(&mut self, name: &str, source: Arc<dyn Source>) -> Result<()> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !(1..=255).contains(&name.len()) || !name.chars().all(fits) {
            return Err(Error::Name { name: name.into() });
        }
        let shared = Arc::get_mut(&mut self.shared).expect("shared only while running");
        if shared.sources.contains_key(name) {
            return Err(Error::Duplicate { name: name.into() });
        }
        shared.sources.insert(name.to_owned(), source);
        Ok(())
    }

    /// A handle that stops this server from anywhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            signal: Arc::clone(&self.shared.signal),
        }
    }

    /// Serves on threads of its own until the handle is told to stop or dropped.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when there is no thread to be had.
    pub fn spawn(self) -> Result<ServerHandle> {
        let (address, shared, stopper) = (self.address, Arc::clone(&self.shared), self.stopper());
        let thread = thread::Builder::new()
            .name("forebay-accept".to_owned())
            .spawn(move || self.run())
            .map_err(|source| Error::System {
                doing: "starting the server's thread",
                source,
            })?;
        Ok(ServerHandle {
            address,
            shared,
            stopper,
            thread: Some(thread),
        })
    }

    /// Serves on this thread until `stop` is true, which is looked at a few times a second.
    pub fn run_until(self, stop: &AtomicBool) {
        self.serve(Some(stop));
    }

    /// Serves on this thread until a [`Stopper`] stops it.
    pub fn run(self) {
        self.serve(None);
    }

    fn serve(self, stop: Option<&AtomicBool>) {
        let shared = Arc::clone(&self.shared);
        let shared = &*shared;
        shared.tell(&Event::Listening {
            address: self.address,
        });
        thread::scope(|scope| {
            let mut next_id = 1;
            let mut back_off = BACK_OFF.0;
            while let Some(door) = self.wait(stop) {
                match self.accept(door) {
                    Ok(socket) => {
                        back_off = BACK_OFF.0;
                        if let Some(socket) = socket {
                            shared.take(scope, next_id, socket);
                            next_id += 1;
                        }
                    }
                    // Whoever knocked has left.
                    Err(e) if is_passing(&e) => {}
                    // No descriptors or no memory left: they come back when clients leave.
                    Err(error) => {
                        shared.tell(&Event::AcceptFailed {
                            error: &error,
                            retry_in: back_off,
                        });
                        shared.pause(back_off);
                        back_off = (back_off * 2).min(BACK_OFF.1);
                    }
                }
            }
            self.stopper().stop();
            // Whoever knocks now is refused by the system.
            drop((self.listener, self.local));
            shared.drain();
        });
        shared.tell(&Event::Stopped);
    }

    /// The next client; none if it is gone already, or somebody who has no business here.
    fn accept(&self, door: Door) -> io::Result<Option<Socket>> {
        Ok(match (door, &self.local) {
            (Door::Local, Some(local)) => local.accept()?.map(Socket::from),
            _ => TcpSocket::new(self.listener.accept()?.0)
                .ok()
                .map(Socket::from),
        })
    }

    /// Waits for a client; none when the server should stop.
    fn wait(&self, stop: Option<&AtomicBool>) -> Option<Door> {
        const LOOK: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        loop {
            if self.shared.stopping() || stop.is_some_and(|stop| stop.load(Ordering::Acquire)) {
                return None;
            }
            let signal = self.shared.stop_signal();
            // Without a local one the listener is watched twice.
            let local = self
                .local
                .as_ref()
                .map_or(self.listener.as_fd(), AsFd::as_fd);
            let mut fds = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&signal, PollFlags::IN),
                PollFd::new(&local, PollFlags::IN),
            ];
            // An error here can only be an interruption.
            let _ = poll(&mut fds, stop.is_some().then_some(&LOOK));
            if !fds[0].revents().is_empty() {
                return Some(Door::Tcp);
            }
            if !fds[2].revents().is_empty() {
                return Some(Door::Local);
            }
        }
    }
}

fn is_passing(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::WouldBlock
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
    )
}

/// Which of a server's sockets somebody knocks at.
#[derive(Clone, Copy)]
enum Door {
    Tcp,
    Local,
}

/// Where clients on this host will find shared memory, if the options and the system have it.
fn listen_locally(options: &ServerOptions) -> Option<(LocalListener, wire::LocalSocket)> {
    if options.shared_memory_bytes == 0 {
        return None;
    }
    let bound = LocalListener::bind().and_then(|listener| {
        let key = forebay_wire::transport::random_bytes()?;
        let shown = wire::LocalSocket {
            name: listener.name().to_owned(),
            key: key.to_vec().into(),
        };
        Ok((listener, shown))
    });
    match bound {
        Ok(bound) => Some(bound),
        Err(error) => {
            if error.kind() != ErrorKind::Unsupported {
                options.observer.event(&Event::NotLocal { error: &error });
            }
            None
        }
    }
}

impl Shared {
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.options.observer.event(event);
    }

    pub(crate) fn source(&self, name: &str) -> Option<Arc<dyn Source>> {
        self.sources.get(name).cloned()
    }

    /// Where a client that says `hello` finds shared memory, if it is on this host.
    pub(crate) fn local_socket(
        &self,
        hello: &wire::Hello,
        socket: &Socket,
    ) -> Option<wire::LocalSocket> {
        let asks = hello.local && socket.local().is_none() && socket.is_same_host();
        self.local.clone().filter(|_| asks)
    }

    /// The key with which further connections join `link`; empty where there can be none.
    pub(crate) fn offer_join(&self, link: &Link) -> Vec<u8> {
        let key = match forebay_wire::transport::random_bytes() {
            Ok(key) if link.socket.local().is_none() => key.to_vec(),
            _ => return Vec::new(),
        };
        lock(&self.joins).insert(key.clone(), link.id);
        key
    }

    /// Makes `link` one of those that carry batches of the connection with this key.
    pub(crate) fn join(&self, key: &[u8], link: &Link) -> Result<(), &'static str> {
        let joined = lock(&self.joins).get(key).copied();
        let links = lock(&self.links);
        let stream = joined.and_then(|id| links.get(&id)).map(Arc::clone);
        let lane = links.get(&link.id).map(Arc::clone);
        drop(links);
        match (stream, lane) {
            (Some(stream), Some(lane)) if stream.add_lane(&lane) => Ok(()),
            (Some(_), Some(_)) => Err("the stream has as many connections as it may have"),
            _ => Err("no stream to join: it is over, or was never there"),
        }
    }

    /// Whether `key` is that of this server's local socket.
    pub(crate) fn is_local_key(&self, key: &[u8]) -> bool {
        self.local.as_ref().is_some_and(|local| local.key == key)
    }

    /// Names for an error message, not too many.
    pub(crate) fn names(&self) -> String {
        const MOST: usize = 8;
        let mut names: Vec<&str> = self.sources.keys().map(String::as_str).take(MOST).collect();
        match self.sources.len() {
            0 => return "none".to_owned(),
            n if n > MOST => names.push("more"),
            _ => {}
        }
        names.join(", ")
    }

    pub(crate) fn stop_signal(&self) -> BorrowedFd<'_> {
        self.signal.readable.as_fd()
    }

    fn stopping(&self) -> bool {
        self.signal.stopped.load(Ordering::Acquire)
    }

    fn pause(&self, time: Duration) {
        let Ok(time) = Timespec::try_from(time) else {
            return;
        };
        let signal = self.stop_signal();
        let _ = poll(&mut [PollFd::new(&signal, PollFlags::IN)], Some(&time));
    }

    /// Gives a new connection a thread, or tells it that there are too many.
    fn take<'scope, 'env>(
        &'env self,
        scope: &'scope thread::Scope<'scope, 'env>,
        id: u64,
        socket: Socket,
    ) {
        // A client that is gone already is no news.
        let Ok(link) = connection::link(id, socket) else {
            return;
        };
        let peer = link.peer;
        let link = Arc::new(link);
        let mut links = lock(&self.links);
        let full = links.len() >= self.options.max_connections;
        if !full {
            links.insert(id, Arc::clone(&link));
        }
        drop(links);
        let builder = thread::Builder::new()
            .name(format!("forebay-conn-{id}"))
            .stack_size(LISTEN_STACK);
        if full {
            Counters::add(&self.counters.refused, 1);
            self.tell(&Event::Refused {
                peer,
                max_connections: self.options.max_connections,
            });
            if self.refusals.fetch_add(1, Ordering::Relaxed) >= MAX_REFUSALS {
                self.refusals.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let told = builder.spawn_scoped(scope, move || {
                let _ = catch_unwind(AssertUnwindSafe(|| connection::refuse(self, &link)));
                self.refusals.fetch_sub(1, Ordering::Relaxed);
            });
            if told.is_err() {
                self.refusals.fetch_sub(1, Ordering::Relaxed);
            }
            return;
        }
        Counters::add(&self.counters.accepted, 1);
        let served = Arc::clone(&link);
        let spawned = builder.spawn_scoped(scope, move || {
            let ending = catch_unwind(AssertUnwindSafe(|| connection::serve(self, &served)))
                .unwrap_or_else(|_| Ending::failed("lost its thread to a bug"));
            self.forget(&served, &ending);
        });
        if let Err(e) = spawned {
            self.forget(&link, &Ending::failed(format!("got no thread: {e}")));
        }
    }

    fn forget(&self, link: &Link, ending: &Ending) {
        if !ending.clean {
            Counters::add(&self.counters.failed, 1);
        }
        self.tell(&Event::Closed {
            connection: link.id,
            peer: link.peer,
            why: &ending.why,
            clean: ending.clean,
            stats: &link.stats(),
        });
        link.socket.shutdown(std::net::Shutdown::Both);
        lock(&self.joins).retain(|_, id| *id != link.id);
        lock(&self.links).remove(&link.id);
        self.link_gone.notify_all();
    }

    /// Lets connections finish, for as long as the options allow.
    fn drain(&self) {
        let mut links = lock(&self.links);
        self.tell(&Event::Stopping {
            connections: links.len(),
        });
        for link in links.values() {
            link.stop(Stop::Shutdown);
        }
        let deadline = Instant::now() + self.options.drain_timeout;
        while !links.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            (links, _) = self
                .link_gone
                .wait_timeout(links, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        for link in links.values() {
            link.stop(Stop::Gone);
            link.socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// A server that runs on its own threads. Dropping it stops the server and
/// waits, as [`ServerHandle::shutdown`] does.
pub struct ServerHandle {
    address: SocketAddr,
    shared: Arc<Shared>,
    stopper: Stopper,
    thread: Option<thread::JoinHandle<()>>,
}

impl ServerHandle {
    /// Where the server listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// What the server did so far.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        let connections = lock(&self.shared.links).len();
        self.shared.counters.snapshot(connections)
    }

    /// A handle that stops this server from anywhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Stops as [`Stopper::stop`] does and waits until every thread is gone.
    pub fn shutdown(mut self) -> ServerStats {
        self.finish();
        self.stats()
    }

    fn finish(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // It catches the panics of its clients; one of its own has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.finish();
    }
}
