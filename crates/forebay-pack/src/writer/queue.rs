//! One place between the caller and the thread that writes: a batch waits in it while the one before is encoded.

use super::record::Checked;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a writer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The dataset is published.
    Publish,
    /// Finished shards stay for a later writer.
    Abandon,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Vec<Checked>>,
    end: Option<End>,
    is_over: bool,
}

impl Queue {
    /// Hands a batch over, which is empty then; waits for room until the time is up. Returns whether it did.
    pub(super) fn put(&self, batch: &mut Vec<Checked>, timeout: Duration) -> bool {
        let state = self.lock();
        let waits = |state: &mut State| !state.batches.is_empty() && !state.is_over;
        let waited = self.changed.wait_timeout_while(state, timeout, waits);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.batches.is_empty() || state.is_over {
            return false;
        }
        state.batches.push_back(std::mem::take(batch));
        self.changed.notify_all();
        true
    }

    /// The next batch; none at the end.
    pub(super) fn take(&self) -> Option<Vec<Checked>> {
        let waits = |state: &mut State| state.batches.is_empty() && state.end.is_none();
        let waited = self.changed.wait_while(self.lock(), waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let batch = state.batches.pop_front();
        self.changed.notify_all();
        batch
    }

    /// Hands over the last batch, whether there is room or not.
    pub(super) fn end(&self, end: End, batch: Vec<Checked>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.batches.push_back(batch);
        self.changed.notify_all();
    }

    /// Whether the caller gave up.
    pub(super) fn is_abandoned(&self) -> bool {
        self.lock().end == Some(End::Abandon)
    }

    /// Whether nothing is taken any more.
    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Nothing is taken any more.
    pub(super) fn close(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
