//! Exponential backoff with jitter.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use crate::RemoteKind;
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

/// Retries `attempt` while servers are busy or do not run, up to `server_timeout`.
pub(crate) fn until_served<T>(
    options: &ClientOptions,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    let began = Instant::now();
    let limit = options.server_timeout;
    let (mut back_off, mut attempts) = (BACK_OFF.0, 1);
    loop {
        let failed = match attempt() {
            Err(e) if (e.is_busy() || e.is_absent()) && !limit.is_zero() => e,
            result => return result,
        };
        let wait = jittered(back_off);
        if began.elapsed() + wait > limit {
            let waited = began.elapsed();
            return Err(match failed {
                Error::Remote {
                    server,
                    message,
                    kind: RemoteKind::Busy,
                } => Error::Busy {
                    server,
                    waited,
                    attempts,
                    message,
                },
                last => Error::Absent {
                    waited,
                    attempts,
                    last: Box::new(last),
                },
            });
        }
        if attempts == 1 {
            options.notice.say(&format!("{failed}; trying again"));
        }
        options.wanted.pause(wait)?;
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
