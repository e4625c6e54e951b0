//! State that all connections of a server share: names, tokens, budgets, counters, the stop signal.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_loader::{FairShare, MachineCpu};
use forebay_wire::{Peer, Socket, wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::access::{Access, Scope};
use crate::egress::EgressLimiter;
use crate::job::Served;
use crate::link::Link;
use crate::observer::Event;
use crate::options::ServerOptions;
use crate::origin::origin;
use crate::reloadable::Change;
use crate::sharing::Budget;
use crate::snapshot::{NameTotals, OpenStream, Snapshot};
use crate::stats::{Counters, ServerStats};
use crate::telemetry::Telemetry;

/// State shared by all connections.
pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) counters: Counters,
    /// Data for the dashboard and metrics.
    pub(crate) telemetry: Telemetry,
    pub(crate) access: Access,
    pub(crate) served: BTreeMap<String, Served>,
    pub(crate) limits: Limits,
    pub(crate) connections: Connections,
    /// When the server began to stop.
    pub(crate) stopped_at: Mutex<Option<Instant>>,
    pub(crate) signal: Arc<StopSignal>,
    /// Address of the local socket for shared memory.
    pub(crate) local: Option<wire::LocalSocket>,
}

/// Budgets and bandwidth that all streams share.
pub(crate) struct Limits {
    /// Budget for batches that streams share.
    pub(crate) shared_batches: Arc<Budget>,
    /// Budget for the pipelines of all streams.
    pub(crate) total_memory: Arc<Budget>,
    /// Egress limiter for remote clients.
    pub(crate) egress: EgressLimiter,
}

/// The open connections, and what is left of those that ended.
#[derive(Default)]
pub(crate) struct Connections {
    pub(crate) open: Mutex<HashMap<u64, Arc<Link>>>,
    /// Totals of ended streams, by name. Locked together with `open`, so that each stream is counted exactly once.
    pub(crate) ended: Mutex<BTreeMap<String, NameTotals>>,
    /// Notified when a connection has ended.
    pub(crate) one_ended: Condvar,
    /// Connection that additional ones join, by join key.
    pub(crate) joins: Mutex<HashMap<Vec<u8>, u64>>,
    /// Clients that are being told that the server takes no more.
    pub(crate) refusals: AtomicUsize,
}

/// A stop signal. Its `readable` end becomes readable for every thread when [`Stopper::stop`] is called.
pub(crate) struct StopSignal {
    pub(crate) readable: UnixStream,
    pub(crate) closes: Mutex<Option<UnixStream>>,
    pub(crate) stopped: AtomicBool,
}

/// Stops a server from any thread.
#[derive(Clone)]
pub struct Stopper {
    pub(crate) signal: Arc<StopSignal>,
}

impl Stopper {
    /// Starts to stop the server: it accepts no more clients, drains batches that are being sent,
    /// and then notifies every client. Returns at once; repeated calls have no effect.
    pub fn stop(&self) {
        self.signal.stopped.store(true, Ordering::Release);
        // Closing one end makes the other permanently readable.
        drop(lock(&self.signal.closes).take());
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each map or number is changed by a single call, so it is valid after a panic elsewhere.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.telemetry.journal.note(event);
        self.options.observer.event(event);
    }

    pub(crate) fn is_job(&self, name: &str) -> bool {
        self.served
            .get(name)
            .is_some_and(|served| served.job.is_some())
    }

    /// The local socket for shared memory, if the client asked for it and is on this host.
    pub(crate) fn local_socket(
        &self,
        hello: &wire::Hello,
        socket: &Socket,
    ) -> Option<wire::LocalSocket> {
        let asks = hello.local && socket.local().is_none() && socket.is_same_host();
        self.local.clone().filter(|_| asks)
    }

    /// Creates a key with which additional connections join `link`; empty for connections on this
    /// host.
    pub(crate) fn offer_join(&self, link: &Link) -> Vec<u8> {
        let key = match forebay_wire::transport::random_bytes() {
            Ok(key) if link.socket.local().is_none() => key.to_vec(),
            _ => return Vec::new(),
        };
        lock(&self.connections.joins).insert(key.clone(), link.id);
        key
    }

