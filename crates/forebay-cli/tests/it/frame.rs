//! The common behavior of all commands: help, usage errors, exit codes, streams.

use crate::support;

use std::io::Read;
use std::process::Stdio;

use support::{forebay, run};

const COMMANDS: [&str; 13] = [
    "quickstart",
    "pack",
    "inspect",
    "view",
    "verify",
    "cat",
    "export",
    "index",
    "serve",
    "top",
    "doctor",
    "advise",
    "completions",
];

#[test]
fn help_goes_to_stdout_and_names_every_command() {
    let ran = run(["--help"]).done();
    assert!(ran.stderr.is_empty());
    for command in COMMANDS {
        assert!(ran.stdout.contains(&format!("  {command} ")), "{command}");
        let ran = run([command, "--help"]).done();
        assert!(ran.stdout.contains("Examples:"), "{command}");
    }
}

#[test]
fn version_is_one_line() {
    let ran = run(["--version"]).done();
    assert_eq!(
        ran.stdout,
        concat!("forebay ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn usage_errors_go_to_stderr_with_exit_code_2() {
    for args in [
        &["pakc"][..],
        &["pack"],
        &["pack", "a"],
        &["pack", "a", "b", "--format", "zip"],
        &["pack", "a", "b", "--format", "tfrecord", "--shards", "0"],
        &[
            "pack",
            "a",
            "b",
            "--format",
            "tfrecord",
            "--shard-size",
            "3 parsecs",
        ],
        &[
            "pack",
            "a",
            "b",
            "--format",
            "tfrecord",
            "--shards",
            "2",
            "--shard-size",
            "1GB",
        ],
        &["cat", "a"],
        &["cat", "a", "1", "--key", "k"],
        &["serve", "a", "--listen", "nowhere"],
        &["completions", "tcsh-like"],
        &["convert", "a", "b", "--format", "zip"],
        &["convert", "a", "b", "--seek-points", "fine"],
        &["bench", "stream", "a", "--run-time", "5"],
    ] {
        let ran = run(args).code(2);
        assert!(ran.stdout.is_empty(), "{args:?}: {}", ran.stdout);
        assert!(
            ran.stderr.starts_with("error: "),
            "{args:?}: {}",
            ran.stderr
        );
    }
    assert!(
        run(["pakc"]).stderr.contains("pack"),
        "suggests the near name"
    );
    let ran = forebay().output().unwrap();
    assert_eq!(ran.status.code(), Some(2), "no command at all is usage");
}

#[test]
fn listed_options_come_from_the_environment_and_flags_win() {
    let pack = |args: &[&str], name: &str, value: &str| {
        let mut command = forebay();
        command.args(["pack", "/proc/nonexistent", "b"]).args(args);
        support::Ran::from(command.env(name, value).output().unwrap())
    };
    pack(&[], "FOREBAY_JOBS", "many").code(2);
    pack(&["--jobs", "1"], "FOREBAY_JOBS", "many").code(1);
    assert!(
        pack(&[], "FOREBAY_COLOR", "always")
            .stderr
            .contains("\u{1b}[")
    );
}

/// Variables that change a dataset's bytes or permit a deletion would act on a whole shell.
#[test]
fn other_options_have_no_variable() {
    let dir = tempfile::tempdir().unwrap();
    let source = support::images();
    let ran = forebay()
        .args(["pack", support::text(&source)])
        .arg(dir.path().join("out"))
        .arg("--dry-run")
        .env("FOREBAY_SHARDS", "3")
        .env("FOREBAY_SHRADS", "3")
        .output()
        .unwrap();
    let ran = support::Ran::from(ran).done();
    assert!(
        ran.stdout.contains("train-00000-of-00001"),
        "{}",
        ran.stdout
    );
    for said in [
        "FOREBAY_SHARDS is not read; give --shards on the command line",
        "FOREBAY_SHRADS is not read; the variables are FOREBAY_CACHE_BYTES",
    ] {
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn errors_are_one_line_and_a_hint_coloured_only_on_request() {
    let ran =
        run(["inspect", "/proc/nonexistent"]).failed_with(&["/proc/nonexistent", "No such file"]);
    assert!(ran.stdout.is_empty());
    assert!(ran.stderr.contains("\nhint: "), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\x1b'));
    let painted = run(["inspect", "/proc/nonexistent", "--color", "always"]).code(1);
    assert!(painted.stderr.contains("\x1b["), "{}", painted.stderr);
}

#[test]
fn errors_are_events_too() {
    let ran = run(["inspect", "/proc/nonexistent", "--json"]).code(1);
    let last = ran.events().pop().unwrap();
    assert_eq!(last["type"], "error");
    assert_eq!(last["exit_code"], 1);
    assert!(last["hint"].is_string());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = forebay()
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!(stderr, "");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_full_disk_behind_stdout_is_an_error() {
    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
        return;
    };
    let output = forebay()
        .args(["completions", "bash"])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("error: cannot write to stdout"),
        "{stderr}"
    );
}

#[test]
fn completions_know_the_options() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let ran = run(["completions", shell]).done();
        assert!(ran.stdout.contains("shard-size"), "{shell}");
        assert!(ran.stderr.is_empty());
    }
}
