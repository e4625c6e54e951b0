//! Tasks that run to completion even if the call that started them is cancelled.
//!
//! A store executes a request that it has received, whether or not the client waits for the response. Dropping a request that
//! creates something (the begin of a multipart upload, a probe object) could therefore leave that in the store. Such requests
//! run as tracked tasks, which clean up after themselves.

use super::runtime;
use crate::Result;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How long a cancelled call waits for its tracked tasks: at a store that responds, and at one that does not.
const ENDING_TIME: Duration = Duration::from_secs(10);
const ENDING_TIME_AWAY: Duration = Duration::from_millis(500);

/// The number of unfinished tasks of one call.
#[derive(Debug, Clone)]
pub(super) struct TaskTracker(Arc<watch::Sender<usize>>);

/// Counts one unfinished task.
#[derive(Debug)]
pub(super) struct TaskGuard(TaskTracker);

impl TaskTracker {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Counts a task as unfinished until the guard is dropped.
    pub(super) fn enter(&self) -> TaskGuard {
        self.0.send_modify(|going| *going += 1);
        TaskGuard(self.clone())
    }

    /// Runs `work` on the runtime's threads to completion.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let going = self.enter();
        runtime::runtime()?.spawn(async move {
            work.await;
            drop(going);
        });
        Ok(())
    }

    /// As [`spawn`](Self::spawn), and returns the result of `work`, or `None` if it panicked. If the caller stops waiting, the
    /// result is dropped.
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

    /// Waits until all tasks have finished.
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
    /// Waits, for a limited time, until the tasks of a cancelled call have finished.
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

    /// A value whose drop starts another tracked task.
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
    fn a_task_finishes_although_its_caller_is_dropped() {
        let (endings, seen) = (TaskTracker::new(), Arc::<Mutex<u32>>::default());
        let (go_on, held) = oneshot::channel::<()>();
        let result = Last(endings.clone(), Arc::clone(&seen));
        runtime::wait_for(async {
            let work = endings.through(async move {
                held.await.unwrap();
                result
            });
            // The call is dropped while `work` still waits.
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
    fn through_returns_the_result() {
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
