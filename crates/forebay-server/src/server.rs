//! The server: accepts connections, enforces limits, isolates failures of clients, and drains connections when it stops.

mod handle;
mod places;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forebay_loader::{FairShare, Mix};
use forebay_options::StreamInfo;
use forebay_shard::Dataset;
use forebay_wire::{LocalListener, Socket, TcpSocket, wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::access::Access;
use crate::dataset::DatasetSource;
use crate::egress::EgressLimiter;
use crate::error::{Error, Result};
use crate::job::{Job, JobOptions, Served};
use crate::memory::Bounded;
use crate::observer::Event;
use crate::options::ServerOptions;
use crate::shared::{Connections, Limits, Shared, StopSignal, Stopper};
use crate::sharing::{Budget, Sharing};
use crate::source::StreamSource;
use crate::stats::Counters;
use crate::telemetry::Telemetry;
pub use handle::{Reloader, ServerHandle, ServerStatus};

/// Stack size of receiving threads, which parse small messages only.
const LISTEN_STACK: usize = 256 << 10;
/// Maximum number of concurrent rejections that send an error message. Connections beyond it are
/// closed without one.
const MAX_REFUSALS: usize = 64;
/// Minimum and maximum backoff after the system failed to accept a connection.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A server that is bound to its address.
///
/// It serves clients once [`Server::run`], [`Server::run_until`] or [`Server::spawn`] is called;
/// until then they wait in the listen queue.
pub struct Server {
    listener: TcpListener,
    /// For clients on this host, if shared memory is available.
    local: Option<LocalListener>,
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Server {
    /// Binds to the address of `options`.
    ///
    /// # Errors
    ///
    /// [`Error::NotLoopback`], [`Error::PortTaken`], [`Error::Listen`] and [`Error::Option`].
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
                limits: Limits {
                    shared_batches: Arc::new(Budget::new(options.shared_batches_bytes)),
                    total_memory: Arc::new(Budget::new(options.total_memory())),
                    egress: EgressLimiter::new(options.bandwidth),
                },
                connections: Connections::default(),
                options,
                access,
                counters: Counters::default(),
                telemetry: Telemetry::default(),
                served: BTreeMap::new(),
                stopped_at: Mutex::default(),
                signal: Arc::new(StopSignal {
                    readable,
                    closes: Mutex::new(Some(closes)),
                    stopped: AtomicBool::new(false),
                }),
                local: shown,
            }),
        })
    }

    /// The bound address, with the actual port.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves all splits of `dataset` under `name`.
    ///
    /// # Errors
    ///
    /// [`Error::Dataset`] if its shards cannot be opened; otherwise as [`Server::add_source`].
    pub fn add_dataset(&mut self, name: &str, dataset: &Dataset) -> Result<()> {
        let source = DatasetSource::new(dataset).map_err(|source| Error::Dataset {
            name: name.to_owned(),
            source,
        })?;
        self.add_records(name, source)
    }

    /// Serves mixes of `datasets` under `name`, each of another split, as
    /// [`Mix::of_datasets`] returns them.
    ///
    /// # Errors
    ///
    /// As [`Server::add_source`].
    pub fn add_mix(&mut self, name: &str, datasets: &[Dataset], mixes: Vec<Mix>) -> Result<()> {
        self.add_records(name, DatasetSource::mixed(datasets, mixes))
    }

    fn add_records(&mut self, name: &str, source: DatasetSource) -> Result<()> {
        let memory = Arc::clone(&self.shared.limits.total_memory);
        let bounded = Bounded::new(Arc::new(source), memory);
        let budget = Arc::clone(&self.shared.limits.shared_batches);
        self.add_source(name, Arc::new(Sharing::new(Arc::new(bounded), budget)))
    }

    /// Serves `source` under `name`.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] for a name that is not valid in a URL, [`Error::Duplicate`].
    pub fn add_source(&mut self, name: &str, source: Arc<dyn StreamSource>) -> Result<()> {
        let share = FairShare::default();
        self.add(
            name,
            Served {
                source,
                job: None,
                share,
            },
        )
    }

    /// Returns the stream of a job's first rank, with all options and derived values; `None` for an unknown name. If the job
    /// does not fix the world size, it is 1 here.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<StreamInfo> {
        let served = self.shared.served.get(name)?;
        Some(served.job.as_ref()?.info.clone())
    }

    /// Sets the weight of all streams of a dataset or job together, relative to other names, for
    /// CPU and [`bandwidth`](ServerOptions::bandwidth). The default is 1. Weights have an effect
    /// only under contention.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for an unknown name or a weight that is not positive.
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
            Some(served) => served.share = FairShare::new(weight),
            None => return Err(wrong("a name that is served", name.to_owned())),
        }
        Ok(())
    }

    /// Adds a job that ranks join by `name`: streams of a dataset that was added before, with
    /// options that the server defines.
    ///
    /// # Errors
    ///
    /// [`Error::Job`] for an unknown dataset or invalid options; names as in
    /// [`Server::add_source`].
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
        let share = FairShare::default();
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

    /// Returns a handle that stops this server from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            signal: Arc::clone(&self.shared.signal),
        }
    }

    /// Serves on threads of its own until the handle is stopped or dropped.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if no thread can be started.
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

    /// Serves on this thread until `stop` is true; it is polled a few times a second.
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
                    // The client disconnected before it was accepted.
                    Err(e) if is_passing(&e) => {}
                    // Out of file descriptors or memory: retry once clients leave.
                    Err(error) => {
                        shared.counters.count(|stats| stats.accept_errors += 1);
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
            // From here on the system refuses new connections.
            drop((self.listener, self.local));
            shared.drain();
        });
        shared.tell(&Event::Stopped);
    }

    /// Accepts the next client; `None` if it has disconnected, or may not use this socket.
    fn accept(&self, door: Door) -> io::Result<Option<Socket>> {
        Ok(match (door, &self.local) {
            (Door::Local, Some(local)) => local.accept()?.map(Socket::from),
            _ => TcpSocket::new(self.listener.accept()?.0)
                .ok()
                .map(Socket::from),
        })
    }

    /// Waits for a client; `None` if the server should stop.
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
            // Without a local listener the TCP listener is polled twice.
            let local = self
                .local
                .as_ref()
                .map_or(self.listener.as_fd(), AsFd::as_fd);
            let mut fds = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&signal, PollFlags::IN),
                PollFd::new(&local, PollFlags::IN),
            ];
            // The only possible error is an interruption.
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

/// The listening socket that has a pending connection.
#[derive(Clone, Copy)]
enum Door {
    Tcp,
    Local,
}

/// Opens the local socket for shared memory, if the options and the system allow it.
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
