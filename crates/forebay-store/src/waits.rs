//! Long waits for a store, for the log of a process.

use std::sync::{Arc, PoisonError, RwLock};

type Observer = Arc<dyn Fn(&str) + Send + Sync>;

static OBSERVER: RwLock<Option<Observer>> = RwLock::new(None);

/// Has `observer` receive a line about each long wait for a store: what is repeated, why, and for how long. There is one
/// observer in a process, the last one given, as there is one log; without one nothing is said. It is called on the thread
/// that runs requests, so it returns soon.
///
/// ```
/// forebay_store::on_long_wait(|line| eprintln!("{line}"));
/// ```
pub fn on_long_wait(observer: impl Fn(&str) + Send + Sync + 'static) {
    *OBSERVER.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(observer));
}

/// Tells the observer, if there is one.
pub(crate) fn say(line: &str) {
    let observer = OBSERVER
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    if let Some(observer) = observer {
        observer(line);
    }
}
