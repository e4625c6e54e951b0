//! Files that are reloaded when they change while a server runs: certificates and tokens.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two checks of the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// Metadata that reveals a change of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    len: u64,
    changed: (i64, i64),
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = std::fs::metadata(path).ok()?;
    Some(Stamp {
        file: (meta.dev(), meta.ino()),
        len: meta.len(),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}

/// A value that is read from files, and read again when they change.
pub(crate) struct Reloadable<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: T,
    stamps: Vec<Option<Stamp>>,
    looked: Instant,
}

/// Result of reloading changed files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) what: &'static str,
    /// Why the previous value stays in effect; `None` if the new one is in effect.
    pub(crate) problem: Option<String>,
}

impl<T: Clone> Reloadable<T> {
    /// Reads the value for the first time.
    pub(crate) fn new(
        what: &'static str,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // Taken before reading: a change during the read causes another reload.
        let stamps = files.iter().map(|path| stamp(path)).collect();
        Ok(Reloadable {
            state: Mutex::new(State {
                value: load()?,
                stamps,
                looked: Instant::now(),
            }),
            what,
            files,
            load: Box::new(load),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // The value is replaced as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current value, and the result of a reload if one happened. Checks the files at
    /// most once a second.
    pub(crate) fn current(&self) -> (T, Option<Change>) {
        let mut state = self.state();
        if state.looked.elapsed() < INTERVAL {
            return (state.value.clone(), None);
        }
        state.looked = Instant::now();
        let stamps: Vec<_> = self.files.iter().map(|path| stamp(path)).collect();
        let change = (stamps != state.stamps).then(|| {
            state.stamps = stamps;
            self.replace(&mut state)
        });
        (state.value.clone(), change)
    }

    /// Reloads the files, changed or not.
    pub(crate) fn reload(&self) -> Change {
        let mut state = self.state();
        state.stamps = self.files.iter().map(|path| stamp(path)).collect();
        state.looked = Instant::now();
        self.replace(&mut state)
    }

    fn replace(&self, state: &mut State<T>) -> Change {
        let problem = match (self.load)() {
            Ok(value) => {
                state.value = value;
                None
            }
            Err(problem) => Some(problem),
        };
        Change {
            what: self.what,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_changes_apply_and_invalid_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let read = path.clone();
        let load = move || {
            let text = std::fs::read_to_string(&read).map_err(|e| e.to_string())?;
            text.parse::<u32>().map_err(|e| e.to_string())
        };
        let reloadable = Reloadable::new("number", vec![path.clone()], load).unwrap();
        assert_eq!(reloadable.current(), (1, None));
        std::fs::write(&path, "22").unwrap();
        reloadable.state().looked -= INTERVAL;
        let fine = Change {
            what: "number",
            problem: None,
        };
        assert_eq!(reloadable.current(), (22, Some(fine.clone())));
        reloadable.state().looked -= INTERVAL;
        assert_eq!(reloadable.current(), (22, None), "nothing has changed");
        std::fs::remove_file(&path).unwrap();
        reloadable.state().looked -= INTERVAL;
        let (value, change) = reloadable.current();
        assert_eq!(value, 22);
        assert!(change.unwrap().problem.is_some());
        reloadable.state().looked -= INTERVAL;
        assert_eq!(reloadable.current(), (22, None), "said once");
        std::fs::write(&path, "3").unwrap();
        assert_eq!(reloadable.reload(), fine);
        assert_eq!(reloadable.current(), (3, None));
    }
}
