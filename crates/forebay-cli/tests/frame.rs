//! What every command has in common: help, usage errors, exit codes, streams.

mod support;

use std::io::Read;
use std::process::Stdio;

use support::{forebay, run};

const COMMANDS: [&str; 10] = [
    "quickstart",
    "pack",
    "inspect",
    "verify",
    "cat",
    "export",
    "index",
    "serve",
    "top",
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
        &["pack", "a", "b"],
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
fn options_come_from_the_environment_and_flags_win() {
    let missing = ["inspect", "/nonexistent"];
    let json = forebay()
        .args(missing)
        .env("FOREBAY_JSON", "1")
        .output()
        .unwrap();
    assert!(
        json.stdout.starts_with(b"{\"type\":\"error\""),
        "{:?}",
        json.stdout
    );
    let plain = forebay()
        .args(missing)
        .env("FOREBAY_JSON", "no")
        .output()
        .unwrap();
    assert!(plain.stdout.is_empty());
    let wrong = forebay()
        .args(["pack", "a", "b", "--format", "tfrecord"])
        .env("FOREBAY_JOBS", "many")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    let flag = forebay()
        .args([
            "pack",
            "/nonexistent",
            "b",
            "--format",
            "tfrecord",
            "--jobs",
            "1",
        ])
        .env("FOREBAY_JOBS", "many")
        .output()
        .unwrap();
    assert_eq!(flag.status.code(), Some(1));
}

#[test]
fn a_flag_wins_over_a_variable_that_it_excludes() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("out");
    let source = support::images();
    let pack = [
        "pack",
        support::text(&source),
        support::text(&root),
        "--format",
        "tfrecord",
        "-n",
    ];
    let run = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = forebay();
        command
            .args(pack)
            .args(flags)
            .envs(variables.iter().copied());
        support::Ran::from(command.output().unwrap())
    };
    let shards = ("FOREBAY_SHARDS", "3");
    let size = ("FOREBAY_SHARD_SIZE", "256MiB");
    assert!(
        run(&[], &[shards])
            .done()
            .stdout
            .contains("train-00000-of-00003")
    );
    for flag in [&["--shard-size", "1GiB"][..], &["--shard-size=1GiB"]] {
        assert!(
            run(flag, &[shards])
                .done()
                .stdout
                .contains("train-00000-of-00001")
        );
    }
    assert!(
        run(&["--shards", "2"], &[size])
            .done()
            .stdout
            .contains("train-00000-of-00002")
    );
    run(&[], &[shards, size]).code(2);
    run(&["--shards", "2", "--shard-size", "1GiB"], &[]).code(2);
    let cat = forebay()
        .args(["cat", "/nonexistent", "0"])
        .env("FOREBAY_KEY", "k")
        .output();
    assert_eq!(
        cat.unwrap().status.code(),
        Some(1),
        "the number was given: the key is not used"
    );
}

#[test]
fn errors_are_one_line_and_a_hint_coloured_only_on_request() {
    let ran = run(["inspect", "/nonexistent"]).failed_with(&["/nonexistent", "No such file"]);
    assert!(ran.stdout.is_empty());
    assert!(ran.stderr.contains("\nhint: "), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\x1b'));
    let painted = run(["inspect", "/nonexistent", "--color", "always"]).code(1);
    assert!(painted.stderr.contains("\x1b["), "{}", painted.stderr);
}

#[test]
fn errors_are_events_too() {
    let ran = run(["inspect", "/nonexistent", "--json"]).code(1);
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