    /// Adds `link` to the connections that carry batches of the connection with this key.
    pub(crate) fn join(&self, key: &[u8], link: &Link) -> Result<(), &'static str> {
        let joined = lock(&self.connections.joins).get(key).copied();
        let links = lock(&self.connections.open);
        let stream = joined.and_then(|id| links.get(&id)).map(Arc::clone);
        let lane = links.get(&link.id).map(Arc::clone);
        drop(links);
        match (stream, lane) {
            (Some(stream), Some(lane)) if stream.add_lane(&lane) => Ok(()),
            (Some(_), Some(_)) => Err("the stream has reached its limit of connections"),
            _ => Err("no stream to join: it has ended or never existed"),
        }
    }

    /// Returns whether `key` is that of this server's local socket.
    pub(crate) fn is_local_key(&self, key: &[u8]) -> bool {
        self.local.as_ref().is_some_and(|local| local.key == key)
    }

    pub(crate) fn stats(&self) -> ServerStats {
        let connections = lock(&self.connections.open).len();
        self.counters.snapshot(connections)
    }

    /// Takes a snapshot of the server.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let links = lock(&self.connections.open);
        let open: Vec<Arc<Link>> = links.values().map(Arc::clone).collect();
        let mut totals = lock(&self.connections.ended).clone();
        drop(links);
        for name in self.served.keys() {
            totals.entry(name.clone()).or_default();
        }
        for (name, failures) in self.telemetry.failures() {
            totals.entry(name).or_default().failures = failures;
        }
        let mut streams: Vec<OpenStream> = Vec::new();
        for stream in open.iter().filter_map(|link| link.stream()) {
            let of_name = totals.entry(stream.live.name.clone()).or_default();
            of_name.add(&stream.counted, &stream.reads);
            of_name.starved_s += stream.starved_s;
            streams.push(stream);
        }
        streams.sort_by_key(|stream| stream.connection);
        Snapshot {
            server: self.stats(),
            ready: !self.stopping(),
            max_connections: self.options.max_connections as u64,
            served: self
                .served
                .iter()
                .map(|(name, served)| (name.clone(), self.dataset_of(served)))
                .collect(),
            totals,
            streams,
            machine: MachineCpu::read(),
        }
    }

    /// The dataset of a job; `None` for a dataset.
    fn dataset_of(&self, job: &Served) -> Option<String> {
        job.job.as_ref()?;
        let mut datasets = self.served.iter().filter(|(_, other)| other.job.is_none());
        datasets
            .find(|(_, other)| Arc::ptr_eq(&other.source, &job.source))
            .map(|(name, _)| name.clone())
    }

    /// The share of CPU and bandwidth that all streams of one client have under a name.
    pub(crate) fn share_of(&self, name: &str, client: Peer, process: u128) -> FairShare {
        let served = self.served.get(name);
        let name = served.map_or_else(FairShare::default, |served| served.share.clone());
        client_share(&name, client, process)
    }

    pub(crate) fn served(&self, name: &str) -> Option<Served> {
        self.served.get(name).cloned()
    }

    /// Names for an error message: a limited number, and only those that the client may use.
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

    /// Returns the names that the client's token gives access to, or the reason for rejecting it.
    pub(crate) fn admit(&self, token: &str) -> Result<Scope, &'static str> {
        let (scope, change) = self.access.admit(token);
        self.tell_of(change);
        scope.map_err(|refused| {
            self.counters.count(|stats| stats.unauthorized += 1);
            refused.words()
        })
    }

    pub(crate) fn tell_of(&self, changes: impl IntoIterator<Item = Change>) {
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

    pub(crate) fn stopping(&self) -> bool {
        self.signal.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn pause(&self, time: Duration) {
        let Ok(time) = Timespec::try_from(time) else {
            return;
        };
        let signal = self.stop_signal();
        let _ = poll(&mut [PollFd::new(&signal, PollFlags::IN)], Some(&time));
    }
}

/// The share of a client. Every address has the same share of the name and every process the same
/// share of its address, regardless of their numbers of streams. A client that pretends to be many
/// processes takes from its own address only.
fn client_share(name: &FairShare, client: Peer, process: u128) -> FairShare {
    match client {
        Peer::Address(address) => name
            .part_of(&origin(address.ip()).to_string())
            .part_of(&format!("{process:x}")),
        Peer::Process(_) => name.part_of(&client.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_loader::FairQueue;

    /// Returns how many of 6,000 items each stream gets if every stream always has one waiting.
    fn served(streams: &[FairShare]) -> Vec<usize> {
        let mut queue = FairQueue::default();
        for (number, stream) in streams.iter().enumerate() {
            queue.join(stream);
            queue.push(stream, number);
        }
        let mut counts = vec![0; streams.len()];
        for _ in 0..6000 {
            let next = queue.pop(|_| 1.0).unwrap();
            counts[next] += 1;
            queue.push(&streams[next], next);
        }
        counts
    }

    #[test]
    fn processes_share_their_address_evenly() {
        let name = FairShare::default();
        let stream = |address: &str, process| {
            client_share(&name, Peer::Address(address.parse().unwrap()), process).part()
        };
        let mut streams: Vec<FairShare> = (0..60)
            .map(|port| stream(&format!("10.0.0.1:{}", 5000 + port), 7))
            .collect();
        streams.push(stream("10.0.0.1:6000", 8));
        let counts = served(&streams);
        assert_eq!(counts[60], 3000, "half of the address");
        // A client that claims a process for each stream takes nothing from another address.
        let mut streams: Vec<FairShare> = (0..60)
            .map(|process| stream("10.0.0.1:5000", process))
            .collect();
        streams.push(stream("10.0.0.2:5000", 1));
        assert_eq!(served(&streams)[60], 3000, "half of the name");
    }
}
