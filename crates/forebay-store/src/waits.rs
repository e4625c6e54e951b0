//! Reports long waits for a store to the log of the process.

use std::sync::{Arc, PoisonError, RwLock};

type Observer = Arc<dyn Fn(&str) + Send + Sync>;

static OBSERVER: RwLock<Option<Observer>> = RwLock::new(None);

/// Calls `observer` with a line of text about each long wait for a store: which operation is retried, why, and for how long.
/// A process has one observer, the last one that was set; without an observer nothing is reported. The observer runs on the
/// thread that runs requests, so it must return quickly.
///
/// ```
/// forebay_store::on_long_wait(|line| eprintln!("{line}"));
/// ```
pub fn on_long_wait(observer: impl Fn(&str) + Send + Sync + 'static) {
    *OBSERVER.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(observer));
}

/// Passes a line to the observer, if there is one.
pub(crate) fn say(line: &str) {
    let observer = OBSERVER
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    if let Some(observer) = observer {
        observer(line);
    }
}
