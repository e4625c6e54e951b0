//! Runs `forebay doctor`, and checks the cache state in `forebay bench`.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{images, run, text};

fn events(stdout: &str) -> Vec<Value> {
    let lines = stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect()
}

/// Packs images as an indexed dataset without seek points.
fn pack(images: &Path, dir: &Path) -> PathBuf {
    let packed = dir.join("packed");
    let to = ["--format", "indexed", "--seek-points", "off"];
    run([&["pack", text(images), text(&packed)], &to[..]].concat()).done();
    packed
}

#[test]
fn a_machine_without_a_dataset_is_checked() {
    let ran = run(["doctor"]).done();
    for name in ["version", "kernel", "processors", "open files", "memory"] {
        assert!(
            ran.stdout.contains(&format!("  {name}: ")),
            "{name}: {}",
            ran.stdout
        );
    }
    assert!(!ran.stdout.contains("  dataset: "));
}

#[test]
fn a_limit_on_open_files_that_suffices_is_no_problem() {
    let (dir, images) = (tempfile::tempdir().unwrap(), images());
    let packed = pack(&images, dir.path());
    let limited = |limit: u32| -> support::Ran {
        let mut shell = std::process::Command::new("sh");
        let script = format!("ulimit -n {limit} && exec \"$@\"");
        let program = support::forebay();
        shell
            .args(["-c", script.as_str(), "sh"])
            .arg(program.get_program());
        shell.args(["doctor", text(&packed)]);
        shell.output().expect("a shell").into()
    };
    let line = |ran: &support::Ran| {
        let mut lines = ran.stdout.lines();
        lines
            .find(|line| line.contains("  open files: "))
            .unwrap()
            .to_owned()
    };
    let ran = limited(100).done();
    assert!(line(&ran).starts_with("ok"), "{}", ran.stdout);
    assert!(line(&ran).contains("of the dataset"), "{}", ran.stdout);
    let ran = limited(40).code(1);
    assert!(line(&ran).starts_with("problem"), "{}", ran.stdout);
}

#[test]
fn a_damaged_dataset_is_a_problem() {
    let (dir, images) = (tempfile::tempdir().unwrap(), images());
    let packed = pack(&images, dir.path());
    let ran = run(["doctor", text(&packed), "--json"]).done();
    let checks = events(&ran.stdout);
    let of = |name: &str| checks.iter().find(|event| event["check"] == name).cloned();
    assert_eq!(of("dataset").expect("a check")["level"], "ok");
    let summary = checks.last().expect("a summary");
    assert_eq!(
        (&summary["command"], &summary["exit_code"]),
        (&"doctor".into(), &0.into())
    );
    assert_eq!(summary["problems"], 0);
    #[cfg(target_os = "linux")]
    assert!(of("file system").is_some());
    let shard = fs::read_dir(&packed)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let shard = shard
        .filter(|path| path.extension().is_some_and(|e| e == "fbs"))
        .min()
        .unwrap();
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let ran = run(["doctor", text(&packed), "--json"]).code(1);
    assert_eq!(
        events(&ran.stdout).last().expect("a summary")["exit_code"],
        1
    );
    let ran = run(["doctor", text(&packed)]).code(1);
    let line = ran
        .stdout
        .lines()
        .find(|line| line.contains("  dataset: "))
        .unwrap();
    assert!(
        line.starts_with("problem") && line.contains(text(&shard)),
        "{line}"
    );
    assert!(
        ran.stderr.contains("training would fail: 1 problem"),
        "{}",
        ran.stderr
    );
    let ran = run(["doctor", text(&dir.path().join("none"))]).code(1);
    assert!(ran.stdout.contains("problem  dataset: "), "{}", ran.stdout);
    run(["doctor", "forebay://127.0.0.1:1/x"]).code(1);
    run(["doctor", "synthetic://imagenet"]).code(2);
}

#[test]
fn benchmarks_report_what_was_cached() {
    let (dir, images) = (tempfile::tempdir().unwrap(), images());
    let packed = pack(&images, dir.path());
    let storage = [
        "bench",
        "storage",
        text(&packed),
        "--files",
        text(&images),
        "--batch-size",
        "8",
        "--runs",
        "1",
        "--depth",
        "1",
    ];
    let ran = run(storage).done();
    for part in [
        "cold share",
        "cache",
        "single files",
        "of what this storage can give",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let ran = run([
        "bench",
        "read",
        text(&packed),
        "--runs",
        "1",
        "--json",
        "--cold",
        "advise",
    ])
    .done();
    for row in events(&ran.stdout)
        .iter()
        .flat_map(|event| event["rows"].as_array().unwrap())
    {
        assert!(
            row["cache"].is_string() && row["proof"].is_string(),
            "{row}"
        );
    }
    let ran = run(["bench", "read", text(&packed), "--cold", "direct"]).code(1);
    assert!(ran.stderr.contains("use --cold advise"), "{}", ran.stderr);
    run(["bench", "read", text(&packed), "--cold", "ice"]).code(2);
}
