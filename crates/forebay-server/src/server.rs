//! The server: listens, keeps its limits, survives its clients, stops in order.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_shard::Dataset;
use forebay_wire::{LocalListener, Peer, Socket, TcpSocket, wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::access::{Access, Scope};
use crate::connection;
use crate::dataset::DatasetSource;
use crate::error::{Error, Result};
use crate::job::{Job, JobOptions, Served};
use crate::link::{Ending, Link, Stop};
use crate::metrics::{self, Totals};
use crate::observer::Event;
use crate::options::ServerOptions;
use crate::source::Source;
use crate::stats::{Counters, ServerStats};
use crate::watched::Change;

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
    access: Access,
    served: BTreeMap<String, Served>,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    /// What streams that ended did, by name. Locked while `links` is, so that no stream is in both or in neither.
    ended: Mutex<BTreeMap<String, Totals>>,
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
        let access = Access::new(&options.tokens, options.tls.as_ref())?;
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
                access,
                counters: Counters::default(),
                served: BTreeMap::new(),
                links: Mutex::default(),
                ended: Mutex::default(),
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
        self.add(name, Served { source, job: None })
    }

    /// Lets ranks join a job by `name`: streams of a dataset that was added before, whose options are the server's.
    ///
    /// # Errors
    ///
    /// [`Error::Job`] for a dataset that is not there or options that cannot be; names as in [`Server::add_source`].
    pub fn add_job(&mut self, name: &str, options: JobOptions) -> Result<()> {
        let failed = |reason: String| Error::Job {
            name: name.to_owned(),
            reason,
        };
        let source = match self.shared.served.get(&options.dataset) {
            Some(Served { source, job: None }) => Arc::clone(source),
            _ => {
                let reason = format!("there is no dataset {:?}", options.dataset);
                return Err(failed(reason));
            }
        };
        let job = Job::new(options, source.as_ref(), &self.shared.options)
            .map_err(|failure| failed(failure.message))?;
        let job = Some(Arc::new(job));
        self.add(name, Served { source, job })
    }

    fn add(&mut self, name: &str, served: Served) -> Result<()> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if !(1..=255).contains(&name.len()) || !name.chars().all(fits) {
            return Err(Error::Name { name: name.into() });
        }
        let shared = Arc::get_mut(&mut self.shared).expect("shared only while running");
        if shared.served.contains_key(name) {
            return Err(Error::Duplicate { name: name.into() });
        }
        shared.served.insert(name.to_owned(), served);
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
                        Counters::add(&shared.counters.accept_errors, 1);
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

/// Where a client is; none for a process of this machine.
fn address(peer: Peer) -> Option<IpAddr> {
    match peer {
        Peer::Address(address) => Some(address.ip()),
        Peer::Process(_) => None,
    }
}

