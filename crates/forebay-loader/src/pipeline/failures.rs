//! What ends the stream of batches (a failed sample, a stop, a panic), and the samples that were replaced.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Error;

/// Number of errors kept from replaced samples, for statistics.
const MESSAGES_KEPT: usize = 16;

/// The failures of a pipeline.
#[derive(Default)]
pub(super) struct Failures {
    /// The first failed sample, in the order of samples.
    first: Option<Failure>,
    is_stopped: bool,
    /// Name of a thread that panicked.
    panicked: Option<String>,
    /// Number of failed samples that were replaced.
    replaced: u64,
    /// The last of their errors.
    messages: VecDeque<String>,
}

struct Failure {
    batch: u64,
    index: usize,
    error: Error,
}

impl Failures {
    /// Records that sample `index` of a batch failed. Only the first one in the order of samples is kept.
    pub(super) fn fail(&mut self, batch: u64, index: usize, error: Error) {
        let earlier = |first: &Failure| (first.batch, first.index) <= (batch, index);
        if !self.first.as_ref().is_some_and(earlier) {
            self.first = Some(Failure {
                batch,
                index,
                error,
            });
        }
    }

    /// Clears the failed sample, so that the stream can continue elsewhere.
    pub(super) fn clear(&mut self) {
        self.first = None;
    }

    /// Returns whether a sample failed in a batch before this one, which is then not needed.
    pub(super) fn precede(&self, batch: u64) -> bool {
        self.first.as_ref().is_some_and(|first| first.batch < batch)
    }

    /// Returns the error that is returned in place of a batch.
    pub(super) fn error_at(&self, batch: u64) -> Option<&Error> {
        let first = self.first.as_ref().filter(|first| first.batch <= batch);
        first.map(|first| &first.error)
    }

    /// Records that a sample failed and is replaced.
    pub(super) fn replace(&mut self, error: String) {
        self.replaced += 1;
        if self.messages.len() >= MESSAGES_KEPT {
            self.messages.pop_front();
        }
        self.messages.push_back(error);
    }

    /// Returns the number of replaced samples, and their last errors, the latest one last.
    pub(super) fn replaced(&self) -> (u64, Vec<String>) {
        (self.replaced, self.messages.iter().cloned().collect())
    }

    /// Ends the stream for good.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Records that a thread panicked, which ends the stream for good.
    pub(super) fn panic(&mut self, thread: String) {
        self.panicked.get_or_insert(thread);
    }

    /// Returns the error that is returned from now on, if the stream has ended for good.
    pub(super) fn end(&self) -> Option<Error> {
        if self.is_stopped {
            return Some(Error::Interrupted);
        }
        self.panicked.as_ref().map(|name| Error::System {
            what: "go on",
            source: Arc::new(std::io::Error::other(format!("thread {name} panicked"))),
        })
    }
}
