//! A stream that lost its server: the next one, or the same again, at the very next batch.

use std::time::Instant;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::receiver::{HOLD_UP, Receiver};

impl Receiver {
    /// Connects again and opens the stream where it was, for as long as the
    /// options allow. A connection that brings no batch does not count as success.
    pub(crate) fn reconnect(&mut self, failed: Error, lost: &str) -> Result<Connection> {
        self.lost_at.get_or_insert_with(Instant::now);
        // Perhaps another server was about to take over in this very place.
        if failed.is_passing()
            && let Some(next) = self.queue.take_offer(self.sequence.place(), HOLD_UP)
            && let Ok(next) = self.take_over(next)
        {
            self.queue.note(|state| state.stats.handovers += 1);
            return Ok(next);
        }
        let limit = self.terms.options.reconnect_for;
        let mut last = failed;
        loop {
            let since = *self.trouble.since.get_or_insert_with(Instant::now);
            if self.queue.is_interrupted() {
                return Err(Error::Interrupted);
            }
            if !last.is_passing() || limit.is_zero() {
                return Err(last);
            }
            let wait = self.trouble.wait();
            if since.elapsed() + wait > limit {
                return Err(Error::GaveUp {
                    attempts: self.trouble.attempts,
                    elapsed: since.elapsed(),
                    waiting_for: self.sequence.next(),
                    last: Box::new(last),
                });
            }
            if self.queue.pause(wait) {
                return Err(Error::Interrupted);
            }
            self.trouble.attempt();
            match self.attempt(lost) {
                Ok(connection) => {
                    self.queue.note(|state| state.stats.reconnects += 1);
                    return Ok(connection);
                }
                Err(e) => {
                    self.queue.note(|state| state.stats.retries += 1);
                    last = e;
                }
            }
        }
    }

    /// Tries all servers once, the one that was lost after the others: it may have been started again, and it may hang.
    fn attempt(&mut self, lost: &str) -> Result<Connection> {
        let (terms, queue) = (&*self.terms, &self.queue);
        // The first time nobody waits for a name server.
        let servers = match self.trouble.attempts {
            1 => terms.roster.last()?,
            _ => terms.roster.read()?,
        };
        let servers = terms.order(&servers, &[lost]);
        queue.note(|state| state.dialling = true);
        let dialled = terms.dial(&servers, self.sequence.place(), &|socket| {
            queue.adopt(socket)
        });
        queue.note(|state| state.dialling = false);
        self.take_over(dialled?)
    }
}
