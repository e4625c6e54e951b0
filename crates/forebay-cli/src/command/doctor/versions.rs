//! Checks of the versions of this program, of the Python package, and of the system.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Context, Finding};

const OWN: &str = env!("CARGO_PKG_VERSION");
/// Timeout of the Python interpreter.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn forebay(_: &Context<'_>) -> Vec<Finding> {
    let build = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let text = format!("forebay {OWN}, {build} build");
    vec![match cfg!(debug_assertions) {
        true => Finding::warning(
            text,
            "build with --release: a debug build is several times slower",
        ),
        false => Finding::ok(text),
    }]
}

/// Compares the version of the Python package that `python3` imports with the version of this program.
pub(super) fn python_package(_: &Context<'_>) -> Vec<Finding> {
    let script = "import importlib.metadata as m; print(m.version('forebay'))";
    let Some(found) = output_of(Command::new("python3").args(["-c", script])) else {
        return vec![Finding::ok(
            "python3 imports no forebay: not needed for the command line",
        )];
    };
    vec![match found == OWN {
        true => Finding::ok(format!("forebay {found}, as this program")),
        false => Finding::warning(
            format!("python3 imports forebay {found}, this program is {OWN}"),
            "install both from one release",
        ),
    }]
}

pub(super) fn kernel(_: &Context<'_>) -> Vec<Finding> {
    let name = rustix::system::uname();
    let (system, release) = (
        name.sysname().to_string_lossy(),
        name.release().to_string_lossy(),
    );
    let machine = name.machine().to_string_lossy();
    let text = format!("{system} {release}, {machine}");
    vec![match cfg!(target_os = "linux") {
        true => Finding::ok(text),
        false => Finding::warning(text, "train on Linux: other systems are for development"),
    }]
}

/// Runs a program, and returns its stdout. Returns `None` if it cannot be started, fails, or exceeds [`PATIENCE`].
fn output_of(command: &mut Command) -> Option<String> {
    let command = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let begin = Instant::now();
    loop {
        match child.try_wait().ok()? {
            Some(status) if status.success() => break,
            Some(_) => return None,
            None if begin.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    let output = child.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_programs_have_no_output() {
        let of = |script: &str| output_of(Command::new("sh").args(["-c", script]));
        assert_eq!(of("echo 1.2.3").as_deref(), Some("1.2.3"));
        assert_eq!(of("echo 1.2.3; exit 1"), None);
        assert_eq!(output_of(&mut Command::new("/no/such/program")), None);
    }
}
