//! Reconnects a stream that lost its server, to another server or the same one, and continues with the next batch.

use std::time::Instant;

use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::receiver::{HOLD_UP, Receiver};

impl Receiver {
    /// Reconnects and opens the stream at its position, for up to `reconnect_for`. A connection
    /// that delivers no batch does not count as a success.
    pub(crate) fn reconnect(&mut self, failed: Error, lost: &str) -> Result<Connection> {
        let lost_at = *self.lost_at.get_or_insert_with(Instant::now);
        self.queue.lost(lost_at, &failed);
        // A migration to another server may be ready at exactly this position.
        if failed.is_passing()
            && let Some(next) = self.queue.take_offer(self.sequence.place(), HOLD_UP)
            && let Ok(next) = self.take_over(next)
        {
            self.queue.count(|stats| stats.handovers += 1);
            return Ok(next);
        }
        let limit = self.config.options.reconnect_for;
        let mut last = failed;
        loop {
            let since = *self.failures.since.get_or_insert_with(Instant::now);
            if self.queue.is_interrupted() {
                return Err(Error::Interrupted);
            }
            if !last.is_passing() || limit.is_zero() {
                return Err(last);
            }
            let wait = self.failures.wait();
            if since.elapsed() + wait > limit {
                return Err(Error::GaveUp {
                    attempts: self.failures.attempts,
                    elapsed: since.elapsed(),
                    waiting_for: self.sequence.next(),
                    last: Box::new(last),
                });
            }
            if self.queue.pause(wait) {
                return Err(Error::Interrupted);
            }
            self.failures.attempt();
            match self.attempt(lost) {
                Ok(connection) => {
                    self.queue.count(|stats| stats.reconnects += 1);
                    return Ok(connection);
                }
                Err(e) => {
                    self.queue.count(|stats| stats.retries += 1);
                    self.queue.lost(lost_at, &e);
                    last = e;
                }
            }
        }
    }

    /// Tries all servers once. The lost one comes last: it may have restarted, but it may also
    /// hang.
    fn attempt(&mut self, lost: &str) -> Result<Connection> {
        let (config, queue) = (&*self.config, &self.queue);
        // The first attempt does not wait for name resolution.
        let servers = match self.failures.attempts {
            1 => config.resolver.last()?,
            _ => config.resolver.read()?,
        };
        let servers = config.order(&servers, &[lost]);
        let dialled = queue.dialling(|| {
            let adopt = |socket: &_| queue.adopt(socket);
            config.dial(&servers, self.sequence.place(), &adopt)
        });
        self.take_over(dialled?)
    }
}
