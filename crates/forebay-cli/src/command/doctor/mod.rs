//! `forebay doctor`: checks whether this machine is ready to train. To add a check, write a function that returns findings, and
//! add a line to [`CHECKS`].

mod dataset;
mod host;
mod memory;
mod network;
mod versions;

use std::path::PathBuf;

use clap::Args as ClapArgs;
use forebay_client::Url;
use forebay_store::Location;
use forebay_synthetic::is_synthetic;
use serde::Serialize;
use serde_json::json;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::store_args::StoreArgs;

/// Check whether this machine is ready to train, and what to change
///
/// One line for each check: ok, warning (training works, but may be slow or break later), problem (training would fail).
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Exits with 1 if there is a problem.

Examples:
  forebay doctor
  forebay doctor /data/imagenet
  forebay doctor s3://bucket/imagenet
  forebay doctor forebay://server:7070/imagenet
  forebay doctor /data/imagenet --json")]
pub(crate) struct Args {
    /// A dataset: a directory, a URL of a store, or of a server
    #[arg(value_name = "DATASET")]
    dataset: Option<PathBuf>,

    #[command(flatten)]
    store: StoreArgs,
}

/// The severity of a finding. A problem makes the command fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Problem,
}

/// The result of a check in one line. Warnings and problems have a remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    level: Level,
    message: String,
    remedy: Option<String>,
}

impl Finding {
    fn ok(message: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            message: message.into(),
            remedy: None,
        }
    }

    fn warning(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Warning,
            message: message.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn problem(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            level: Level::Problem,
            ..Self::warning(message, remedy)
        }
    }
}

/// The input of the checks.
struct Context<'a> {
    target: Option<Target>,
    store: &'a StoreArgs,
}

/// The dataset or server given on the command line.
enum Target {
    Dataset(Location),
    Server(Url),
}

/// A check returns its findings, or no findings if it does not apply to the machine or the target.
type Check = fn(&Context<'_>) -> Vec<Finding>;

/// All checks, in the order in which they are printed.
const CHECKS: &[(&str, Check)] = &[
    ("version", versions::forebay),
    ("python package", versions::python_package),
    ("kernel", versions::kernel),
    ("processors", host::processors),
    ("clock speed", host::governor),
    ("open files", host::open_files),
    ("locked memory", host::locked_memory),
    ("memory", memory::memory),
    ("shared memory", memory::shared_memory),
    ("huge pages", memory::huge_pages),
    ("file system", dataset::file_system),
    ("dataset", dataset::dataset),
    ("page cache", dataset::page_cache),
    ("server", network::server),
];

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let target = match &args.dataset {
        None => None,
        Some(text) if text.to_str().is_some_and(Url::is_one) => {
            let url = text.to_string_lossy().parse::<Url>();
            Some(Target::Server(
                url.map_err(|error| Failure::usage(error.to_string()))?,
            ))
        }
        Some(text) if text.to_str().is_some_and(is_synthetic) => {
            let what = "synthetic:// data is on no storage: there is nothing to check";
            return Err(Failure::usage(what));
        }
        Some(text) => Some(Target::Dataset(Location::parse(text)?)),
    };
    let context = Context {
        target,
        store: &args.store,
    };
    let (mut warnings, mut problems) = (0, 0);
    for (name, check) in CHECKS {
        for finding in check(&context) {
            warnings += u64::from(finding.level == Level::Warning);
            problems += u64::from(finding.level == Level::Problem);
            print(name, &finding, console);
        }
    }
    console.event(
        "summary",
        &json!({
            "command": "doctor",
            "exit_code": i32::from(problems > 0),
            "warnings": warnings,
            "problems": problems,
        }),
    );
    match problems {
        0 => Ok(Outcome::Done),
        1 => Err(Failure::new("training would fail: 1 problem was found")),
        n => Err(Failure::new(format!(
            "training would fail: {n} problems were found"
        ))),
    }
}

fn print(name: &str, finding: &Finding, console: &Console) {
    let paint = console.paint();
    let word = match finding.level {
        Level::Ok => "ok     ".to_owned(),
        Level::Warning => paint.yellow("warning"),
        Level::Problem => paint.red("problem"),
    };
    let remedy = finding
        .remedy
        .as_ref()
        .map_or_else(String::new, |remedy| format!("; {remedy}"));
    console.line(format!("{word}  {name}: {}{remedy}", finding.message));
    console.event(
        "check",
        &json!({
            "check": name,
            "level": finding.level,
            "message": finding.message,
            "remedy": finding.remedy,
        }),
    );
}

/// Reads a file of `/proc` or `/sys` without surrounding whitespace; `None` if it cannot be read.
fn read(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}
