//! Packs that are killed or stopped by Ctrl-C, and continued by the same command.

use crate::support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::{forebay, images, run, text, tree};

/// Number of shards of the pack: enough to be far from done when it is stopped.
const SHARDS: usize = 40;

/// Creates a source with many files from the project's images.
fn source(root: &Path) -> PathBuf {
    let source = root.join("src");
    for (path, bytes) in tree(&images()) {
        let Ok(path) = path.strip_prefix("train") else {
            continue;
        };
        for copy in 0..8 {
            let name = format!("{copy:02}_{}", text(Path::new(path.file_name().unwrap())));
            let to = source.join(path.parent().unwrap()).join(name);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(to, &bytes).unwrap();
        }
    }
    source
}

fn pack<'a>(source: &'a Path, root: &'a Path, shards: &'a str) -> [&'a str; 10] {
    let format = "tfrecord";
    [
        "pack",
        text(source),
        text(root),
        "--format",
        format,
        "--shards",
        shards,
        "--jobs",
        "2",
        "--json",
    ]
}

/// Runs the pack until it has reported `after` finished shards, then sends the signal.
fn stop(args: &[&str], after: usize, signal: &str) -> (Option<i32>, String, String) {
    let mut child = forebay()
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut events = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = 0;
    while seen < after {
        let line = events.next().expect("an event before the end").unwrap();
        seen += usize::from(line.contains("\"type\":\"shard\""));
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .unwrap()
            .success()
    );
    let rest: Vec<String> = events.map(Result::unwrap).collect();
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    let last = rest.last().cloned().unwrap_or_default();
    (child.wait().unwrap().code(), last, stderr)
}

#[test]
fn a_killed_pack_continues_and_is_byte_identical() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let shards = SHARDS.to_string();
    let whole = dir.path().join("whole");
    run(pack(&source, &whole, &shards)).done();
    let whole = tree(&whole);

    for after in [1, 7, 20] {
        let root = dir.path().join(format!("killed-{after}"));
        let args = pack(&source, &root, &shards);
        let (code, _, _) = stop(&args, after, "KILL");
        assert_eq!(code, None, "killed before it was done");
        assert!(
            !root.join("forebay.json").exists(),
            "nothing half-published"
        );
        run(["inspect", text(&root)]).failed_with(&["forebay.json"]);
        let hint = run(["inspect", text(&root)]).stderr;
        assert!(hint.contains("unfinished"), "{hint}");
        assert!(hint.contains("`forebay pack`"), "{hint}");

        // Other arguments do not continue this pack.
        let mut others = args.to_vec();
        others.extend(["--seed", "5"]);
        run(&others).failed_with(&["seed"]);

        let summary = run(args).done().summary();
        assert!(
            summary["resumed_shards"].as_u64().unwrap() >= after as u64,
            "{summary}"
        );
        assert_eq!(tree(&root), whole, "after {after}");
    }

    // A pack that is killed several times completes as well.
    let root = dir.path().join("killed-often");
    for after in [2, 8, 20] {
        stop(&pack(&source, &root, &shards), after, "KILL");
    }
    run(pack(&source, &root, &shards)).done();
    assert_eq!(tree(&root), whole);
}

#[test]
fn a_killed_conversion_continues_and_is_byte_identical() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let (jpegs, shards) = (dir.path().join("jpegs"), SHARDS.to_string());
    run(pack(&source, &jpegs, "3")).done();
    for form in ["fast", "fast-raw"] {
        let convert = |root: &Path| {
            let arguments = ["convert", text(&jpegs), text(root), "--format", "indexed"];
            let options = [
                "--images", form, "--shards", &shards, "--jobs", "1", "--json",
            ];
            let all = arguments.into_iter().chain(options);
            all.map(str::to_owned).collect::<Vec<_>>()
        };
        let whole = dir.path().join(format!("{form}-whole"));
        run(convert(&whole)).done();
        let root = dir.path().join(format!("{form}-killed"));
        let arguments = convert(&root);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        for after in [1, 9] {
            let (code, _, _) = stop(&arguments, after, "KILL");
            assert_eq!(code, None, "killed before it was done");
            assert!(
                !root.join("forebay.json").exists(),
                "nothing half-published"
            );
        }
        let summary = run(&arguments).done().summary();
        // A shard without a journal line is written again.
        assert!(
            summary["resumed_shards"].as_u64().unwrap() >= 7,
            "{summary}"
        );
        assert_eq!(tree(&root), tree(&whole));
    }
}

#[test]
fn ctrl_c_stops_cleanly_and_says_how_to_continue() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let shards = SHARDS.to_string();
    let root = dir.path().join("out");
    let args = pack(&source, &root, &shards);
    let (code, last, stderr) = stop(&args, 3, "INT");
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.starts_with("interrupted: "), "{stderr}");
    assert!(
        stderr.contains("hint: the same command again continues"),
        "{stderr}"
    );
    let last: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["type"], "interrupted");
    assert_eq!(last["exit_code"], 130);
    assert!(!root.join("forebay.json").exists());

    let summary = run(args).done().summary();
    assert!(summary["resumed_shards"].as_u64().unwrap() >= 3);
    run(["verify", text(&root)]).done();
}

#[test]
fn concurrent_packs_into_one_directory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path());
    let shards = SHARDS.to_string();
    let root = dir.path().join("out");
    let mut first = forebay()
        .args(pack(&source, &root, &shards))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut events = BufReader::new(first.stdout.take().unwrap()).lines();
    let is_shard = |line: &String| line.contains("\"type\":\"shard\"");
    while !is_shard(&events.next().unwrap().unwrap()) {}
    // The first pack is suspended while the second one tries.
    let signal = |name: &str| {
        let pid = first.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    };
    signal("STOP");
    let second = run(pack(&source, &root, &shards)).failed_with(&["in use"]);
    assert!(
        second.stderr.contains(&first.id().to_string()),
        "{}",
        second.stderr
    );
    signal("CONT");
    drop(events.by_ref().map(Result::unwrap).collect::<Vec<String>>());
    assert!(first.wait().unwrap().success());
    run(["verify", text(&root)]).done();
}

#[test]
fn a_stopped_verification_reports_its_progress() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("packed");
    run(pack(&images(), &root, "2")).done();
    // The same dataset many times, so that the verification takes long.
    let mut args = vec!["verify", "--deep"];
    args.resize(5000, text(&root));
    let mut child = forebay()
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("ok"));
    let pid = child.id().to_string();
    let kill = Command::new("kill").args(["-s", "INT", &pid]).status();
    assert!(kill.unwrap().success());
    let last = lines.map(Result::unwrap).last().unwrap_or_default();
    assert!(last.starts_with("stopped"), "{last}");
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{stderr}");
    assert!(stderr.contains("were verified"), "{stderr}");
}
