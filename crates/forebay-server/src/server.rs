//! The server: listens, keeps its limits, survives its clients, stops in order.

mod handle;
mod places;
mod shared;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_loader::Share;
use forebay_options::StreamInfo;
use forebay_shard::Dataset;
use forebay_wire::{LocalListener, Socket, TcpSocket, wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::access::Access;
use crate::dataset::DatasetSource;
use crate::error::{Error, Result};
use crate::job::{Job, JobOptions, Served};
use crate::link::Link;
use crate::memory::Bounded;
use crate::observer::Event;
use crate::options::ServerOptions;
use crate::outgoing::Outgoing;
use crate::sharing::{Budget, Sharing};
use crate::source::Source;
use crate::stats::Counters;
use crate::survey::Totals;
use crate::witness::Witness;
pub use handle::{Reloader, ServerHandle, Status};

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
    /// For those who watch.
    pub(crate) witness: Witness,
    access: Access,
    served: BTreeMap<String, Served>,
    /// For what streams of datasets have in common.
    shared_batches: Arc<Budget>,
    /// What the pipelines of all streams may hold.
    total_memory: Arc<Budget>,
    /// The line to clients elsewhere.
    pub(crate) outgoing: Outgoing,
    links: Mutex<HashMap<u64, Arc<Link>>>,
    /// What streams that ended did, by name. Locked while `links` is, so that no stream is in both or in neither.
    ended: Mutex<BTreeMap<String, Totals>>,
    link_gone: Condvar,
    /// When the server began to stop.
    stopped_at: Mutex<Option<Instant>>,
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
                shared_batches: Arc::new(Budget::new(options.shared_batches_bytes)),
                total_memory: Arc::new(Budget::new(options.total_memory())),
                outgoing: Outgoing::new(options.bandwidth),
                options,
                access,
                counters: Counters::default(),
                witness: Witness::default(),
                served: BTreeMap::new(),
                links: Mutex::default(),
                ended: Mutex::default(),
                link_gone: Condvar::new(),
                stopped_at: Mutex::default(),
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
        let memory = Arc::clone(&self.shared.total_memory);
        let bounded = Bounded::new(Arc::new(source), memory);
        let budget = Arc::clone(&self.shared.shared_batches);
        self.add_source(name, Arc::new(Sharing::new(Arc::new(bounded), budget)))
    }

    /// Serves `source` under `name`.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for a name that does not fit into a URL, [`Error::Duplicate`].
    pub fn add_source(&mut self, name: &str, source: Arc<dyn Source>) -> Result<()> {
        let share = Share::default();
        self.add(
            name,
            Served {
                source,
                job: None,
                share,
            },
        )
    }

    /// What the first rank of a job is told when it opens its stream: all options and what follows from them; `None` for
    /// another name. Where the job leaves the world size open, it is 1 here.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<StreamInfo> {
        let served = self.shared.served.get(name)?;
        Some(served.job.as_ref()?.info.clone())
    }

    /// Gives all streams of a dataset or job together this weight beside those of other names, of the cores and of
    /// [`bandwidth`](ServerOptions::bandwidth); 1 where nothing is said. Matters while there is too little of either.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for a name that was not added, or a weight that is not positive.
    pub fn set_weight(&mut self, name: &str, weight: f64) -> Result<()> {
        let wrong = |expected, found: String| Error::Option {
            name: "weight",
            expected,
            found,
        };
        if !(weight.is_finite() && weight > 0.0) {
            return Err(wrong("a number above 0", weight.to_string()));
        }
        let shared = Arc::get_mut(&mut self.shared).expect("shared only while running");
        match shared.served.get_mut(name) {
            Some(served) => served.share = Share::new(weight),
            None => return Err(wrong("a name that is served", name.to_owned())),
        }
        Ok(())
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
            Some(Served {
                source, job: None, ..
            }) => Arc::clone(source),
            _ => {
                let reason = format!("there is no dataset {:?}", options.dataset);
                return Err(failed(reason));
            }
        };
        let job = Job::new(options, source.as_ref(), &self.shared.options)
            .map_err(|failure| failed(failure.message))?;
        let job = Some(Arc::new(job));
        let share = Share::default();
        self.add(name, Served { source, job, share })
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
