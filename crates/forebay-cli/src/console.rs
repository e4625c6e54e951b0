//! Output: results on stdout, everything else on stderr, events for programs.
//!
//! A reader that closes stdout (`| head`) is not an error: the command continues its work, and prints nothing more.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressDrawTarget};
use serde::Serialize;
use serde_json::json;

use crate::args::{Colour, GlobalArgs};
use crate::failure::{Failure, io_hint};
use crate::interrupt::Interrupt;
use crate::json_log;
use crate::paint::{Paint, safe};
use crate::progress::{Bar, Events};
use crate::table::Table;

/// Returns the program name that works in the user's shell: as it was called, without a directory that is on the PATH.
fn program_name(called: &OsStr) -> String {
    let called = Path::new(called);
    let on_path = called.parent().is_some_and(|dir| {
        std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|entry| entry == dir))
    });
    match called.file_name() {
        Some(name) if on_path => name.to_string_lossy().into_owned(),
        _ => called.to_string_lossy().into_owned(),
    }
}

/// The resolved output options, and the streams. Clones share them.
#[derive(Clone)]
pub struct Console {
    json: bool,
    quiet: u8,
    /// Whether results for people are hidden.
    hides_results: bool,
    verbose: u8,
    results: Paint,
    notes: Paint,
    show_bars: bool,
    bars: MultiProgress,
    /// The first error in writing to stdout; nothing is written after it.
    stdout_error: Arc<Mutex<Option<io::Error>>>,
    interrupt: Arc<Interrupt>,
    /// Whether the summary, which is the last event, was printed.
    summarised: Arc<AtomicBool>,
    /// Whether stderr is a log of JSON objects.
    json_log: Arc<AtomicBool>,
    /// Takes the events instead of stdout, with warnings, errors and progress among them; nothing is printed then.
    events: Option<Events>,
    program: String,
}

impl Console {
    /// Decides where and how output goes; `program` is the name that the user called.
    pub fn new(args: &GlobalArgs, program: &OsStr) -> Self {
        let stderr_is_terminal = io::stderr().is_terminal();
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colour = |terminal: bool| match args.color {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => terminal && !dumb && !no_color,
        };
        let show_bars = stderr_is_terminal && !dumb && !args.no_progress && args.quiet == 0;
        let bars = MultiProgress::with_draw_target(if show_bars {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        });
        Self {
            json: args.json,
            quiet: args.quiet,
            hides_results: false,
            verbose: args.verbose,
            results: Paint::new(colour(io::stdout().is_terminal())),
            notes: Paint::new(colour(stderr_is_terminal)),
            show_bars,
            bars,
            stdout_error: Arc::new(Mutex::new(None)),
            interrupt: Arc::new(Interrupt::listen()),
            summarised: Arc::new(AtomicBool::new(false)),
            json_log: Arc::default(),
            events: None,
            program: program_name(program),
        }
    }

