//! Prepares the migration of a stream to another server while the current one still serves it.
//!
//! There are two reasons: the current server announced that it stops, or the list of servers now
//! assigns the stream to another one. `queue/handover.rs` has the rules of the switch.

use std::sync::Arc;
use std::thread;

use crate::connection::dial;
use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::resolver::Server;
use crate::sequence::Sequence;
use crate::stream_config::StreamConfig;

/// Reason for a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The current server stops soon.
    Leaving,
    /// Placement may assign the stream to another server.
    Home,
}

/// Starts the search for a server, unless one is in progress.
pub(crate) fn start(why: Why, config: &Arc<StreamConfig>, queue: &Arc<Queue>, sequence: &Sequence) {
    if config.until.is_some_and(|until| sequence.epoch() >= until) {
        return;
    }
    let Some((connection, server)) = queue.begin_migration() else {
        return;
    };
    let (config, queue) = (Arc::clone(config), Arc::clone(queue));
    let search = Search {
        why,
        config,
        queue: Arc::clone(&queue),
        sequence: sequence.clone(),
        connection,
        server,
    };
    let spawned = thread::Builder::new()
        .name("forebay-migrate".to_owned())
        .spawn(move || {
            let nowhere = search.run();
            search.queue.migrated(connection, nowhere);
        });
    if spawned.is_err() {
        // As after an unsuccessful search: retried later.
        queue.migrated(connection, false);
    }
}

struct Search {
    why: Why,
    config: Arc<StreamConfig>,
    queue: Arc<Queue>,
    sequence: Sequence,
    /// The connection to be replaced, and its server.
    connection: u64,
    server: String,
}

impl Search {
    /// Searches for a server and offers the queue a connection to it. Returns true if the current
    /// server stops and no other server can take over.
    fn run(&self) -> bool {
        // The list was readable before, so try again later.
        let Ok(servers) = self.config.resolver.read() else {
            return false;
        };
        let targets = match self.why {
            Why::Leaving => {
                let mut all = self.config.order(&servers, &[]);
                all.retain(|server| server.to_string() != self.server);
                all
            }
            Why::Home => {
                let home = self.config.home(&servers);
                home.into_iter()
                    .filter(|home| home.to_string() != self.server)
                    .collect()
            }
        };
        let mut hopeless = true;
        for target in &targets {
            if self.queue.connection() != self.connection {
                return false;
            }
            match self.try_server(target) {
                Ok(()) => return false,
                Err(Error::Interrupted) => return false,
                Err(e) => {
                    hopeless &= !e.is_passing();
                    self.queue.count(|stats| stats.retries += 1);
                }
            }
        }
        // Permanent errors: reconnecting later would fail in the same way.
        self.why == Why::Leaving && hopeless
    }

    fn try_server(&self, server: &Server) -> Result<()> {
        let StreamConfig { url, options, .. } = &*self.config;
        let adopt = |socket: &_| self.queue.adopt_spare(socket);
        let one = std::slice::from_ref(server);
        // First the slow steps that do not depend on the position.
        let mut next = dial(one, url, options, &adopt, Ok)?;
        let Some(place) = self.queue.freeze(self.connection, &self.sequence) else {
            return Err(Error::Interrupted);
        };
        match self.config.reopen(&mut next, place) {
            Ok(()) => {
                self.queue.offer(self.connection, place, next);
                Ok(())
            }
            Err(e) => {
                self.queue.thaw(self.connection);
                Err(e)
            }
        }
    }
}
