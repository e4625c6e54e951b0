//! A queue of retried tasks, such as uploads: threads try the tasks in order, and retry each until it is finished.
//!
//! A failed task waits for its backoff while other tasks are tried: a store that does not respond delays only its own
//! uploads. Threads exist only while there are tasks.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The wait before the second try of a task; it doubles with each try up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Returns the wait after this many failed tries.
pub(crate) fn backoff(tries: u32) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << tries.saturating_sub(1).min(8));
    doubled.min(LONGEST_WAIT)
}

/// The outcome of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tried {
    /// The task is finished, successful or not, and leaves the queue.
    Over,
    /// The task is tried again after this time.
    Again(Duration),
}

/// Whether two tasks must not be tried at the same time.
type Conflicts<T> = fn(&T, &T) -> bool;
type Step<T> = Box<dyn Fn(&Arc<T>) -> Tried + Send + Sync>;

/// Tasks and the threads that try them. Dropping the queue does not stop the threads; [`close`](Self::close) does.
pub(crate) struct TaskQueue<T>(Arc<Inner<T>>);

struct Inner<T> {
    name: &'static str,
    most_threads: usize,
    step: Step<T>,
    conflicts: Conflicts<T>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    tasks: BTreeMap<u64, Slot<T>>,
    next: u64,
    threads: Vec<JoinHandle<()>>,
    running: usize,
    is_paused: bool,
    is_closing: bool,
}

struct Slot<T> {
    task: Arc<T>,
    is_taken: bool,
    not_before: Option<Instant>,
}

impl<T> std::fmt::Debug for TaskQueue<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskQueue")
            .field("tasks", &self.0.state().tasks.len())
            .finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> TaskQueue<T> {
    /// Creates a queue that calls `step` for each try, on at most `most_threads` threads called `name`. A paused queue starts
    /// with [`resume`](Self::resume).
    pub(crate) fn new(
        name: &'static str,
        most_threads: usize,
        is_paused: bool,
        step: impl Fn(&Arc<T>) -> Tried + Send + Sync + 'static,
    ) -> Self {
        Self::with_conflicts(name, most_threads, is_paused, |_, _| false, step)
    }

    /// As [`new`](Self::new), but two tasks for which `conflicts` is true are never tried at the same time. The older one is
    /// tried first, unless it waits for its backoff.
    pub(crate) fn with_conflicts(
        name: &'static str,
        most_threads: usize,
        is_paused: bool,
        conflicts: fn(&T, &T) -> bool,
        step: impl Fn(&Arc<T>) -> Tried + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Inner {
            name,
            most_threads: most_threads.max(1),
            step: Box::new(step),
            conflicts,
            state: Mutex::new(State {
                tasks: BTreeMap::new(),
                next: 0,
                threads: Vec::new(),
                running: 0,
                is_paused,
                is_closing: false,
            }),
            changed: Condvar::new(),
        }))
    }

    /// Adds a task at the end of the queue.
    pub(crate) fn add(&self, task: Arc<T>) {
        let mut state = self.0.state();
        let slot = Slot {
            task,
            is_taken: false,
            not_before: None,
        };
        let number = state.next;
        state.next += 1;
        state.tasks.insert(number, slot);
        self.0.start(&mut state);
        self.0.changed.notify_all();
    }

    /// Returns the unfinished tasks, the oldest first.
    pub(crate) fn tasks(&self) -> Vec<Arc<T>> {
        let state = self.0.state();
        state
            .tasks
            .values()
            .map(|slot| Arc::clone(&slot.task))
            .collect()
    }

    /// Whether all tasks are finished.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.state().tasks.is_empty()
    }

    /// Removes and returns the tasks that no thread is trying.
    pub(crate) fn take_idle(&self) -> Vec<Arc<T>> {
        let mut state = self.0.state();
        let idle = state.tasks.extract_if(.., |_, slot| !slot.is_taken);
        idle.map(|(_, slot)| slot.task).collect()
    }

    /// Starts a paused queue.
    pub(crate) fn resume(&self) {
        let mut state = self.0.state();
        state.is_paused = false;
        self.0.start(&mut state);
    }

    /// Wakes up the callers of [`wait_a_moment`](Self::wait_a_moment).
    pub(crate) fn notify(&self) {
        self.0.changed.notify_all();
    }

    /// Waits until a task changes its state, at most for `most`.
    pub(crate) fn wait_a_moment(&self, most: Duration) {
        let mut state = self.0.state();
        // Starts threads that the system refused to create before.
        self.0.start(&mut state);
        drop(self.0.changed.wait_timeout(state, most));
    }

    /// Stops the threads after their current tries, and waits for them; unfinished tasks stay. The caller may cancel the current
    /// tries by its own means.
    pub(crate) fn close(&self) {
        let threads = {
            let mut state = self.0.state();
            state.is_closing = true;
            self.0.changed.notify_all();
            std::mem::take(&mut state.threads)
        };
        for thread in threads {
            // The thread catches panics of tries, so `join` does not fail.
            let _ = thread.join();
        }
    }
}

