//! Ctrl-C. The first asks for a clean stop, which the command answers as soon as it can; the
//! second ends the process at once.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::{pipe, unregister};

/// Listens for SIGINT and SIGTERM while it lives.
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    /// Readable once a signal has come.
    listening: Option<UnixStream>,
    ids: Vec<SigId>,
}

impl Interrupt {
    /// Starts listening. Where signals cannot be caught, Ctrl-C keeps its usual meaning.
    pub(crate) fn listen() -> Self {
        let asked = Arc::new(AtomicBool::new(false));
        let mut ids = Vec::new();
        for (signal, code) in [(SIGINT, 130), (SIGTERM, 143)] {
            // In this order: the exit is only armed once the flag has been set by a first signal.
            ids.extend(flag::register_conditional_shutdown(
                signal,
                code,
                Arc::clone(&asked),
            ));
            ids.extend(flag::register(signal, Arc::clone(&asked)));
        }
        let listening = UnixStream::pair().ok().and_then(|(listening, tells)| {
            for signal in [SIGINT, SIGTERM] {
                let tells = tells.try_clone().ok()?;
                ids.push(pipe::register(signal, tells).ok()?);
            }
            Some(listening)
        });
        Self {
            asked,
            listening,
            ids,
        }
    }

    /// The flag, for library calls that look at it themselves.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.asked)
    }

    /// Waits until a stop is asked for.
    pub(crate) fn wait(&self) {
        let Some(listening) = &self.listening else {
            // Signals cannot be caught here: the default action ends the process.
            loop {
                std::thread::park();
            }
        };
        let mut byte = [0];
        while !self.is_asked() {
            // The signal handler writes a byte; an interrupted read looks at the flag again.
            let _ = (&*listening).read(&mut byte);
        }
    }

    /// Whether a stop was asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            unregister(id);
        }
    }
}
