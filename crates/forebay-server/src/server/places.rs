//! Admission of connections: accept, reject, remove, and drain.

use std::collections::HashMap;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use forebay_wire::{Peer, Socket};

use super::{LISTEN_STACK, MAX_REFUSALS};
use crate::connection;
use crate::link::{Ending, Link, Stop};
use crate::observer::Event;
use crate::origin::origin;
use crate::shared::{Shared, lock};

/// Fraction of the drain timeout during which clients are served while they migrate to other
/// servers.
const LEAVING: f64 = 0.75;

/// All connections, locked.
type Links<'a> = MutexGuard<'a, HashMap<u64, Arc<Link>>>;

/// The remote address that limits count; `None` for a process on this machine.
fn address(peer: Peer) -> Option<IpAddr> {
    match peer {
        Peer::Address(address) => Some(origin(address.ip())),
        Peer::Process(_) => None,
    }
}

/// Disconnects the oldest connection without a complete handshake, among those that `which`
/// selects; `false` if there is none. A handshake takes milliseconds, so silent connections cannot
/// lock out others.
fn evict(links: &mut HashMap<u64, Arc<Link>>, which: impl Fn(&Link) -> bool) -> bool {
    let silent = links
        .values()
        .filter(|link| !link.is_known() && which(link))
        .min_by_key(|link| link.id);
    let Some(silent) = silent.map(Arc::clone) else {
        return false;
    };
    silent.end(Ending::failed("was evicted before its handshake"));
    silent.socket.shutdown(std::net::Shutdown::Both);
    links.remove(&silent.id);
    true
}

impl Shared {
    /// Starts a thread for a new connection, or rejects it because of a limit.
    pub(super) fn take<'scope, 'env>(
        &'env self,
        scope: &'scope thread::Scope<'scope, 'env>,
        id: u64,
        socket: Socket,
    ) {
        let tls = self.access.tls().map(|(config, change)| {
            self.tell_of(change);
            config
        });
        // The client has disconnected already; nothing to report.
        let Ok(link) = connection::link(id, socket, tls) else {
            return;
        };
        let link = Arc::new(link);
        let refused = self.place(&link);
        let builder = thread::Builder::new()
            .name(format!("forebay-conn-{id}"))
            .stack_size(LISTEN_STACK);
        if let Err(why) = refused {
            self.counters.count(|stats| stats.refused += 1);
            if self.connections.refusals.fetch_add(1, Ordering::Relaxed) >= MAX_REFUSALS {
                self.connections.refusals.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let told = builder.spawn_scoped(scope, move || {
                let _ = catch_unwind(AssertUnwindSafe(|| connection::refuse(self, &link, why)));
                self.connections.refusals.fetch_sub(1, Ordering::Relaxed);
            });
            if told.is_err() {
                self.connections.refusals.fetch_sub(1, Ordering::Relaxed);
            }
            return;
        }
        self.counters.count(|stats| stats.accepted += 1);
        let served = Arc::clone(&link);
        let spawned = builder.spawn_scoped(scope, move || {
            let ending = catch_unwind(AssertUnwindSafe(|| connection::serve(self, &served)))
                .unwrap_or_else(|_| Ending::failed("was disconnected by a bug of the server"));
            self.forget(&served, &ending);
        });
        if let Err(e) = spawned {
            self.forget(&link, &Ending::failed(format!("got no server thread: {e}")));
        }
    }

    /// Registers a new connection, or returns the reason for rejecting it.
    fn place(&self, link: &Arc<Link>) -> Result<(), String> {
        let peer = link.peer;
        let mut links = lock(&self.connections.open);
        if let Some(ip) = address(peer)
            && let Some(most) = self.options.most_from(ip)
        {
            let same = |other: &Link| address(other.peer) == Some(ip);
            // Connections from this address without a complete handshake make room for others from
            // it.
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
            self.counters.count(|stats| stats.failed += 1);
        }
        self.tell(&Event::Closed {
            connection: link.id,
            peer: link.peer,
            why: &ending.why,
            clean: ending.clean,
            stats: &link.stats(),
        });
        link.socket.shutdown(std::net::Shutdown::Both);
        lock(&self.connections.joins).retain(|_, id| *id != link.id);
        let mut links = lock(&self.connections.open);
        links.remove(&link.id);
        if let Some(live) = link.live() {
            let mut ended = lock(&self.connections.ended);
            link.add_to(ended.entry(live.name).or_default());
        }
        drop(links);
        self.connections.one_ended.notify_all();
    }

    /// Returns the time until which batches are made after the server begins to stop; the rest of the drain timeout is for
    /// batches that are being sent.
    pub(crate) fn serves_until(&self) -> Instant {
        let time = self.options.drain_timeout.mul_f64(LEAVING);
        let stopped = *lock(&self.stopped_at).get_or_insert_with(Instant::now);
        stopped + time
    }

    /// Waits for connections to end, up to the drain timeout: first for those that can migrate to
    /// another server, then for the others, after notifying them.
    pub(super) fn drain(&self) {
        let serves_until = self.serves_until();
        let deadline = serves_until + self.options.drain_timeout.mul_f64(1.0 - LEAVING);
        let mut links = lock(&self.connections.open);
        self.tell(&Event::Stopping {
            connections: links.len(),
        });
        for link in links.values().filter(|link| !link.hands_over()) {
            link.stop(Stop::Shutdown);
        }
        links = self.wait_for_links(links, serves_until);
        for link in links.values() {
            link.stop(Stop::Shutdown);
        }
        links = self.wait_for_links(links, deadline);
        for link in links.values() {
            link.stop(Stop::Gone);
            link.socket.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Waits until no connection is left, at most until `until`.
    fn wait_for_links<'a>(&self, mut links: Links<'a>, until: Instant) -> Links<'a> {
        while !links.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            (links, _) = self
                .connections
                .one_ended
                .wait_timeout(links, left)
                .unwrap_or_else(PoisonError::into_inner);
        }
        links
    }
}
