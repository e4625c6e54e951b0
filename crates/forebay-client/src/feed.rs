//! One receiving thread with its queue: a stream from one server, or a slice of it.

use std::sync::Arc;
use std::thread;

use forebay_wire::wire;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::queue::{Queue, State};
use crate::receiver::{Receiver, connect};
use crate::sequence::{Place, Sequence};
use crate::terms::Terms;

pub(crate) struct Feed {
    pub(crate) terms: Arc<Terms>,
    pub(crate) queue: Arc<Queue>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Feed {
    /// Starts to receive from `connection`, whose stream is open at `place`.
    pub(crate) fn start(
        terms: Arc<Terms>,
        place: Place,
        connection: Connection,
        before: Option<&State>,
    ) -> Result<Feed> {
        let sequence =
            Sequence::new(&terms.info, place.0, place.1).map_err(|d| Error::Disorder {
                server: connection.server.clone(),
                what: d.what,
                expected: d.expected,
                found: d.found,
            })?;
        let queue = Queue::new(connection.server.clone(), place);
        if let Some(before) = before {
            // Counters continue across connections.
            let mut state = queue.state();
            (state.stats, state.uses) = (before.stats, before.uses.clone());
        }
        let queue = Arc::new(queue);
        queue.adopt(&connection.socket)?;
        let slots = connect(&queue, &connection, &terms)?;
        let receiver = Receiver::new(Arc::clone(&terms), Arc::clone(&queue), sequence, slots);
        let thread = thread::Builder::new()
            .name("forebay-receive".to_owned())
            .spawn(move || receiver.run(connection))
            .map_err(Error::Thread)?;
        Ok(Feed {
            terms,
            queue,
            thread: Some(thread),
        })
    }

    /// Restarts at another position over a new connection. Received batches are discarded.
    pub(crate) fn seek(&mut self, place: Place) -> Result<()> {
        self.finish();
        let terms = Arc::clone(&self.terms);
        let connection = terms.roster.try_all(|servers| {
            let servers = terms.order(servers, &[]);
            terms.dial(&servers, place, &|_| Ok(()))
        })?;
        let next = Feed::start(terms, place, connection, Some(&*self.queue.state()))?;
        *self = next;
        Ok(())
    }

    /// Stops the receiving thread.
    pub(crate) fn finish(&mut self) {
        self.queue.try_send(&wire::Close {}.into());
        self.queue.interrupt();
        if let Some(thread) = self.thread.take()
            && !self.queue.state().dialling
        {
            // The thread is ending. One that is connecting ends at its timeout and is not joined.
            let _ = thread.join();
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.finish();
    }
}
