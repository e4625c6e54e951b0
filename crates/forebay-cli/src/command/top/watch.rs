//! Asks the servers for their reports, each on a thread of its own: a server that does not answer delays no other.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use forebay_monitor::report::Report;

use super::fetch::Target;
use crate::failure::Failure;

/// A server and its last answers.
pub(super) struct Server {
    pub(super) name: String,
    /// The last report; `None` before the first one.
    pub(super) last: Option<Report>,
    /// Why and since when there is no answer; `None` while the server answers.
    pub(super) silent: Option<(Instant, Failure)>,
}

impl Server {
    pub(super) fn new(name: String) -> Server {
        Server {
            name,
            last: None,
            silent: None,
        }
    }

    /// Returns the current report of a server that answers.
    pub(super) fn report(&self) -> Option<&Report> {
        self.last.as_ref().filter(|_| self.silent.is_none())
    }

    pub(super) fn take(&mut self, answer: Result<Report, Failure>) {
        match answer {
            Ok(report) => (self.last, self.silent) = (Some(report), None),
            Err(failure) => {
                let since = self
                    .silent
                    .as_ref()
                    .map_or_else(Instant::now, |last| last.0);
                self.silent = Some((since, failure));
            }
        }
    }
}

/// A thread that sends a request for each `()`. It ends when its sender is dropped.
struct Requests {
    ask: Sender<()>,
    in_flight: bool,
}

pub(super) struct Watch {
    /// In the order of the targets.
    pub(super) servers: Vec<Server>,
    requests: Vec<Requests>,
    answers: Receiver<(usize, Result<Report, Failure>)>,
}

impl Watch {
    pub(super) fn of(targets: Vec<Target>) -> Watch {
        let servers = targets.iter().map(|target| Server::new(target.to_string()));
        let servers = servers.collect();
        let (tell, answers) = mpsc::channel();
        let requests = targets.into_iter().enumerate().map(|(number, target)| {
            let (ask, asked) = mpsc::channel();
            let tell = tell.clone();
            thread::spawn(move || {
                for () in asked {
                    if tell.send((number, target.report())).is_err() {
                        break;
                    }
                }
            });
            Requests {
                ask,
                in_flight: false,
            }
        });
        Watch {
            servers,
            requests: requests.collect(),
            answers,
        }
    }

    /// Asks each server that owes no answer, and waits for all answers, at most for `limit`. A later answer counts in the
    /// next round.
    pub(super) fn round(&mut self, limit: Option<Duration>) {
        for requests in self.requests.iter_mut().filter(|to| !to.in_flight) {
            requests.in_flight = requests.ask.send(()).is_ok();
        }
        let end = limit.map(|limit| Instant::now() + limit);
        while self.requests.iter().any(|requests| requests.in_flight) {
            let answer = match end {
                None => self.answers.recv().ok(),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    self.answers.recv_timeout(left).ok()
                }
            };
            let Some((number, answer)) = answer else {
                return;
            };
            self.requests[number].in_flight = false;
            self.servers[number].take(answer);
        }
    }

    /// Returns the failure of the first server if none answers.
    pub(super) fn failure(&mut self) -> Option<Failure> {
        if self.servers.iter().any(|server| server.silent.is_none()) {
            return None;
        }
        let (_, failure) = self.servers.first_mut()?.silent.take()?;
        Some(match self.servers.len() {
            1 => failure,
            servers => Failure::new(format!("none of {servers} servers answers: {failure}"))
                .maybe_hint(failure.hint_line().map(str::to_owned)),
        })
    }
}
