//! Names and keys from others cannot control a terminal.

use crate::support;

use std::fs;
use std::path::Path;

use support::{Ran, images, run, text};

/// Sets a title, clears the screen, forges a line, and reverses the direction of text.
const HOSTILE: &str = "n\u{1b}]0;owned\u{7}\u{1b}[2J\r\nerror: \u{202e}\u{9b}31m";

#[track_caller]
fn is_harmless(ran: &Ran) {
    for out in [&ran.stdout, &ran.stderr] {
        let bad = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!out.contains(bad), "{out:?}");
        assert!(
            !out.lines().any(|line| line.starts_with("error: \\u{202e}")),
            "{out}"
        );
    }
}

fn an_image() -> Vec<u8> {
    let class = images().join("train/n02782093");
    let file = fs::read_dir(class).unwrap().next().unwrap().unwrap();
    fs::read(file.path()).unwrap()
}

#[test]
fn names_of_others_are_escaped_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let (source, shards) = (dir.path().join("source"), dir.path().join("shards"));
    let class = source.join("train").join(HOSTILE.replace('/', "_"));
    fs::create_dir_all(&class).unwrap();
    let file = |name: &str| class.join(format!("{name}{}.jpg", HOSTILE.replace('/', "_")));
    fs::write(file("good"), an_image()).unwrap();
    let pack = |more: &[&str]| {
        let mut args = vec!["pack", text(&source), text(&shards), "--format", "indexed"];
        args.extend(more);
        run(args)
    };
    is_harmless(&pack(&["--dry-run"]));
    is_harmless(&pack(&[]).done());
    let shards = text(&shards);
    for args in [
        &["inspect", shards][..],
        &["inspect", shards, "--color", "always"],
        &["ls", shards],
        &["cat", shards, "0"],
        &["verify", shards],
        &["verify", shards, "--compare-source", text(&source)],
    ] {
        let ran = run(args);
        match args.contains(&"always") {
            true => assert!(!ran.stdout.contains("\u{1b}]"), "{:?}", ran.stdout),
            false => is_harmless(&ran),
        }
    }
    // Errors escape names of files and of locations too.
    fs::write(file("bad"), b"no image").unwrap();
    let again = dir.path().join("again");
    let failed = run(["pack", text(&source), text(&again), "--on-bad", "fail"]);
    is_harmless(&failed);
    assert_ne!(failed.code, 0);
    for command in ["inspect", "verify", "ls"] {
        let missing = run([command, text(&Path::new(shards).join(HOSTILE))]);
        is_harmless(&missing);
        assert_ne!(missing.code, 0);
    }
}
