//! The one queue of uploads: tasks in their order, each tried by threads until it is over.
//!
//! A task whose try failed waits for its time, and others have their turn meanwhile: a store that does not answer delays only
//! what goes there. Threads are there while there is something to do.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The wait before the second try of a task; it doubles with each up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Returns the wait after this many failed tries.
pub fn backoff(tries: u32) -> Duration {
    let doubled = FIRST_WAIT.saturating_mul(1 << tries.saturating_sub(1).min(8));
    doubled.min(LONGEST_WAIT)
}

/// The outcome of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// The task leaves the queue.
    Over,
    /// The task is tried again after this time.
    Again(Duration),
}

/// Whether two tasks may not be tried at the same time.
type Conflicts<T> = fn(&T, &T) -> bool;
type Step<T> = Box<dyn Fn(&Arc<T>) -> Tried + Send + Sync>;

/// Tasks and the threads that work on them. Threads go on after the queue was dropped, unless it is closed.
pub struct TaskQueue<T>(Arc<Inner<T>>);

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
    /// A queue whose tasks `step` tries, on this many threads of this name. A paused one begins with [`resume`](Self::resume).
    pub fn new(
        name: &'static str,
        most_threads: usize,
        is_paused: bool,
        step: impl Fn(&Arc<T>) -> Tried + Send + Sync + 'static,
    ) -> Self {
        Self::with_conflicts(name, most_threads, is_paused, |_, _| false, step)
    }

    /// The same, where tasks that `conflicts` names are never tried at the same time: the older one comes first, unless it
    /// waits for its time.
    pub fn with_conflicts(
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

    /// Adds a task behind all others.
    pub fn add(&self, task: Arc<T>) {
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

    /// Returns the tasks that are not over, the oldest first.
    pub fn tasks(&self) -> Vec<Arc<T>> {
        let state = self.0.state();
        state
            .tasks
            .values()
            .map(|slot| Arc::clone(&slot.task))
            .collect()
    }

    /// Whether every task is over.
    pub fn is_empty(&self) -> bool {
        self.0.state().tasks.is_empty()
    }

    /// Takes out the tasks that no thread is working on.
    pub fn take_idle(&self) -> Vec<Arc<T>> {
        let mut state = self.0.state();
        let idle = state.tasks.extract_if(.., |_, slot| !slot.is_taken);
        idle.map(|(_, slot)| slot.task).collect()
    }

    /// Begins to work, if the queue is paused.
    pub fn resume(&self) {
        let mut state = self.0.state();
        state.is_paused = false;
        self.0.start(&mut state);
    }

    /// Wakes up those in [`wait_a_moment`](Self::wait_a_moment).
    pub fn notify(&self) {
        self.0.changed.notify_all();
    }

    /// Waits until something changes, at most so long.
    pub fn wait_a_moment(&self, most: Duration) {
        let mut state = self.0.state();
        // A thread that the system refused before.
        self.0.start(&mut state);
        drop(self.0.changed.wait_timeout(state, most));
    }

    /// Ends the threads after the tries that they are at; the tasks stay. What stops these tries is the caller's.
    pub fn close(&self) {
        let threads = {
            let mut state = self.0.state();
            state.is_closing = true;
            self.0.changed.notify_all();
            std::mem::take(&mut state.threads)
        };
        for thread in threads {
            // Panics are caught in it.
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
    /// Starts threads, as many as there is work for.
    fn start(self: &Arc<Self>, state: &mut State<T>) {
        if state.is_paused || state.is_closing {
            return;
        }
        state.threads.retain(|thread| !thread.is_finished());
        while state.running < self.most_threads.min(state.tasks.len()) {
            let inner = Arc::clone(self);
            let thread = std::thread::Builder::new().name(self.name.to_owned());
            let Ok(thread) = thread.spawn(move || inner.work()) else {
                // The next caller that adds or waits tries again.
                return;
            };
            state.running += 1;
            state.threads.push(thread);
        }
    }

    /// Works until no task is left for this thread.
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
            // The thread that tries a conflicting task takes those up that are due and wait for it.
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

    /// A number, and how often it was tried.
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
    fn a_task_that_waits_holds_up_no_other() {
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
    fn conflicting_tasks_take_turns_in_order() {
        let log: Arc<Mutex<Vec<u32>>> = Arc::default();
        let (inside, ran) = (AtomicU32::new(0), Arc::clone(&log));
        // Of even tasks one at a time; an odd one goes beside any.
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
    fn tries_are_spread_out() {
        let waits: Vec<Duration> = (1..12).map(backoff).collect();
        assert_eq!(waits[0], FIRST_WAIT);
        assert_eq!(waits[1], FIRST_WAIT * 2);
        assert_eq!(waits[10], LONGEST_WAIT);
    }
}
