//! Handles Ctrl-C. A command that changes nothing ends at once. A command that has something to finish calls
//! [`Interrupt::answer`]: the first signal then requests a clean stop, and the second one ends the process at once.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::{pipe, unregister};

/// Listens for SIGINT and SIGTERM while it lives.
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    /// Whether the next signal ends the process.
    at_once: Arc<AtomicBool>,
    /// Readable once a signal has arrived.
    listening: Option<UnixStream>,
    ids: Vec<SigId>,
}

impl Interrupt {
    /// Starts listening. If signals cannot be caught, Ctrl-C keeps its usual meaning.
    pub(crate) fn listen() -> Self {
        let asked = Arc::new(AtomicBool::new(false));
        let at_once = Arc::new(AtomicBool::new(true));
        let (listening, tells) = match UnixStream::pair() {
            Ok((listening, tells)) => (Some(listening), Some(tells)),
            Err(_) => (None, None),
        };
        let mut ids = Vec::new();
        for (signal, code) in [(SIGINT, 130), (SIGTERM, 143)] {
            // Handlers run in this order: the exit depends on the flag from before this signal.
            ids.extend(flag::register_conditional_shutdown(
                signal,
                code,
                Arc::clone(&at_once),
            ));
            ids.extend(flag::register(signal, Arc::clone(&at_once)));
            ids.extend(flag::register(signal, Arc::clone(&asked)));
            if let Some(tells) = tells.as_ref().and_then(|tells| tells.try_clone().ok()) {
                ids.extend(pipe::register(signal, tells));
            }
        }
        Self {
            asked,
            at_once,
            listening,
            ids,
        }
    }

    /// Creates an interrupt without signals, for a program that sets `asked` itself.
    pub(crate) fn of_flag(asked: Arc<AtomicBool>) -> Self {
        Self {
            asked,
            at_once: Arc::default(),
            listening: None,
            ids: Vec::new(),
        }
    }

    /// Makes the first signal set the flag only. From here on, the command checks the flag.
    pub fn answer(&self) -> &Self {
        self.at_once.store(false, Ordering::SeqCst);
        self
    }

    /// Returns the flag, for library calls that check it themselves.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.asked)
    }

    /// Returns whether a stop was requested.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Waits for `time`, or until a stop is requested. Returns whether it is.
    pub(crate) fn wait_for(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.is_asked() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            match self.listening.as_ref() {
                // The signal handler writes a byte.
                Some(mut listening) if listening.set_read_timeout(Some(left)).is_ok() => {
                    let _ = listening.read(&mut [0]);
                }
                _ => std::thread::sleep(left.min(Duration::from_millis(50))),
            }
        }
        self.is_asked()
    }

    /// Waits until a stop is requested.
    pub(crate) fn wait(&self) {
        let Some(mut listening) = self.listening.as_ref() else {
            // There is nothing to wait on, so the next signal must end the process.
            self.at_once.store(true, Ordering::SeqCst);
            while !self.wait_for(Duration::from_secs(60)) {}
            return;
        };
        let mut byte = [0];
        while !self.is_asked() {
            // The signal handler writes a byte. If the signal interrupts the read, the loop checks the flag again.
            let _ = listening.read(&mut byte);
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            unregister(id);
        }
    }
}
