//! The end of the stream of batches (a failed sample, a stop, a panic), and the samples that were replaced.

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

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(failed: &[(u64, usize)]) -> Failures {
        let mut failures = Failures::default();
        for &(batch, index) in failed {
            failures.fail(
                batch,
                index,
                Error::option("x", format!("{batch} {index}"), ""),
            );
        }
        failures
    }

    fn found(failures: &Failures, batch: u64) -> Option<String> {
        match failures.error_at(batch)? {
            Error::Option { found, .. } => Some(found.clone()),
            error => panic!("{error}"),
        }
    }

    #[test]
    fn the_first_sample_wins_in_any_order_of_events() {
        for order in [[(3, 1), (2, 5), (2, 0)], [(2, 0), (3, 1), (2, 5)]] {
            assert_eq!(found(&failures(&order), 2).as_deref(), Some("2 0"));
        }
        // Of two failures of one sample, the first one is kept.
        let mut twice = failures(&[(1, 1)]);
        twice.fail(1, 1, Error::Interrupted);
        assert_eq!(found(&twice, 1).as_deref(), Some("1 1"));
    }

    #[test]
    fn batches_before_a_failure_are_handed_out() {
        let mut failures = failures(&[(2, 0)]);
        assert_eq!(found(&failures, 1), None);
        assert!(found(&failures, 2).is_some() && found(&failures, 3).is_some());
        let needless: Vec<u64> = (0..5).filter(|&batch| failures.precede(batch)).collect();
        assert_eq!(needless, [3, 4]);
        failures.clear();
        assert_eq!(found(&failures, 2), None);
        assert!(!failures.precede(4) && failures.end().is_none());
    }

    #[test]
    fn all_replaced_samples_count_and_the_last_errors_stay() {
        let mut failures = Failures::default();
        for i in 0..MESSAGES_KEPT + 2 {
            failures.replace(i.to_string());
        }
        let (count, messages) = failures.replaced();
        assert_eq!((count, messages.len()), (18, MESSAGES_KEPT));
        assert_eq!((&*messages[0], &*messages[15]), ("2", "17"));
        assert!(
            failures.error_at(u64::MAX).is_none(),
            "none of them ends the stream"
        );
    }

    #[test]
    fn a_seek_ends_neither_a_stop_nor_a_panic() {
        let mut failures = Failures::default();
        failures.panic("a".to_owned());
        failures.panic("b".to_owned());
        failures.clear();
        let Some(Error::System { source, .. }) = failures.end() else {
            panic!("a panic is reported");
        };
        assert!(source.to_string().contains("thread a"), "{source}");
        assert!(!failures.is_stopped());
        failures.stop();
        failures.clear();
        assert!(matches!(failures.end(), Some(Error::Interrupted)));
    }
}
