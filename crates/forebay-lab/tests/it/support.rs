//! Runs the program and checks its output.
#![allow(unreachable_pub)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// The outcome of a run.
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs `forebay-lab` with these arguments and without `FOREBAY_*` environment variables.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-lab"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    let output = command.stdin(Stdio::null()).args(args).output();
    let output = output.expect("the program starts");
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Ran {
    #[track_caller]
    pub fn done(self) -> Self {
        self.code(0)
    }

    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        let (out, err) = (&self.stdout, &self.stderr);
        assert_eq!(self.code, code, "-- stdout\n{out}\n-- stderr\n{err}");
        self
    }

    /// Asserts that the run failed with an `error:` line that contains each of the texts.
    #[track_caller]
    pub fn failed_with(self, texts: &[&str]) {
        self.code(1).explains("error: ", texts);
    }

    #[track_caller]
    pub fn explains(&self, start: &str, texts: &[&str]) {
        let mut lines = self.stderr.lines();
        let line = lines.find(|line| line.starts_with(start));
        let line = line.unwrap_or_else(|| panic!("no line `{start}...` in\n{}", self.stderr));
        for text in texts {
            assert!(line.contains(text), "no {text:?} in: {line}");
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }

    /// Parses each line of stdout as an event.
    pub fn events(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Returns the directory of the test images.
pub fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images")
}

/// Returns a path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}
