//! Servers that are separate programs: finds, starts and stops them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout for a Python or Node server to start on a busy machine.
const START_TIME: Duration = Duration::from_secs(120);

/// A server process that ends when this value is dropped, or when the test process ends.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// Finds a program by name: in the environment that `tools/test` creates, or on the PATH.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = std::env::var_os("PATH").unwrap_or_default();
    [
        root.join(".venv-stores/bin"),
        root.join(".venv-stores/node_modules/.bin"),
    ]
    .into_iter()
    .chain(std::env::split_paths(&path))
    .map(|dir| dir.join(name))
    .find(|program| program.is_file())
}

impl Server {
    /// Starts `program` with arguments that contain its port, and waits until it listens on that port.
    pub(crate) fn start(program: &Path, arguments: impl Fn(u16) -> Vec<String>) -> Option<Self> {
        // Another process may take the free port before the server listens on it, hence three attempts.
        for _ in 0..3 {
            let free = TcpListener::bind("127.0.0.1:0").ok()?;
            let address = free.local_addr().ok()?;
            drop(free);
            // The shell stops the server when its standard input is closed, however this process
            // ends.
            let script =
                r#""$@" </dev/null >/dev/null 2>&1 & p=$!; cat >/dev/null; kill "$p"; wait "$p""#;
            let mut child = Command::new("sh")
                .args(["-c", script, "sh"])
                .arg(program)
                .args(arguments(address.port()))
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .ok()?;
            let started = Instant::now();
            while started.elapsed() < START_TIME {
                if TcpStream::connect(address).is_ok() {
                    return Some(Self { child, address });
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            drop(child.stdin.take());
            let _ = child.wait();
        }
        None
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

pub(crate) fn skipped(what: &str) {
    eprintln!("skipped: {what} is not installed (tools/test installs it where it can)");
}
