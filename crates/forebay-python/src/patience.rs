//! Waiting without the interpreter, so that other threads run and Ctrl-C is seen.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_store::Cancel;
use pyo3::prelude::*;

use crate::failure::{Failure, Kind};

/// Interval of checks for signals during a wait: short for a user, long for a machine.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// The end of a wait, if it has one.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    from: Instant,
    allowed: Option<Duration>,
}

impl Deadline {
    pub(crate) fn after(allowed: Option<Duration>) -> Deadline {
        Deadline {
            from: Instant::now(),
            allowed,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.allowed
            .is_some_and(|allowed| self.from.elapsed() >= allowed)
    }

    /// Checks after each slice of a wait: raises the exception of a signal handler, or a timeout.
    pub(crate) fn check(&self, py: Python<'_>, waits_for: impl FnOnce() -> String) -> PyResult<()> {
        py.check_signals()?;
        match self.allowed {
            Some(allowed) if self.from.elapsed() >= allowed => {
                let seconds = allowed.as_secs_f64();
                let message = format!("waited {seconds} s for {}", waits_for());
                Err(Failure::new(Kind::Timeout, message).into())
            }
            _ => Ok(()),
        }
    }
}

/// Returns the result of `work`, which runs on its own thread and may block. If Ctrl-C or the deadline comes first, raises
/// `cancel`, which ends the work where it checks the flag, and does not wait for the thread.
pub(crate) fn patiently<T: Send + 'static>(
    py: Python<'_>,
    deadline: Deadline,
    waits_for: impl Fn() -> String,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    std::thread::Builder::new()
        .name("forebay-open".into())
        .spawn(move || {
            // The receiver no longer exists if the caller has stopped waiting.
            let _ = sender.send(work());
        })
        .map_err(|e| Failure::new(Kind::Other, format!("cannot start a thread: {e}")))?;
    // A `Receiver` is not `Sync`, so it is moved into `detach` and back.
    let mut receiver = Some(receiver);
    loop {
        let lent = receiver.take();
        let (answer, back) = py.detach(move || {
            let answer = lent.as_ref().map(|receiver| receiver.recv_timeout(SLICE));
            (answer, lent)
        });
        receiver = back;
        match answer {
            Some(Ok(result)) => return Ok(result?),
            Some(Err(RecvTimeoutError::Timeout)) => deadline
                .check(py, &waits_for)
                .inspect_err(|_| cancel.cancel())?,
            Some(Err(RecvTimeoutError::Disconnected)) | None => {
                let message = format!("a thread died: it was to give {}", waits_for());
                return Err(Failure::new(Kind::Other, message).into());
            }
        }
    }
}
