//! Runs the binary and looks at what it says.
#![allow(unreachable_pub)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The binary without the caller's settings.
pub fn forebay() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    // No files in the user's cache.
    command.env("FOREBAY_SEEK_POINTS", "none");
    command.env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// The outcome of a run.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
    pub bytes: Vec<u8>,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            bytes: output.stdout,
        }
    }
}

/// Runs `forebay` with these arguments.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    run_in(Path::new("."), args)
}

/// Runs `forebay` in a directory.
pub fn run_in<S: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = S>) -> Ran {
    forebay()
        .current_dir(dir)
        .args(args)
        .output()
        .expect("the binary starts")
        .into()
}

impl Ran {
    /// The run did all it was asked to.
    #[track_caller]
    pub fn done(self) -> Self {
        self.code(0)
    }

    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "exit code\n-- stdout\n{}\n-- stderr\n{}",
            self.stdout, self.stderr
        );
        self
    }

    /// The run failed with one `error:` line that holds each of these texts, and a hint if any
    /// is expected; nothing like a panic or a backtrace.
    #[track_caller]
    pub fn failed_with(self, texts: &[&str]) -> Self {
        let ran = self.code(1);
        ran.explains("error: ", texts);
        ran
    }

    #[track_caller]
    pub fn explains(&self, start: &str, texts: &[&str]) {
        let line = self
            .stderr
            .lines()
            .find(|line| line.starts_with(start))
            .unwrap_or_else(|| panic!("no line `{start}...` in\n{}", self.stderr));
        for text in texts {
            assert!(line.contains(text), "no {text:?} in: {line}");
        }
        for bad in ["panicked", "backtrace", "\\\""] {
            assert!(!self.stderr.contains(bad), "{bad}:\n{}", self.stderr);
        }
    }

    /// Each line of stdout as an event.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| {
                let event: Value = serde_json::from_str(line)
                    .unwrap_or_else(|error| panic!("not JSON ({error}): {line}"));
                assert!(event["type"].is_string(), "an event without a type: {line}");
                event
            })
            .collect()
    }

    /// The last event, which is the summary.
    #[track_caller]
    pub fn summary(&self) -> Value {
        let last = self.events().pop().expect("at least one event");
        assert_eq!(last["type"], "summary", "{}", self.stdout);
        last
    }
}

/// The pictures that the project ships.
pub fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images")
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

/// The files below a directory with their content, by relative path.
pub fn tree(root: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    fn walk(root: &Path, dir: &Path, out: &mut std::collections::BTreeMap<PathBuf, Vec<u8>>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, out);
            } else {
                let relative = path.strip_prefix(root).unwrap().to_owned();
                out.insert(relative, std::fs::read(&path).unwrap());
            }
        }
    }
    let mut out = std::collections::BTreeMap::new();
    walk(root, root, &mut out);
    out
}
