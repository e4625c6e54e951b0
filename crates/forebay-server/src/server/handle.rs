//! Handles to a running server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use crate::journal::JournalEntry;
use crate::previews::Preview;
use crate::shared::{Shared, Stopper};
use crate::snapshot::Snapshot;
use crate::stats::ServerStats;

/// Read access to a server's state, for monitoring.
#[derive(Clone)]
pub struct ServerStatus {
    shared: Arc<Shared>,
}

impl ServerStatus {
    /// Returns whether the server accepts new clients.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.shared.stopping()
    }

    /// Returns the server's counters, as [`ServerHandle::stats`].
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Takes a snapshot of the server.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Returns the last events, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<JournalEntry> {
        self.shared.telemetry.journal.read()
    }

    /// Returns the last previews of a name that is served, and requests new ones.
    #[must_use]
    pub fn previews(&self, name: &str) -> Option<Arc<Preview>> {
        self.shared.telemetry.previews.ask(name)
    }

    /// Returns whether a dataset or job has this name.
    #[must_use]
    pub fn serves(&self, name: &str) -> bool {
        self.shared.served.contains_key(name)
    }

    /// Maximum image size to decode.
    #[must_use]
    pub fn image_limits(&self) -> forebay_image::Limits {
        self.shared.options.image_limits
    }
}

/// Makes a server read tokens and certificates again.
#[derive(Clone)]
pub struct Reloader {
    shared: Arc<Shared>,
}

impl Reloader {
    /// Reads tokens and certificates again; this also happens when the files change. The observer
    /// receives the result.
    pub fn reload(&self) {
        self.shared.tell_of(self.shared.access.reload());
    }
}

/// A server that runs on its own threads. Dropping it stops the server and waits, as
/// [`ServerHandle::shutdown`].
pub struct ServerHandle {
    pub(super) address: SocketAddr,
    pub(super) shared: Arc<Shared>,
    pub(super) stopper: Stopper,
    pub(super) thread: Option<thread::JoinHandle<()>>,
}

impl ServerHandle {
    /// The bound address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the server's counters.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Returns a view of the server for other threads.
    #[must_use]
    pub fn status(&self) -> ServerStatus {
        ServerStatus {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Returns a handle that stops this server from any thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Returns a handle that makes the server read its files again.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Stops as [`Stopper::stop`] and waits until every thread has ended.
    pub fn shutdown(mut self) -> ServerStats {
        self.finish();
        self.stats()
    }

    fn finish(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // The thread catches panics of client connections; its own has been printed.
            let _ = thread.join();
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.finish();
    }
}
