//! Tasks that run to their end though the call that began them was cancelled.
//!
//! A store does what it was asked, whether a caller waits for the answer or not. What would leave something behind (an upload whose
//! begin is on its way, an object that was only put to learn something) is therefore not dropped with the call that wanted it.

use super::runtime;
use crate::Result;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How long a stopped caller waits until what it began is ended: at a store that answers, and at one that does not.
const ENDING_TIME: Duration = Duration::from_secs(10);
const ENDING_TIME_AWAY: Duration = Duration::from_millis(500);

/// How much of one call is still on its way to its end.
#[derive(Debug, Clone)]
pub(super) struct TaskTracker(Arc<watch::Sender<usize>>);

/// One thing that is not at its end yet.
#[derive(Debug)]
pub(super) struct TaskGuard(TaskTracker);

impl TaskTracker {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Counts something until the answer is dropped.
    pub(super) fn enter(&self) -> TaskGuard {
        self.0.send_modify(|going| *going += 1);
        TaskGuard(self.clone())
    }

    /// Does `work` on the runtime's threads. It ends by itself.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let going = self.enter();
        runtime::runtime()?.spawn(async move {
            work.await;
            drop(going);
        });
        Ok(())
    }

    /// As [`spawn`](Self::spawn), and its result, which is dropped where no caller waits for it any more. None if it panicked.
    pub(super) async fn through<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<Option<T>> {
        let (tell, told) = oneshot::channel();
        self.spawn(async move {
            drop(tell.send(work.await));
        })?;
        Ok(told.await.ok())
    }

    /// Waits until all is at its end.
    pub(super) async fn all(&self) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|going| *going == 0).await;
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|going| *going -= 1);
    }
}

impl super::Live {
    /// Waits, for a while, until what a stopped call left is at its end.
    pub(super) fn await_endings(&self, endings: &TaskTracker) {
        let time = if self.0.pace.is_away() {
            ENDING_TIME_AWAY
        } else {
            ENDING_TIME.min(self.0.timeout)
        };
        let _ = runtime::wait_for(async {
            let _ = tokio::time::timeout(time, endings.all()).await;
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Does more work when it is dropped.
    struct Last(TaskTracker, Arc<Mutex<u32>>);

    impl Drop for Last {
        fn drop(&mut self) {
            let seen = Arc::clone(&self.1);
            let more = async move {
                tokio::task::yield_now().await;
                *seen.lock().unwrap() += 7;
            };
            self.0.spawn(more).unwrap();
        }
    }

    #[test]
    fn what_nobody_waits_for_is_brought_to_its_end() {
        let (endings, seen) = (TaskTracker::new(), Arc::<Mutex<u32>>::default());
        let (go_on, held) = oneshot::channel::<()>();
        let result = Last(endings.clone(), Arc::clone(&seen));
        runtime::wait_for(async {
            let work = endings.through(async move {
                held.await.unwrap();
                result
            });
            // MultipartGuard, and dropped before it is done.
            assert!(tokio::time::timeout(Duration::ZERO, work).await.is_err());
            assert_eq!(*seen.lock().unwrap(), 0);
            go_on.send(()).unwrap();
            endings.all().await;
            Ok(())
        })
        .unwrap();
        assert_eq!(*seen.lock().unwrap(), 7);
    }

    #[test]
    fn who_waits_gets_the_result() {
        let endings = TaskTracker::new();
        let done = runtime::wait_for(endings.through(async { 3 }));
        assert_eq!(done.unwrap(), Some(3));
        let all = async {
            endings.all().await;
            Ok(())
        };
        runtime::wait_for(all).unwrap();
    }
}
