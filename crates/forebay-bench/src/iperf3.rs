//! Throughput of iperf3 between two processes of this machine, where it is installed.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::measure::Measurement;
use crate::watchdog::Watchdog;
use crate::{Error, Result};

const GB: f64 = 1e9;
/// How often a run that came to nothing is repeated.
const ATTEMPTS: u32 = 3;
/// How long its server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether it can be run.
pub(crate) fn is_there() -> bool {
    Command::new("iperf3")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Moves this many bytes over one connection on loopback.
///
/// # Errors
/// Runs iperf3, with a few attempts.
pub(crate) fn measure(bytes: u64) -> Result<Measurement> {
    let mut last = Error::from("iperf3 did not run");
    for _ in 0..ATTEMPTS {
        match attempt(bytes) {
            Ok(sample) => return Ok(sample),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// A server, until it is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attempt(bytes: u64) -> Result<Measurement> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port();
    let port = port.to_string();
    let mut server = Server(
        Command::new("iperf3")
            .args(["--server", "--one-off", "--bind", "127.0.0.1"])
            .args(["--port", &port])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let _watchdog = Watchdog::of(&server.0)?;
    let bytes = bytes.to_string();
    let began = Instant::now();
    loop {
        let client = Command::new("iperf3")
            .args(["--client", "127.0.0.1", "--port", &port, "--json"])
            .args(["--length", "1M", "--bytes", &bytes])
            .output()?;
        match figures(&client) {
            Ok(sample) => return Ok(sample),
            // The server needs a moment to listen, and ends after one client.
            Err(_) if server.0.try_wait()?.is_none() && began.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) => return Err(e),
        }
    }
}

/// Reads the bytes that arrived and their time, or iperf3's error message: it reports that in the same place, and not always
/// with an exit code.
fn figures(client: &Output) -> Result<Measurement> {
    let report: serde_json::Value =
        forebay_shard::json::from_slice(&client.stdout).unwrap_or_default();
    let received = &report["end"]["sum_received"];
    let number = |name: &str| received[name].as_f64().filter(|&number| number > 0.0);
    if let (None, Some(bytes), Some(seconds)) =
        (report["error"].as_str(), number("bytes"), number("seconds"))
    {
        return Ok(Measurement {
            amount: bytes / GB,
            seconds,
        });
    }
    let said = match report["error"].as_str() {
        Some(error) => error.to_owned(),
        None => String::from_utf8_lossy(&client.stderr).trim().to_owned(),
    };
    let said = match said.is_empty() {
        true => format!("no reason, {}", client.status),
        false => said,
    };
    Err(format!("iperf3 reports no figures: {said}").into())
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    fn told(stdout: &str, stderr: &str) -> Result<Measurement> {
        figures(&Output {
            status: ExitStatus::default(),
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    #[test]
    fn figures_are_read_and_errors_are_passed_on() {
        let good = r#"{"end":{"sum_received":{"bytes":2000000000,"seconds":0.5}}}"#;
        let sample = told(good, "").unwrap();
        assert_eq!((sample.amount, sample.seconds), (2.0, 0.5));
        for (stdout, stderr, said) in [
            (
                r#"{"end":{},"error":"unable to connect"}"#,
                "",
                "unable to connect",
            ),
            (
                r#"{"end":{"sum_received":{"bytes":0,"seconds":0}}}"#,
                "",
                "no reason",
            ),
            ("iperf3: error", "bad option", "bad option"),
            ("", "", "no reason"),
        ] {
            let e = told(stdout, stderr).err().unwrap().to_string();
            assert!(e.contains("no figures") && e.contains(said), "{e}");
        }
    }
}
