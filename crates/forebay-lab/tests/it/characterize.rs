//! `forebay-lab characterize` and `compare`.

use std::fs;
use std::path::Path;

use crate::support::{Ran, run, text};

fn characterize(medium: &Path, more: &[&str]) -> Ran {
    let mut args = vec!["characterize", text(medium), "--yes"];
    args.extend([
        "--files",
        "64",
        "--size",
        "4MiB",
        "--run-time",
        "20ms",
        "--runs",
        "2",
    ]);
    args.extend(more);
    run(args)
}

#[test]
fn a_report_has_json_markdown_a_page_and_plots() {
    let dir = tempfile::tempdir().unwrap();
    let (medium, report) = (dir.path().join("medium"), dir.path().join("report"));
    let ran = characterize(
        &medium,
        &[
            "--experiment",
            "e1,E4,E6",
            "--threads",
            "1,2",
            "--report",
            text(&report),
        ],
    )
    .done();
    for shown in ["E1 Sizes", "E4 Ceiling", "read, 4 tasks", "cold share"] {
        assert!(ran.stdout.contains(shown), "{shown}: {}", ran.stdout);
    }
    assert!(ran.stderr.contains("removed at the end"), "{}", ran.stderr);
    assert_eq!(
        fs::read_dir(&medium).unwrap().count(),
        0,
        "the medium is left empty"
    );
    let page = fs::read_to_string(report.join("report.html")).unwrap();
    assert!(
        page.contains("<svg") && page.contains("Table I"),
        "plots and published figures are in the page"
    );
    assert!(report.join("E1-1.svg").is_file() && report.join("report.md").is_file());

    let compared = run(["compare", text(&report), text(&report)]).done();
    assert!(
        compared.stdout.contains("the same") && compared.stdout.contains("within the spread"),
        "{}",
        compared.stdout
    );
    assert!(!compared.stdout.contains("worse"), "{}", compared.stdout);
}

#[test]
fn a_report_is_an_event_too() {
    let dir = tempfile::tempdir().unwrap();
    let events = characterize(dir.path(), &["--experiment", "E1", "--json"])
        .done()
        .events();
    let report = events
        .iter()
        .find(|event| event["type"] == "report")
        .unwrap();
    let rows = report["experiments"][0]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["class"] == "published"));
    assert!(rows.iter().any(|row| row["class"] == "measured"));
    assert_eq!(events.last().unwrap()["type"], "summary");
}

#[test]
fn the_catalog_is_listed() {
    let ran = run(["characterize", "--list"]).done();
    assert!(
        ran.stdout.contains("E17")
            && ran.stdout.contains("Prefetch on and off")
            && ran.stdout.contains("E34"),
        "{}",
        ran.stdout
    );
}

#[test]
fn invalid_options_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let medium = dir.path().join("medium");
    let run = |args: &[&str]| {
        let all = ["characterize", text(&medium)]
            .into_iter()
            .chain(args.iter().copied());
        let ran = run(all);
        assert!(!medium.exists());
        ran
    };
    run(&["--experiment", "E1"])
        .code(2)
        .explains("error: ", &["--yes"]);
    run(&["--experiment", "E99", "--yes"])
        .code(2)
        .explains("error: ", &["\"E99\"", "E1, E2"]);
    run(&["--files", "3", "--yes"])
        .code(2)
        .explains("error: ", &["--files"]);
    run(&["--threads", "0", "--yes"])
        .code(2)
        .explains("error: ", &["--threads"]);
    run(&["--ranks", "0", "--yes"])
        .code(2)
        .explains("error: ", &["--ranks", "1 to 64"]);
    run(&["--consumer", "a100", "--yes"])
        .code(2)
        .explains("error: ", &["\"a100\"", "v100-resnet50-fp16", "step:"]);
    run(&["--limit", "latency=8ms", "--yes"])
        .code(2)
        .explains("error: ", &["latency", "dm-delay"]);
    run(&["--limit", "reads=0", "--yes"])
        .code(2)
        .explains("error: ", &["above 0"]);
    run(&["--size", "9000000TB", "--yes"]).failed_with(&["free"]);
}

#[test]
fn formats_are_compared_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let (medium, report) = (dir.path().join("medium"), dir.path().join("report"));
    let formats = |more: &[&str]| {
        let mut args = vec!["characterize", text(&medium), "--yes", "--files", "48"];
        args.extend(["--experiment", "E20,E21,E24", "--size", "4MiB"]);
        args.extend(["--batch-size", "16", "--run-time", "10ms", "--runs", "1"]);
        args.extend(more);
        run(args)
    };
    let ran = formats(&[
        "--formats",
        "files,indexed",
        "--cold",
        "off",
        "--report",
        text(&report),
    ])
    .done();
    // A row is called cold only if the file system reports which bytes of a file are in the page cache.
    for row in [
        "image files, 4 workers",
        "indexed, 1 worker",
        "chunks of 64",
    ] {
        let names = ["cold", "caches emptied"].map(|name| format!("{row}, {name}"));
        let is_shown = names.iter().any(|name| ran.stdout.contains(name));
        assert!(is_shown, "{row}: {}", ran.stdout);
    }
    assert!(ran.stdout.contains("ms waiting a batch"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("samples are wrong"), "{}", ran.stdout);
    assert!(report.join("report.html").is_file());
    assert_eq!(fs::read_dir(&medium).unwrap().count(), 0);

    formats(&["--formats", "bmp"])
        .code(2)
        .explains("error: ", &["bmp", "--formats"]);
    formats(&["--files", "3"])
        .code(2)
        .explains("error: ", &["--files"]);
}

#[test]
fn invalid_reports_are_named() {
    let dir = tempfile::tempdir().unwrap();
    run(["compare", text(dir.path()), text(dir.path())]).failed_with(&["report.json"]);
    let file = dir.path().join("other.json");
    fs::write(&file, "{}").unwrap();
    run(["compare", text(&file), text(&file)]).failed_with(&["other.json"]);
}