impl<T> Inner<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + Sync + 'static> Inner<T> {
    /// Starts threads: one per task, up to the maximum.
    fn start(self: &Arc<Self>, state: &mut State<T>) {
        if state.is_paused || state.is_closing {
            return;
        }
        state.threads.retain(|thread| !thread.is_finished());
        while state.running < self.most_threads.min(state.tasks.len()) {
            let inner = Arc::clone(self);
            let thread = std::thread::Builder::new().name(self.name.to_owned());
            let Ok(thread) = thread.spawn(move || inner.work()) else {
                // The next call that adds a task or waits tries again.
                return;
            };
            state.running += 1;
            state.threads.push(thread);
        }
    }

    /// The loop of a thread: tries due tasks, and returns when none is left.
    fn work(&self) {
        let mut state = self.state();
        while !state.is_closing {
            let now = Instant::now();
            let taken = state.tasks.values().filter(|slot| slot.is_taken);
            let taken: Vec<Arc<T>> = taken.map(|slot| Arc::clone(&slot.task)).collect();
            let is_due = |slot: &Slot<T>| {
                !slot.is_taken
                    && slot.not_before.is_none_or(|at| at <= now)
                    && !taken
                        .iter()
                        .any(|other| (self.conflicts)(other, &slot.task))
            };
            let due = state.tasks.iter_mut().find(|(_, slot)| is_due(slot));
            if let Some((&number, slot)) = due {
                slot.is_taken = true;
                let task = Arc::clone(&slot.task);
                drop(state);
                let tried = catch_unwind(AssertUnwindSafe(|| (self.step)(&task)));
                state = self.state();
                match tried.unwrap_or(Tried::Again(LONGEST_WAIT)) {
                    Tried::Over => {
                        state.tasks.remove(&number);
                    }
                    Tried::Again(wait) => {
                        if let Some(slot) = state.tasks.get_mut(&number) {
                            slot.is_taken = false;
                            slot.not_before = Some(Instant::now() + wait);
                        }
                    }
                }
                self.changed.notify_all();
                continue;
            }
            let waiting = state.tasks.values().filter(|slot| !slot.is_taken);
            // Due tasks that conflict with a running one are left to the thread that runs that one.
            let times = waiting.filter_map(|slot| slot.not_before);
            let Some(next) = times.filter(|at| *at > now).min() else {
                break;
            };
            let waited = self.changed.wait_timeout(state, next - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A number, and the count of its tries.
    type Task = (u32, AtomicU32);

    /// A paused queue, and the numbers of the tasks that it tried.
    fn queue(
        threads: usize,
        step: impl Fn(u32, u32) -> Tried + Send + Sync + 'static,
    ) -> (TaskQueue<Task>, Arc<Mutex<Vec<u32>>>) {
        let log: Arc<Mutex<Vec<u32>>> = Arc::default();
        let to = Arc::clone(&log);
        let queue = TaskQueue::new("tasks", threads, true, move |task: &Arc<Task>| {
            to.lock().unwrap().push(task.0);
            step(task.0, task.1.fetch_add(1, Ordering::Relaxed))
        });
        (queue, log)
    }

    fn run(queue: &TaskQueue<Task>, tasks: u32) {
        for task in 0..tasks {
            queue.add(Arc::new((task, AtomicU32::new(0))));
        }
        queue.resume();
        while !queue.is_empty() {
            queue.wait_a_moment(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_task_in_backoff_does_not_delay_others() {
        let (queue, log) = queue(1, |task, tries| match (task, tries) {
            (0, 0) => Tried::Again(Duration::from_millis(1)),
            _ => Tried::Over,
        });
        run(&queue, 3);
        let log = log.lock().unwrap();
        assert_eq!(log.len(), 4, "{log:?}");
        assert_eq!(log[..2], [0, 1], "{log:?}");
    }

    #[test]
    fn a_panic_is_a_failed_try() {
        let (queue, log) = queue(3, |task, tries| match (task, tries) {
            (1, 0) => panic!("as wanted"),
            _ => Tried::Over,
        });
        for task in 0..3 {
            queue.add(Arc::new((task, AtomicU32::new(0))));
        }
        queue.resume();
        while queue.tasks().len() > 1 || log.lock().unwrap().len() < 3 {
            queue.wait_a_moment(Duration::from_millis(20));
        }
        queue.close();
        assert_eq!(queue.take_idle()[0].0, 1);
        assert!(queue.is_empty());
    }

    #[test]
    fn conflicting_tasks_run_one_at_a_time_in_order() {
        let log: Arc<Mutex<Vec<u32>>> = Arc::default();
        let (inside, ran) = (AtomicU32::new(0), Arc::clone(&log));
        // Even tasks conflict with each other; odd tasks conflict with none.
        let conflicts = |a: &Task, b: &Task| a.0.is_multiple_of(2) && b.0.is_multiple_of(2);
        let queue =
            TaskQueue::with_conflicts("tasks", 4, true, conflicts, move |task: &Arc<Task>| {
                if task.0.is_multiple_of(2) {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::yield_now();
                    ran.lock().unwrap().push(task.0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
                Tried::Over
            });
        run(&queue, 200);
        let ran = log.lock().unwrap();
        assert!(ran.len() == 100 && ran.is_sorted(), "{ran:?}");
    }

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let waits: Vec<Duration> = (1..12).map(backoff).collect();
        assert_eq!(waits[0], FIRST_WAIT);
        assert_eq!(waits[1], FIRST_WAIT * 2);
        assert_eq!(waits[10], LONGEST_WAIT);
    }
}
