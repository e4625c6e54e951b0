//! Ends child processes with this one, even if it is killed and runs no destructors.

use std::io;
use std::process::{Child, Command, Stdio};

/// Checks both processes every second, and kills the child if it outlives its parent.
const SCRIPT: &str = r#"while kill -0 "$1" 2>/dev/null && kill -0 "$2" 2>/dev/null; do sleep 1; done
kill -0 "$1" 2>/dev/null || kill -9 "$2" 2>/dev/null"#;

/// A process that kills a child of this process after this process has ended.
#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    pub(crate) fn of(child: &Child) -> io::Result<Self> {
        Self::start(std::process::id(), child.id())
    }

    fn start(parent: u32, child: u32) -> io::Result<Self> {
        let started = Command::new("sh")
            .args(["-c", SCRIPT, "sh", &parent.to_string(), &child.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        started.map(Self)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The watchdog may have ended with the child.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_child_ends_with_its_parent() {
        let sleep = || Command::new("sleep").arg("600").spawn().unwrap();
        let (mut parent, mut child) = (sleep(), sleep());
        let _watchdog = Watchdog::start(parent.id(), child.id()).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
