//! Exponential backoff with jitter.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::options::ClientOptions;

/// Minimum and maximum wait between two rounds of attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Failed attempts since the last batch arrived.
pub(crate) struct Failures {
    pub(crate) since: Option<Instant>,
    pub(crate) attempts: u32,
    back_off: Duration,
}

impl Failures {
    pub(crate) const NONE: Failures = Failures {
        since: None,
        attempts: 0,
        back_off: BACK_OFF.0,
    };

    /// Returns the wait before the next attempt. The first attempt is immediate, since the
    /// connection worked until now.
    pub(crate) fn wait(&self) -> Duration {
        match self.attempts {
            0 => Duration::ZERO,
            _ => jittered(self.back_off),
        }
    }

    /// Counts an attempt.
    pub(crate) fn attempt(&mut self) {
        if self.attempts > 0 {
            self.back_off = (self.back_off * 2).min(BACK_OFF.1);
        }
        self.attempts += 1;
    }
}

/// Retries `attempt` while servers are busy, up to `busy_timeout`.
pub(crate) fn while_busy<T>(
    options: &ClientOptions,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    let (mut back_off, mut attempts) = (BACK_OFF.0, 1);
    loop {
        let busy = match attempt() {
            Err(e) if e.is_busy() && !options.busy_timeout.is_zero() => e,
            result => return result,
        };
        let wait = jittered(back_off);
        match busy {
            Error::Remote {
                server, message, ..
            } if began.elapsed() + wait > options.busy_timeout => {
                return Err(Error::Busy {
                    server,
                    waited: began.elapsed(),
                    attempts,
                    message,
                });
            }
            _ => options.wanted.pause(wait)?,
        }
        attempts += 1;
        back_off = (back_off * 2).min(BACK_OFF.1);
    }
}

/// Returns a random duration between half of `time` and `time`, so that clients that lost the same
/// server do not reconnect simultaneously.
pub(crate) fn jittered(time: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    let part = 0.5 + (random >> 11) as f64 / (1u64 << 54) as f64;
    time.mul_f64(part)
}
