//! Runs `forebay ls`, `cp` and `sync` between directories, as users do.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{forebay, images, run, text, tree};

struct Place(tempfile::TempDir);

impl Place {
    /// Creates a directory with a dataset in `shards`.
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let (images, shards) = (images(), place.path("shards"));
        let pack = [
            "pack",
            text(&images),
            text(&shards),
            "--format",
            "tfrecord",
            "--shards",
            "2",
            "-q",
        ];
        run(pack).done();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn a_dataset_is_listed_copied_and_read_again() {
    let place = Place::new();
    let (shards, copy) = (place.path("shards"), place.path("copy"));
    let ran = run(["ls", text(&shards)]).done();
    for part in ["dataset", "train", "fingerprint"] {
        assert!(ran.stdout.contains(part), "no {part}: {}", ran.stdout);
    }
    let listed = run(["ls", "--json", "-r", text(&shards)]).done();
    let manifest: serde_json::Value =
        serde_json::from_slice(&std::fs::read(shards.join("forebay.json")).unwrap()).unwrap();
    assert_eq!(listed.events()[0]["fingerprint"], manifest["fingerprint"]);
    assert_eq!(listed.summary()["objects"], tree(&shards).len());
    let long = run(["ls", "-l", text(&shards.join("index"))]).done();
    assert!(
        long.stdout.contains("Z ") && long.stdout.contains(".fbi"),
        "{}",
        long.stdout
    );

    let dry = run(["cp", "-n", text(&shards), text(&copy)]).done();
    assert!(
        dry.stdout.contains("would publish forebay.json"),
        "{}",
        dry.stdout
    );
    assert!(!copy.exists());
    let summary = run(["cp", "--json", text(&shards), text(&copy)])
        .done()
        .summary();
    assert_eq!(summary["objects"], tree(&shards).len());
    assert_eq!(summary["published"], 1);
    assert_eq!(tree(&copy), tree(&shards));
    run(["verify", text(&copy), "-q"]).done();
    let again = run(["cp", "--json", text(&shards), text(&copy)])
        .done()
        .summary();
    assert_eq!(again["published"], 0);
}

#[test]
fn mistakes_are_explained() {
    let place = Place::new();
    let (shards, other) = (place.path("shards"), place.path("other"));
    run(["cp", "missing", text(&other)]).failed_with(&["missing"]);
    run(["ls", text(&place.path("nothing"))]).failed_with(&["nothing"]);
    run(["cp", "-r", text(place.0.path()), text(&other)]).failed_with(&["overlaps"]);
    let plain = place.path("plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join("x"), b"x").unwrap();
    let ran = run(["cp", text(&plain), text(&other)]).code(2);
    assert!(
        ran.stderr.contains("-r copies everything"),
        "{}",
        ran.stderr
    );
    run(["cp", "-r", text(&plain), text(&other)]).done();
    let web = "https://127.0.0.1:9/x";
    run(["cp", text(&plain), web]).failed_with(&["nothing can be written"]);

    // A flipped byte in a shard is reported with the shard's name, and nothing is published.
    let mut names = tree(&shards).into_keys();
    let shard = names.find(|name| text(name).starts_with("train-")).unwrap();
    let mut bytes = std::fs::read(shards.join(&shard)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(shards.join(&shard), bytes).unwrap();
    let copy = place.path("copy");
    let ran = run(["cp", text(&shards), text(&copy)]).failed_with(&["damaged", text(&shard)]);
    assert!(ran.stderr.contains("forebay verify"), "{}", ran.stderr);
    assert!(!copy.join("forebay.json").exists());
}

#[test]
fn deletions_are_confirmed_and_reported() {
    let place = Place::new();
    let (shards, copy) = (place.path("shards"), place.path("copy"));
    run(["cp", text(&shards), text(&copy), "-q"]).done();
    std::fs::write(copy.join("extra"), b"x").unwrap();
    run(["cp", text(&shards), text(&copy)]).done();
    assert!(copy.join("extra").exists());
    let dry = run(["cp", "--delete-extra", "-n", text(&shards), text(&copy)]).done();
    assert!(dry.stdout.contains("would delete extra"), "{}", dry.stdout);
    let ran = run(["cp", "--delete-extra", text(&shards), text(&copy)]).done();
    assert!(ran.stdout.contains("delete extra"), "{}", ran.stdout);
    assert_eq!(tree(&copy), tree(&shards));
}

/// Returns whether a copy has started to write.
fn has_begun(copy: &Path) -> bool {
    let names = std::fs::read_dir(copy).into_iter().flatten().flatten();
    names.count() > 1
}

#[test]
fn a_stopped_or_killed_copy_is_continued() {
    let place = Place::new();
    let (shards, copy) = (place.path("shards"), place.path("copy"));
    for (signal, code) in [("INT", Some(130)), ("KILL", None)] {
        let _ = std::fs::remove_dir_all(&copy);
        // Slow enough to be still running when the signal arrives.
        let slowly = ["--bandwidth", "20kB", "--jobs", "2"];
        let mut child = forebay()
            .args(["cp", text(&shards), text(&copy)])
            .args(slowly)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begin = Instant::now();
        while !has_begun(&copy) {
            assert!(begin.elapsed() < Duration::from_secs(60), "it never began");
            std::thread::yield_now();
        }
        let id = child.id().to_string();
        let sent = std::process::Command::new("kill")
            .args([&format!("-{signal}"), &id])
            .status();
        assert!(sent.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), code);
        assert!(!copy.join("forebay.json").exists());
        let whole = tree(&shards);
        for (name, bytes) in tree(&copy) {
            let is_own = text(Path::new(name.file_name().unwrap())).starts_with('.');
            assert!(is_own || bytes == whole[&name], "half of {name:?}");
            assert!(signal == "KILL" || !is_own, "{name:?} stayed");
        }
        run(["cp", text(&shards), text(&copy), "-q"]).done();
        assert_eq!(tree(&copy), whole);
    }
}
