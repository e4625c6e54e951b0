//! FIFOs, devices and sockets in place of files of a dataset: an error at once, instead of an endless read.

use crate::support;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::*;

/// No command here takes this long unless it hangs.
const LONG: Duration = Duration::from_secs(60);

/// Runs a command to its end, and fails if it does not end.
#[track_caller]
fn ends(mut command: Command) -> Output {
    let shown = format!("{command:?}");
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > LONG {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{shown} hangs");
        }
        std::thread::yield_now();
    }
    child.wait_with_output().unwrap()
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_fifo_in_place_of_any_file_of_a_dataset_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let images = images();
    let source = text(&images);
    for format in ["tfrecord", "indexed"] {
        let set = dir.path().join(format);
        let place = text(&set);
        run([
            "pack", source, place, "-q", "--format", format, "--shards", "2",
        ])
        .done();
        for (name, kept) in tree(&set) {
            let file = set.join(&name);
            std::fs::remove_file(&file).unwrap();
            fifo(&file);
            let out = dir.path().join("out");
            let out = text(&out);
            for args in [
                vec!["verify", place],
                vec!["inspect", place],
                vec!["cat", place, "1"],
                vec!["export", place, out],
                vec!["convert", place, out, "--format", "indexed"],
                vec!["index", place],
                vec!["cp", place, out],
                vec!["verify", text(&file)],
            ] {
                let mut command = forebay();
                command.args(&args);
                let ended = ends(command);
                // No command reads DALI's index of a shard or the report of a pack.
                let is_aside = name.extension() == Some("idx".as_ref()) || name.starts_with("pack");
                let is_needed = name.ends_with("forebay.json") || args[0] == "verify" && !is_aside;
                assert!(
                    !(is_needed && ended.status.success()),
                    "{args:?} with {name:?}"
                );
                let _ = std::fs::remove_dir_all(out);
            }
            std::fs::remove_file(&file).unwrap();
            std::fs::write(&file, kept).unwrap();
        }
    }
}

#[test]
fn a_fifo_in_place_of_an_input_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let images = images();
    let source = text(&images);
    let path = |name: &str| text(&dir.path().join(name)).to_owned();
    for name in ["labels.csv", "set.tar", "token", "config.toml"] {
        fifo(Path::new(&path(name)));
    }
    let (labels, token) = (path("labels.csv"), path("token"));
    let (archive, config) = (path("set.tar"), path("config.toml"));
    let (to, set) = (path("out"), path("set"));
    run(["pack", source, &set, "-q", "--format", "tfrecord"]).done();
    let pack = ["pack", source, &to, "--format", "tfrecord"];
    for (args, named) in [
        ([&pack[..], &["--labels", &labels]].concat(), &labels),
        ([&pack[..], &["--classes", &labels]].concat(), &labels),
        (
            vec!["pack", &archive, &to, "--format", "tfrecord"],
            &archive,
        ),
        (vec!["serve", &config], &config),
        (
            vec![
                "serve",
                &set,
                "--listen",
                "127.0.0.1:0",
                "--token-file",
                &token,
            ],
            &token,
        ),
    ] {
        let mut command = forebay();
        command.args(&args);
        let ended = ends(command);
        let shown = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success(), "{args:?}");
        assert!(shown.contains(named.as_str()), "{args:?}: {shown}");
    }
}

#[test]
fn small_inputs_may_come_through_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let set = dir.path().join("set");
    run([
        "pack",
        text(&images()),
        text(&set),
        "-q",
        "--format",
        "tfrecord",
    ])
    .done();
    let script =
        r#"exec "$0" serve "$1" --dry-run --token-file <(echo 0123456789abcdef0123456789abcdef)"#;
    let mut command = Command::new("bash");
    command
        .args(["-c", script])
        .arg(env!("CARGO_BIN_EXE_forebay"))
        .arg(&set);
    let ended = ends(command);
    let shown = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{shown}");
}

#[test]
fn ls_names_the_entries_that_it_leaves_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("below")).unwrap();
    for name in ["good", "below/more"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    fifo(&dir.path().join("pipe"));
    std::os::unix::fs::symlink("nowhere", dir.path().join("below/broken")).unwrap();
    for (args, expected) in [
        (vec!["ls"], vec!["pipe"]),
        (vec!["ls", "-r"], vec!["below/broken", "pipe"]),
    ] {
        let listed = run(args.into_iter().chain([text(dir.path())])).done();
        let warnings = listed
            .stderr
            .lines()
            .filter(|l| l.contains("is not listed"));
        let mut named: Vec<&str> = warnings
            .map(|line| expected.iter().find(|name| line.contains(*name)).unwrap())
            .copied()
            .collect();
        named.sort_unstable();
        assert_eq!(named, expected, "{}", listed.stderr);
        assert!(listed.stdout.contains("good"), "{}", listed.stdout);
        assert!(!listed.stdout.contains("pipe") && !listed.stdout.contains("broken"));
    }
}
