//! Looks for the next server of a stream while the present one still serves it.
//!
//! There are two reasons: the server says that it will stop, or another one is the stream's own, as the list of servers
//! is now. How the stream goes over is the queue's, see `queue/handover.rs`.

use std::sync::Arc;
use std::thread;

use crate::connection::dial;
use crate::error::{Error, Result};
use crate::queue::Queue;
use crate::roster::Server;
use crate::sequence::Sequence;
use crate::terms::Terms;

/// Why a stream should come from another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The present one stops soon.
    Leaving,
    /// The present one may not be where the stream belongs.
    Home,
}

/// Starts looking, unless somebody does already.
pub(crate) fn start(why: Why, terms: &Arc<Terms>, queue: &Arc<Queue>, sequence: &Sequence) {
    if terms.until.is_some_and(|until| sequence.epoch >= until) {
        return;
    }
    let Some((connection, server)) = queue.begin_move() else {
        return;
    };
    let (terms, queue) = (Arc::clone(terms), Arc::clone(queue));
    let search = Search {
        why,
        terms,
        queue: Arc::clone(&queue),
        sequence: sequence.clone(),
        connection,
        server,
    };
    let spawned = thread::Builder::new()
        .name("forebay-move".to_owned())
        .spawn(move || {
            let nowhere = search.run();
            search.queue.moved(connection, nowhere);
        });
    if spawned.is_err() {
        // As if nobody had been found: it is tried again.
        queue.moved(connection, false);
    }
}

struct Search {
    why: Why,
    terms: Arc<Terms>,
    queue: Arc<Queue>,
    sequence: Sequence,
    /// The connection that is to be replaced, and its server.
    connection: u64,
    server: String,
}

impl Search {
    /// Offers the queue a connection if there is one; true when the server stops and no other will do.
    fn run(&self) -> bool {
        // What cannot be read now was read before.
        let Ok(servers) = self.terms.roster.read() else {
            return false;
        };
        let targets = match self.why {
            Why::Leaving => {
                let mut all = self.terms.order(&servers, &[]);
                all.retain(|server| server.to_string() != self.server);
                all
            }
            Why::Home => {
                let home = self.terms.home(&servers);
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
                    self.queue.note(|state| state.stats.retries += 1);
                }
            }
        }
        // Whoever stays would learn no more than who connects again.
        self.why == Why::Leaving && hopeless
    }

    fn try_server(&self, server: &Server) -> Result<()> {
        let Terms { url, options, .. } = &*self.terms;
        let adopt = |socket: &_| self.queue.adopt_spare(socket);
        let one = std::slice::from_ref(server);
        // First everything that takes time and does not need a place.
        let mut next = dial(one, url, options, &adopt, Ok)?;
        let Some(place) = self.queue.freeze(self.connection, &self.sequence) else {
            return Err(Error::Interrupted);
        };
        match self.terms.reopen(&mut next, place) {
            Ok(()) => {
                self.queue.offer(self.connection, next);
                Ok(())
            }
            Err(e) => {
                self.queue.thaw(self.connection);
                Err(e)
            }
        }
    }
}
