//! The one small runtime of a process, on which requests run.
//!
//! It is started by the first request and never stopped. Callers block outside of it, on their own threads.

use crate::{Error, Result};
use std::future::Future;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Enough to keep several connections decrypted and hashed; more would take cores from decoding.
const MOST_THREADS: usize = 4;
/// A raised flag is seen after this long at the latest.
const LOOK: Duration = Duration::from_millis(50);

/// The runtime, and the caller that started it.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime of this process. A forked child has none of its parent's threads, so it gets a runtime of its own; the
/// parent's is left alone, because ending it would wait for threads that are not there.
pub(super) fn runtime() -> Result<&'static Runtime> {
    let pid = std::process::id();
    let mut slot = RUNTIME
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some((owner, runtime)) = *slot
        && owner == pid
    {
        return Ok(runtime);
    }
    let threads =
        std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, MOST_THREADS));
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("forebay-store")
        .enable_all()
        .build()
        .map_err(|error| Error::io("", "start the threads for requests of", error))?;
    let runtime: &'static Runtime = Box::leak(Box::new(runtime));
    *slot = Some((pid, runtime));
    Ok(runtime)
}

/// Runs `work` to its end on the calling thread.
pub(super) fn wait_for<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    if tokio::runtime::Handle::try_current().is_ok() {
        // To block here would starve, or deadlock, the caller's runtime.
        return Err(Error::Unsupported {
            text: "a store from within an asynchronous task".to_owned(),
            why: "its calls block".to_owned(),
            can_use: "a thread of its own, such as spawn_blocking gives",
        });
    }
    runtime()?.block_on(work)
}

/// As [`wait_for`], until `is_stopped` says so: then `work` is dropped, and none is returned. It is called before each step of
/// `work`, so that nothing is begun once it says so.
pub(super) fn wait_unless<T>(
    is_stopped: impl Fn() -> bool,
    work: impl Future<Output = Result<T>>,
) -> Result<Option<T>> {
    wait_for(async {
        tokio::pin!(work);
        loop {
            if is_stopped() {
                return Ok(None);
            }
            let step = std::future::poll_fn(|context| {
                if is_stopped() {
                    return Poll::Ready(Ok(None));
                }
                work.as_mut().poll(context).map_ok(Some)
            });
            if let Ok(done) = tokio::time::timeout(LOOK, step).await {
                return done;
            }
        }
    })
}