    /// Creates a console for a program that takes the events, and sets `stop` where a user would press Ctrl-C.
    pub(crate) fn of_events(program: &OsStr, events: Events, stop: Arc<AtomicBool>) -> Self {
        Self {
            json: true,
            quiet: 2,
            hides_results: false,
            verbose: 0,
            results: Paint::new(false),
            notes: Paint::new(false),
            show_bars: false,
            bars: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()),
            stdout_error: Arc::default(),
            interrupt: Arc::new(Interrupt::of_flag(stop)),
            summarised: Arc::default(),
            json_log: Arc::default(),
            events: Some(events),
            program: program_name(program),
        }
    }

    /// Makes all of stderr JSON from now on, with one object per line: hides bars, and formats panics as JSON too.
    pub(crate) fn log_as_json(&self) {
        if self.json_log.swap(true, Ordering::Relaxed) {
            return;
        }
        self.bars.set_draw_target(ProgressDrawTarget::hidden());
        std::panic::set_hook(Box::new(|info| {
            let line = json_log::line("error", "panic", &info.to_string(), None);
            let _ = writeln!(io::stderr(), "{line}");
        }));
    }

    /// Writes a line for people to the JSON log, if stderr is one. Returns whether it is.
    fn logged(&self, level: &str, event: &str, text: &str, hint: Option<&str>) -> bool {
        let is_log = self.json_log.load(Ordering::Relaxed);
        if is_log {
            self.stderr_as_it_is(&json_log::line(level, event, text, hint));
        }
        is_log
    }

    /// Returns the name by which the user calls this program, for commands to type next.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Returns the handler of Ctrl-C.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Returns whether the user asked for details.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose > 0
    }

    /// Returns whether results are printed as events for a program.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Returns the colors of results.
    pub fn paint(&self) -> Paint {
        self.results
    }

    /// Makes `-q` hide results for people.
    pub(crate) fn results_are_a_report(&mut self) {
        self.hides_results = self.quiet > 0;
    }

    /// Prints a line of results for a person; nothing with `--json`.
    pub fn line(&self, text: impl AsRef<str>) {
        if !self.json && !self.hides_results {
            let text = safe(text.as_ref());
            self.stdout(|out| writeln!(out, "{text}"));
        }
    }

    /// Prints an empty line between results.
    pub fn blank(&self) {
        self.line("");
    }

    /// Prints a heading over results.
    pub fn heading(&self, text: impl AsRef<str>) {
        self.line(self.results.bold(text));
    }

    /// Prints a table of results.
    pub fn table(&self, table: &Table) {
        for line in table.lines(self.results) {
            self.line(line);
        }
    }

    /// Writes raw bytes as the result, with or without `--json`.
    pub(crate) fn write_bytes(&self, bytes: &[u8]) {
        self.stdout(|out| out.write_all(bytes));
    }

    /// Prints an event for a program: one line with the type, then the fields of the payload, which is a struct or a map.
    /// Prints nothing without `--json`.
    pub fn event(&self, kind: &str, payload: &impl Serialize) {
        if !self.json {
            return;
        }
        #[derive(Serialize)]
        struct Line<'a, T> {
            r#type: &'a str,
            #[serde(flatten)]
            payload: &'a T,
        }
        if kind == "summary" {
            self.summarised.store(true, Ordering::Relaxed);
        }
        let line = Line {
            r#type: kind,
            payload,
        };
        let line = serde_json::to_string(&line).unwrap_or_else(|error| {
            json!({"type": "error", "message": error.to_string()}).to_string()
        });
        if let Some(events) = &self.events {
            return events(line);
        }
        self.stdout(|out| writeln!(out, "{line}"));
    }

    /// Prints a note, which `-q` hides.
    pub fn note(&self, text: impl AsRef<str>) {
        if self.quiet == 0 && !self.logged("info", "note", text.as_ref(), None) {
            self.stderr(text.as_ref());
        }
    }

    /// Prints a log line unchanged on stderr. `-q` hides lines of `detail` 0, only `-v` shows those above 0, and only `-qq`
    /// hides those below 0.
    pub(crate) fn log_line(&self, line: &str, detail: i8) {
        let shown = match detail {
            ..0 => self.quiet < 2,
            0 => self.quiet == 0,
            1.. => self.verbose > 0 && self.quiet == 0,
        };
        if shown {
            self.stderr_as_it_is(line);
        }
    }

    /// Prints a note that only `-v` shows.
    pub(crate) fn detail(&self, text: impl AsRef<str>) {
        if self.verbose > 0 && self.quiet == 0 && !self.logged("debug", "note", text.as_ref(), None)
        {
            self.stderr(&self.notes.dim(text));
        }
    }

    /// Prints a warning, which `-qq` hides.
    pub(crate) fn warning(&self, text: impl AsRef<str>) {
        if self.events.is_some() {
            self.event("warning", &json!({"message": text.as_ref()}));
        } else if self.quiet < 2 && !self.logged("warning", "warning", text.as_ref(), None) {
            self.stderr(&format!(
                "{} {}",
                self.notes.yellow("warning:"),
                text.as_ref()
            ));
        }
    }

    /// Prints a line below a warning.
    pub(crate) fn warning_detail(&self, text: impl AsRef<str>) {
        if self.quiet < 2 && !self.logged("warning", "warning", text.as_ref(), None) {
            self.stderr(&format!("  {}", text.as_ref()));
        }
    }

    /// Prints the error line and its hint. With `--json`, also prints them as the last event, unless a summary was printed.
    pub(crate) fn failure(&self, failure: &Failure) {
        let (word, kind) = if failure.is_interruption() {
            (self.notes.yellow("interrupted:"), "interrupted")
        } else {
            (self.notes.red("error:"), "error")
        };
        let is_told = self.events.is_some()
            || self.logged("error", kind, failure.message(), failure.hint_line());
        if !is_told {
            self.stderr(&format!("{word} {failure}"));
            if let Some(hint) = failure.hint_line() {
                self.stderr(&format!("{} {hint}", self.notes.cyan("hint:")));
            }
        }
        if self.summarised.load(Ordering::Relaxed) && self.events.is_none() {
            // The summary is the last event, and reports the failure.
            return;
        }
        self.event(
            kind,
            &json!({
                "message": failure.message(),
                "hint": failure.hint_line(),
                "exit_code": failure.exit_code(),
            }),
        );
    }

    /// Starts a bar on the terminal for `total` bytes or items; invisible if bars are off.
    pub fn bar(&self, stage: &str, total: Option<u64>) -> Bar {
        Bar::start(
            &self.bars,
            stage,
            total,
            self.notes.is_on(),
            self.events.clone(),
        )
    }

    /// Minimum interval between progress events with `--json`.
    pub(crate) const EVENT_INTERVAL: Duration = Duration::from_secs(1);

    /// Returns whether the reader of stdout has closed it.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.stdout_error.lock().is_ok_and(|error| error.is_some())
    }

    /// Removes bars from the screen.
    pub(crate) fn clear_progress(&self) {
        let _ = self.bars.clear();
    }

    /// Flushes stdout. A reader that has closed it is no error, but a full disk is.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        self.stdout(|out| out.flush());
        let error = self.stdout_error.lock().map(|mut error| error.take());
        match error {
            Ok(Some(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                let hint = io_hint(&error);
                Err(Failure::new(format!("cannot write to stdout: {error}")).maybe_hint(hint))
            }
            _ => Ok(()),
        }
    }

    fn stdout(&self, write: impl FnOnce(&mut io::StdoutLock<'static>) -> io::Result<()>) {
        let Ok(mut first_error) = self.stdout_error.lock() else {
            return;
        };
        if first_error.is_some() {
            return;
        }
        let result = self.suspend(|| write(&mut io::stdout().lock()));
        if let Err(error) = result {
            *first_error = Some(error);
        }
    }

    fn stderr(&self, text: &str) {
        self.stderr_as_it_is(&safe(text));
    }

    fn stderr_as_it_is(&self, text: &str) {
        // Nothing can be reported if stderr itself is closed.
        let _ = self.suspend(|| writeln!(io::stderr().lock(), "{text}"));
    }

    fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        if self.show_bars {
            self.bars.suspend(write)
        } else {
            write()
        }
    }
}
