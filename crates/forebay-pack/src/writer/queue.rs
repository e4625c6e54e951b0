//! A queue of one batch between the caller and the writing thread, which encodes the previous batch meanwhile.

use super::record::Checked;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a writer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The dataset is published.
    Publish,
    /// Finished shards are kept for a later writer.
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
    /// Moves a batch into the queue, waiting up to `timeout` for space. Returns whether it was moved.
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

    /// Returns the next batch; `None` at the end.
    pub(super) fn take(&self) -> Option<Vec<Checked>> {
        let waits = |state: &mut State| state.batches.is_empty() && state.end.is_none();
        let waited = self.changed.wait_while(self.lock(), waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let batch = state.batches.pop_front();
        self.changed.notify_all();
        batch
    }

    /// Adds the last batch, even if the queue is full.
    pub(super) fn end(&self, end: End, batch: Vec<Checked>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.batches.push_back(batch);
        self.changed.notify_all();
    }

    /// Returns whether the caller abandoned the dataset.
    pub(super) fn is_abandoned(&self) -> bool {
        self.lock().end == Some(End::Abandon)
    }

    /// Returns whether the writing thread accepts no more batches.
    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Stops accepting batches.
    pub(super) fn close(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