/// Takes its place from the connection that has been silent for longest about who it is, among those that `which` names;
/// false if all have said so. Whoever means well needs it for milliseconds, so silence cannot lock others out.
fn evict(links: &mut HashMap<u64, Arc<Link>>, which: impl Fn(&Link) -> bool) -> bool {
    let silent = links
        .values()
        .filter(|link| !link.is_known() && which(link))
        .min_by_key(|link| link.id);
    let Some(silent) = silent.map(Arc::clone) else {
        return false;
    };
    silent.end(Ending::failed("had to make room before it said who it is"));
    silent.socket.shutdown(std::net::Shutdown::Both);
    links.remove(&silent.id);
    true
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

    pub(crate) fn is_job(&self, name: &str) -> bool {
        self.served
            .get(name)
            .is_some_and(|served| served.job.is_some())
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

    fn stats(&self) -> ServerStats {
        let connections = lock(&self.links).len();
        self.counters.snapshot(connections)
    }

    /// Everything that is counted, for Prometheus.
    fn metrics(&self) -> String {
        let links = lock(&self.links);
        let open: Vec<Arc<Link>> = links.values().map(Arc::clone).collect();
        let mut totals = lock(&self.ended).clone();
        drop(links);
        for name in self.served.keys() {
            totals.entry(name.clone()).or_default();
        }
        let mut live = Vec::new();
        for link in open {
            if let Some(stream) = link.live() {
                totals
                    .entry(stream.name.clone())
                    .or_default()
                    .add(&link.stats_message());
                live.push(stream);
            }
        }
        metrics::render(&self.stats(), !self.stopping(), &totals, &live)
    }

    pub(crate) fn served(&self, name: &str) -> Option<Served> {
        self.served.get(name).cloned()
    }

    /// Names for an error message, not too many, and none that is not for the client.
    pub(crate) fn names(&self, scope: &Scope) -> String {
        const MOST: usize = 8;
        let names = self.served.keys().map(String::as_str);
        let mut names: Vec<&str> = names
            .filter(|name| scope.has(name))
            .take(MOST + 1)
            .collect();
        if names.is_empty() {
            return "none".to_owned();
        }
        if names.len() > MOST {
            names[MOST] = "more";
        }
        names.join(", ")
    }

    /// What the token that a client shows is for, or why it is not let in.
    pub(crate) fn admit(&self, token: &str) -> Result<Scope, &'static str> {
        let (scope, change) = self.access.admit(token);
        self.tell_of(change);
        scope.map_err(|refused| {
            Counters::add(&self.counters.unauthorized, 1);
            refused.words()
        })
    }

    fn tell_of(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.tell(&Event::Reloaded {
                what: change.what,
                problem: change.problem.as_deref(),
            });
        }
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
        let tls = self.access.tls().map(|(config, change)| {
            self.tell_of(change);
            config
        });
        // A client that is gone already is no news.
        let Ok(link) = connection::link(id, socket, tls) else {
            return;
        };
        let link = Arc::new(link);
        let refused = self.place(&link);
        let builder = thread::Builder::new()
            .name(format!("forebay-conn-{id}"))
            .stack_size(LISTEN_STACK);
        if let Err(why) = refused {
            Counters::add(&self.counters.refused, 1);
            if self.refusals.fetch_add(1, Ordering::Relaxed) >= MAX_REFUSALS {
                self.refusals.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let told = builder.spawn_scoped(scope, move || {
                let _ = catch_unwind(AssertUnwindSafe(|| connection::refuse(self, &link, why)));
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

    /// Takes a new connection in, or says why there is no place for it.
    fn place(&self, link: &Arc<Link>) -> Result<(), String> {
        let peer = link.peer;
        let mut links = lock(&self.links);
        if let Some(ip) = address(peer)
            && let Some(most) = self.options.most_from(ip)
        {
            let same = |other: &Link| address(other.peer) == Some(ip);
            // Those from there that have not said who they are make room for others from there.
            if links.values().filter(|other| same(other)).count() >= most
                && !evict(&mut links, same)
            {
                drop(links);
                self.tell(&Event::RefusedAddress {
                    peer,
                    max_connections: most,
                });
                return Err(format!(
                    "the server has {most} connections from {ip} already, which is the most from one address; try again later"
                ));
            }
        }
        let most = self.options.max_connections;
        if links.len() >= most && !evict(&mut links, |_| true) {
            drop(links);
            self.tell(&Event::Refused {
                peer,
                max_connections: most,
            });
            return Err(format!(
                "the server has its {most} connections already; try again later"
            ));
        }
        links.insert(link.id, Arc::clone(link));
        Ok(())
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
        let mut links = lock(&self.links);
        links.remove(&link.id);
        if let Some(live) = link.live() {
            let mut ended = lock(&self.ended);
            ended
                .entry(live.name)
                .or_default()
                .add(&link.stats_message());
        }
        drop(links);
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

/// A view of a server, for whoever watches it.
#[derive(Clone)]
pub struct Status {
    shared: Arc<Shared>,
}

impl Status {
    /// Whether the server takes new clients.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.shared.stopping()
    }

    /// As [`ServerHandle::stats`].
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Everything that is counted, in Prometheus' text format. Names and labels are those of docs/serving.md.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.shared.metrics()
    }
}

/// Makes a server read tokens and certificates again.
#[derive(Clone)]
pub struct Reloader {
    shared: Arc<Shared>,
}

impl Reloader {
    /// Reads them, which is done as well when the files change. The observer hears of what became of it.
    pub fn reload(&self) {
        self.shared.tell_of(self.shared.access.reload());
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
        self.shared.stats()
    }

    /// A view of the server for other threads.
    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            shared: Arc::clone(&self.shared),
        }
    }

    /// A handle that stops this server from anywhere.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// A handle that makes the server read its files again.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader {
            shared: Arc::clone(&self.shared),
        }
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
