//! Starts, observes and stops the server processes of a measurement.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use clap::Args;
use forebay_client::{Client, Transport};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::Options;
use rustix::process::{Pid, Signal, kill_process};

use crate::measure::{cpu_seconds_of, memory_mib};
use crate::watchdog::Watchdog;
use crate::{Error, Result};

/// The served dataset, and the batches that clients take.
#[derive(Debug, Args)]
pub struct ServedArgs {
    /// A dataset, as `serve` takes it
    source: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) batch_size: u64,
    /// Rows and columns of the pictures
    #[arg(long, value_name = "PIXELS", default_value_t = 224)]
    side: u32,
    /// How batches come: shm, tcp, or auto for what trainers do by themselves
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    pub(crate) transport: Transport,
}

impl ServedArgs {
    /// Starts a server of the dataset, with further arguments.
    pub(crate) fn start(&self, arguments: &[&str]) -> Result<Served> {
        Served::start(&self.source, arguments, 0)
    }

    /// Returns the name of the split; without one on the command line, that of the first.
    pub(crate) fn split_of(&self, client: &Client) -> String {
        let first = client.splits().first().map(|split| &split.name);
        self.split.as_ref().or(first).cloned().unwrap_or_default()
    }

    /// Returns the options of the batches.
    pub(crate) fn batches(&self) -> Options {
        let transform = Transform::Train(TrainTransform::new(self.side));
        let mut options = Options::new(self.batch_size, transform);
        options.drop_last = false;
        options
    }
}

/// A server process, which is killed on drop.
pub(crate) struct Served {
    child: Child,
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// Name of the first dataset that the server lists.
    pub(crate) name: String,
    _stdout: BufReader<ChildStdout>,
    _watchdog: Watchdog,
}

impl Served {
    /// Starts a server on this machine at `port`, or at a free port if it is 0, and waits until it listens.
    fn start(source: &Path, arguments: &[&str], port: u16) -> Result<Served> {
        let program = std::env::current_exe()
            .map_err(|error| format!("cannot find this program to start servers with: {error}"))?;
        let mut child = Command::new(program)
            .arg("serve")
            .arg(source)
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let watchdog = Watchdog::of(&child)?;
        let stdout = child.stdout.take().ok_or("the server has no output")?;
        let mut stdout = BufReader::new(stdout);
        let mut url = String::new();
        let read = stdout.read_line(&mut url);
        let place = url
            .trim()
            .strip_prefix("forebay://")
            .and_then(|rest| rest.split_once('/'));
        let Some((address, name)) = place.filter(|_| read.is_ok()) else {
            let _ = child.kill();
            let _ = child.wait();
            let shown = source.display();
            return Err(Error::from(format!(
                "`forebay serve {shown}` did not start"
            )));
        };
        Ok(Served {
            child,
            address: address.to_owned(),
            name: name.to_owned(),
            _stdout: stdout,
            _watchdog: watchdog,
        })
    }

    fn port(&self) -> u16 {
        let port = self.address.rsplit(':').next();
        port.and_then(|port| port.parse().ok()).unwrap_or(0)
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM, as a rolling update does.
    pub(crate) fn terminate(&self) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        let pid = Pid::from_raw(pid).ok_or("a process has a number")?;
        kill_process(pid, Signal::TERM)?;
        Ok(())
    }

    /// Waits until the server has ended, and starts it again at the same port.
    pub(crate) fn again(&mut self, served: &ServedArgs) -> Result<()> {
        self.child.wait()?;
        *self = Served::start(&served.source, &[], self.port())?;
        Ok(())
    }

    /// Returns the resident memory of the server in MiB; 0 without /proc.
    pub(crate) fn rss_mib(&self) -> f64 {
        memory_mib(&self.child.id().to_string(), "VmRSS:").unwrap_or(0.0)
    }

    /// Returns the CPU seconds of the server so far; 0 without /proc.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds_of(&self.child.id().to_string())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
