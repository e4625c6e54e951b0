//! The Tokio runtime that runs the requests of this process.
//!
//! The first request starts it, and it is never stopped. Callers block on their own threads, outside the runtime.

use crate::{Error, Result};
use std::future::Future;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Enough threads to decrypt and hash several connections; more would take cores from decoding.
const MOST_THREADS: usize = 4;
/// The longest time until a raised cancellation flag is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// The runtime, and the id of the process that started it.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime of this process. A forked child has none of its parent's threads, so it gets its own runtime. The
/// parent's runtime is leaked: shutting it down would wait for threads that do not exist in the child.
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
        // Blocking here would starve or deadlock the caller's runtime.
        return Err(Error::Unsupported {
            text: "a store from within an asynchronous task".to_owned(),
            why: "its calls block".to_owned(),
            can_use: "a thread of its own, such as spawn_blocking gives",
        });
    }
    runtime()?.block_on(work)
}

/// As [`wait_for`], but drops `work` and returns `None` once `is_stopped` returns true. `is_stopped` is called before each
/// poll of `work`, so that no request starts after it has returned true.
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
