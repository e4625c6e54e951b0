//! Commands of the command line as functions: options, events, Ctrl-C.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};

use pyo3::prelude::*;

use crate::failure::{Failure, Kind};
use crate::patience::SLICE;

/// Runs a command line, and passes each event to `on_event` as JSON, on this thread. Returns the exit code. If `on_event` or a
/// signal handler raises, the command stops where it can continue later, and the exception is raised then; a second one is
/// raised at once.
#[pyfunction]
pub(crate) fn _run(
    py: Python<'_>,
    args: Vec<OsString>,
    on_event: &Bound<'_, PyAny>,
) -> PyResult<i32> {
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = channel();
    let (events, asked) = (sender.clone(), Arc::clone(&stop));
    std::thread::Builder::new()
        .name("forebay-command".into())
        .spawn(move || {
            // The receiver no longer exists after a second Ctrl-C.
            let tell = move |event| drop(events.send(Ok(event)));
            let code = forebay_cli::run_with_events(&args, tell, asked);
            drop(sender.send(Err(code)));
        })
        .map_err(|e| Failure::new(Kind::Other, format!("cannot start a thread: {e}")))?;
    let mut receiver = Some(receiver);
    let mut raised = None;
    loop {
        // A `Receiver` is not `Sync`, so it is moved into `detach` and back.
        let lent = receiver.take();
        let (answer, back) = py.detach(move || {
            let answer = lent.as_ref().map(|receiver| receiver.recv_timeout(SLICE));
            (answer, lent)
        });
        receiver = back;
        let told = match answer {
            Some(Ok(Err(code))) => return raised.map_or(Ok(code), Err),
            Some(Ok(Ok(event))) if raised.is_none() => on_event.call1((event,)).map(drop),
            Some(Ok(Ok(_)) | Err(RecvTimeoutError::Timeout)) => Ok(()),
            Some(Err(RecvTimeoutError::Disconnected)) | None => {
                let died = Failure::new(Kind::Other, "the thread of the command died");
                return Err(raised.unwrap_or_else(|| died.into()));
            }
        };
        if let Err(error) = told.and_then(|()| py.check_signals()) {
            stop.store(true, Ordering::SeqCst);
            if raised.replace(error).is_some() {
                return raised.map_or(Ok(1), Err);
            }
        }
    }
}

/// Returns the options of a command: name, kind (`switch`, `value` or `values`), help, default and choices of each.
#[pyfunction]
pub(crate) fn _command_options(
    name: &str,
) -> Vec<(String, &'static str, String, String, Vec<String>)> {
    let command = forebay_cli::command();
    let Some(command) = command.get_subcommands().find(|c| c.get_name() == name) else {
        return Vec::new();
    };
    let mut options: Vec<_> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !arg.is_global_set())
        .filter_map(|arg| {
            let long = arg.get_long().filter(|&long| long != "help")?;
            let many = arg.get_num_args().is_some_and(|n| n.max_values() > 1)
                || arg.get_value_delimiter().is_some()
                || matches!(arg.get_action(), clap::ArgAction::Append);
            let kind = match (arg.get_action().takes_values(), many) {
                (false, _) => "switch",
                (true, false) => "value",
                (true, true) => "values",
            };
            let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string);
            let help = text(arg.get_help()).unwrap_or_default();
            let defaults = arg.get_default_values().iter();
            let default: Vec<_> = defaults.map(|value| value.to_string_lossy()).collect();
            let choices = arg.get_possible_values();
            let choices = choices.iter().filter(|_| kind != "switch");
            let choices = choices.map(|value| value.get_name().to_owned()).collect();
            Some((long.to_owned(), kind, help, default.join(","), choices))
        })
        .collect();
    options.sort();
    options
}
