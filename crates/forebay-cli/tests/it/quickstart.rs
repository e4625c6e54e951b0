//! Runs `forebay quickstart` end to end with the project's images.

use crate::support;

use std::fs;
use std::path::Path;

use support::{images, run, run_in, text, tree};

#[test]
fn the_whole_journey() {
    let dir = tempfile::tempdir().unwrap();
    let images = images().canonicalize().unwrap();
    let ran = run_in(dir.path(), ["quickstart", text(&images)]).done();
    for part in [
        "TFRecord",
        "indexed",
        "MB/s",
        "images/s",
        "batches/s",
        "decode",
        "quickstart-out/first-batch.png",
        "inspect quickstart-out/tfrecord",
        "serve quickstart-out/tfrecord",
        "pack YOUR_IMAGES",
    ] {
        assert!(ran.stdout.contains(part), "no {part:?} in\n{}", ran.stdout);
    }
    let out = dir.path().join("quickstart-out");
    let sheet = fs::read(out.join("first-batch.png")).unwrap();
    assert!(sheet.starts_with(b"\x89PNG\r\n\x1a\n"));
    run_in(
        dir.path(),
        [
            "verify",
            "quickstart-out/tfrecord",
            "quickstart-out/indexed",
        ],
    )
    .done();

    // A second run writes the same bytes and leaves other files alone.
    let first = tree(&out);
    fs::write(out.join("mine.txt"), "kept").unwrap();
    run_in(dir.path(), ["quickstart", text(&images), "-q"]).done();
    let mut second = tree(&out);
    assert_eq!(second.remove(Path::new("mine.txt")).unwrap(), b"kept");
    assert_eq!(first, second);
}

/// Runs outside the sources, as an installed binary does.
#[test]
fn images_are_generated_if_none_are_given() {
    let dir = tempfile::tempdir().unwrap();
    let ran = run_in(dir.path(), ["quickstart", "--json"]).done();
    assert_eq!(ran.summary()["records"], 48);
    let first = tree(&dir.path().join("quickstart-out"));
    run_in(dir.path(), ["quickstart", "-q"]).done();
    assert_eq!(first, tree(&dir.path().join("quickstart-out")));
}

#[test]
fn its_figures_are_json() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let ran = run([
        "quickstart",
        text(&images()),
        "--output",
        text(&out),
        "--json",
    ])
    .done();
    let summary = ran.summary();
    assert_eq!(summary["records"], 60);
    assert_eq!(summary["packs"].as_array().unwrap().len(), 2);
    let stream = &summary["stream"];
    assert_eq!(stream["images"], 48);
    assert_eq!(stream["padding"], 0);
    assert_eq!(
        stream["batches"].as_u64().unwrap() * stream["batch_size"].as_u64().unwrap(),
        48
    );
    let names: Vec<&str> = stream["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stage| stage["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["fetch", "decode", "transform", "send"]);
    assert!(stream["decoded"].as_u64().unwrap() >= 48, "{stream}");
}

#[test]
fn the_pictures_are_found_without_being_named() {
    // From another directory, it finds the images of the sources that the program was built from.
    let dir = tempfile::tempdir().unwrap();
    run_in(dir.path(), ["quickstart", "-q"]).done();
}

#[test]
fn other_files_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.tex"), "mine").unwrap();
    run(["quickstart", text(&images()), "--output", text(dir.path())])
        .failed_with(&["did not make"]);
    assert_eq!(tree(dir.path()).len(), 1);
    let out = dir.path().join("out");
    run(["quickstart", "/proc/nonexistent", "--output", text(&out)])
        .failed_with(&["/proc/nonexistent"]);
    assert!(!out.exists());
}
