//! Waiting without the interpreter, so that other threads run and Ctrl-C is seen.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_store::Cancel;
use pyo3::prelude::*;

use crate::failure::{Failure, Kind};

/// How long a wait lasts before signals are looked at: short to a human, long to a
/// machine.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// A moment until which a wait may last, if there is one.
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

    /// After a slice: raises what a signal handler raised, or that time is up.
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

/// The result of `work`, which may block as it likes: it runs on a thread of its
/// own. When Ctrl-C or the deadline comes first, `cancel` is raised, which ends the work
/// where that looks at it, and no thread waits for it.
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
            // The receiver may be gone.
            let _ = sender.send(work());
        })
        .map_err(|e| Failure::new(Kind::Other, format!("cannot start a thread: {e}")))?;
    // A receiver must not be shared while the interpreter is away; it is lent.
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
