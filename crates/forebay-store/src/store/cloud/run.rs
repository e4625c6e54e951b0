//! The retry loop of one operation, and its final error.

use super::adaptive_limiter::{LONGEST_LIMIT, LONGEST_PAUSE};
use super::exchange_log::{EXCHANGE_LOG, ExchangeLog};
use super::fault::{Fault, Outcome, RetryClass, RetryPolicy, judge};
use super::{Live, Operation, SLOWEST, Try, random};
use crate::Error;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Live {
    /// Runs `once` until it succeeds, its failure is permanent, or the limits of [`Retry`](crate::Retry) are reached.
    pub(super) async fn run<T, Once>(
        &self,
        operation: &Operation,
        mut once: impl FnMut(Try) -> Once,
    ) -> std::result::Result<T, Failed>
    where
        Once: Future<Output = std::result::Result<T, Fault>>,
    {
        let open = &self.0;
        let started = Instant::now();
        let allowance = open.timeout + Duration::from_secs(operation.bytes / SLOWEST);
        let mut number = 0;
        let mut paused = Duration::ZERO;
        loop {
            let turn = open.pace.enter(&mut paused).await;
            number += 1;
            let billed = [&open.billed, open.pace.billed()].map(Arc::clone);
            let notes = Arc::new(ExchangeLog::new(billed));
            let one = EXCHANGE_LOG.scope(Arc::clone(&notes), once(Try(number)));
            let outcome = self.bounded(operation, allowance, one).await;
            drop(turn);
            let seen = notes.seen();
            if !seen.invalid_names.is_empty() {
                let mut known = open.invalid_names.lock().unwrap_or_else(|e| e.into_inner());
                known.extend(seen.invalid_names.iter().cloned());
            }
            let fault = match outcome {
                Ok(_) if seen.refuted > 0 => {
                    Fault::BadBytes("the store received other bytes than were sent".to_owned())
                }
                Ok(value) => {
                    open.pace.succeeded();
                    return Ok(value);
                }
                Err(fault) => fault,
            };
            if seen.status.is_some() {
                open.pace.answered();
            } else {
                open.pace.unanswered();
            }
            let verdict = judge(fault, &seen);
            let longest = match seen.status {
                Some(429) => LONGEST_LIMIT,
                _ => LONGEST_PAUSE,
            };
            let pause = seen.retry_after.map(|pause| pause.min(longest));
            if verdict.again == RetryPolicy::Slower {
                open.pace.slow_down(pause);
            }
            // Pauses that the store asked for do not count.
            let elapsed = started.elapsed().saturating_sub(paused.min(LONGEST_LIMIT));
            let patience = if open.pace.contacted() {
                open.retry.give_up_after
            } else {
                open.retry.give_up_after / 10
            };
            let more = match verdict.again {
                RetryPolicy::Never => false,
                RetryPolicy::Spare(most) => number < most && open.pace.can_spare_retry(),
                RetryPolicy::Some(most) => number < most,
                RetryPolicy::Yes | RetryPolicy::Slower => true,
            };
            let wait = if more && number < open.retry.max_attempts {
                Some(self.wait_before(number + 1) + open.pace.retry())
            } else {
                None
            };
            match wait {
                Some(wait) if elapsed + wait <= patience => {
                    open.pace.repeats();
                    open.counters.retries.fetch_add(1, Ordering::Relaxed);
                    // The limiter sends no request before the end of the pause that the store asked for.
                    let coming = wait.max(pause.unwrap_or_default());
                    if elapsed + coming > open.retry.say_after && open.pace.may_say() {
                        let left = patience.saturating_sub(elapsed);
                        crate::waits::say(&verdict.what.waits_for(operation, number, left, pause));
                    }
                    tokio::time::sleep(wait).await;
                }
                _ => {
                    if matches!(verdict.what, Outcome::Failed { .. } | Outcome::Damaged(_)) {
                        open.pace.gave_up();
                    }
                    return Err(Failed {
                        verdict,
                        attempts: number,
                        elapsed: started.elapsed(),
                    });
                }
            }
        }
    }

    /// Runs one try with a timeout of `allowance`. A try without a response for long is reported to the observer.
    async fn bounded<T>(
        &self,
        operation: &Operation,
        allowance: Duration,
        one: impl Future<Output = std::result::Result<T, Fault>>,
    ) -> std::result::Result<T, Fault> {
        let open = &self.0;
        tokio::pin!(one);
        let mut rest = allowance;
        // A request that transfers many bytes may take longer before it is reported.
        let quiet = (open.retry.say_after + (allowance - open.timeout)).min(allowance);
        if quiet < allowance {
            if let Ok(outcome) = tokio::time::timeout(quiet, &mut one).await {
                return outcome;
            }
            rest -= quiet;
            if open.pace.may_say() {
                let (op, object) = (operation.op, &operation.object);
                crate::waits::say(&format!(
                    "waiting to {op} {object}: no answer for {:.0} s; the request is given up after {:.0} s",
                    quiet.as_secs_f64(),
                    allowance.as_secs_f64()
                ));
            }
        }
        match tokio::time::timeout(rest, one).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::TimedOut(allowance)),
        }
    }

    /// A random wait up to a bound that doubles with each try (exponential backoff with full jitter, so that clients that
    /// failed together do not retry together).
    pub(super) fn wait_before(&self, number: u32) -> Duration {
        let retry = &self.0.retry;
        let most = retry
            .first_wait
            .saturating_mul(1 << (number.saturating_sub(2)).min(16))
            .min(retry.max_wait);
        most.mul_f64((random() >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// An operation that failed after all retries.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) verdict: RetryClass,
    attempts: u32,
    elapsed: Duration,
}

impl Failed {
    /// The error for the user.
    pub(super) fn into_error(self, operation: &Operation) -> Error {
        let object = operation.object.clone();
        match self.verdict.what {
            Outcome::Known(error) => error,
            Outcome::Damaged(damage) => Error::Checksum {
                object,
                what: damage.what,
                expected: damage.expected,
                found: damage.found,
            },
            Outcome::BeyondEnd => Error::Changed {
                object,
                why: "it is shorter than it was".to_owned(),
            },
            Outcome::NotFound => Error::NotFound {
                object,
                op: operation.op,
            },
            Outcome::AlreadyThere => Error::AlreadyThere { object },
            Outcome::Condition => Error::Changed {
                object,
                why: "the object was replaced".to_owned(),
            },
            Outcome::Failed { kind, why, hint } => Error::Request {
                object,
                op: operation.op,
                kind,
                why,
                attempts: self.attempts,
                elapsed: self.elapsed,
                hint,
            },
        }
    }
}
