//! Waits between attempts: longer each time, and not the same for all clients.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::options::ClientOptions;

/// First and longest wait between two rounds of attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Failed attempts since the last batch arrived.
pub(crate) struct Trouble {
    pub(crate) since: Option<Instant>,
    pub(crate) attempts: u32,
    back_off: Duration,
}

impl Trouble {
    pub(crate) const NONE: Trouble = Trouble {
        since: None,
        attempts: 0,
        back_off: BACK_OFF.0,
    };

    /// The wait before the next attempt. The first one comes at once: a batch came over the connection before.
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

/// Tries again while servers are busy, for as long as the options allow.
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

/// Between half of `time` and all of it, so that clients that lost one server
/// do not come back all at once.
pub(crate) fn jittered(time: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    let part = 0.5 + (random >> 11) as f64 / (1u64 << 54) as f64;
    time.mul_f64(part)
}
