//! Holds on a running server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use super::{Shared, Stopper};
use crate::metrics;
use crate::stats::ServerStats;
use crate::surroundings::Surroundings;
use crate::survey::Survey;
use crate::witness::Witness;

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
        metrics::render(&self.survey(), &Surroundings::look(None))
    }

    /// Everything that is known of the server at this moment.
    pub(crate) fn survey(&self) -> Survey {
        self.shared.survey()
    }

    /// What is kept for those who watch.
    pub(crate) fn witness(&self) -> &Witness {
        &self.shared.witness
    }

    /// Whether there is a dataset or job of this name.
    pub(crate) fn serves(&self, name: &str) -> bool {
        self.shared.served.contains_key(name)
    }

    /// Largest image that is decoded.
    pub(crate) fn image_limits(&self) -> forebay_image::Limits {
        self.shared.options.image_limits
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
    pub(super) address: SocketAddr,
    pub(super) shared: Arc<Shared>,
    pub(super) stopper: Stopper,
    pub(super) thread: Option<thread::JoinHandle<()>>,
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
