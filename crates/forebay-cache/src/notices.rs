//! Warnings of a cache: each kind is reported once.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Receives warnings.
pub type CacheObserver = Arc<dyn Fn(&str) + Send + Sync>;

/// The kinds of warnings. None of them makes a read fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The file system is full.
    Space,
    /// The process has too many files open.
    Descriptors,
    /// Another process takes too long to fill a block.
    Waiting,
    /// Any other error that prevents blocks from being stored.
    ErrorKind,
}

/// The warnings so far.
#[derive(Default)]
pub(super) struct Notices {
    said: Mutex<Vec<(Notice, String)>>,
    observer: Option<CacheObserver>,
}

impl Notices {
    pub(super) fn new(observer: Option<CacheObserver>) -> Self {
        Self {
            said: Mutex::default(),
            observer,
        }
    }

    /// Reports a warning, unless one of this kind was reported before.
    pub(super) fn tell(&self, kind: Notice, text: String) {
        {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.iter().any(|(before, _)| *before == kind) {
                return;
            }
            said.push((kind, text.clone()));
        }
        if let Some(observer) = &self.observer {
            observer(&text);
        }
    }

    /// All warnings so far.
    pub(super) fn all(&self) -> Vec<String> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter().map(|(_, text)| text.clone()).collect()
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}
