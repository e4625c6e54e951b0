//! A pack that is killed at any moment can be continued, and the result equals that of an undisturbed pack byte for byte.
//!
//! The killed process is this test binary, started again with `child` as its only test.

use crate::support;

use forebay_pack::{
    Cancel, DatasetFormat, ExportOptions, FinishOptions, Sharding, export, finish, prepare,
};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;
use support::*;

const SRC: &str = "FOREBAY_TEST_KILLED_SRC";
const DST: &str = "FOREBAY_TEST_KILLED_DST";
/// A part, such as 1/2, to pack instead of everything.
const PART: &str = "FOREBAY_TEST_KILLED_PART";

/// The work of the killed process. Without the environment variables, this test does nothing.
#[test]
fn child() {
    let (Some(src), Some(dst)) = (std::env::var_os(SRC), std::env::var_os(DST)) else {
        return;
    };
    if Path::new(&dst).to_string_lossy().contains("writer") {
        return crate::writer::write_in_child(Path::new(&dst));
    }
    if Path::new(&dst).to_string_lossy().contains("export") {
        let mut options = ExportOptions::new(Path::new(&src), Path::new(&dst));
        options.jobs = Some(1);
        return drop(export(&options, &(), &Cancel::new()).unwrap());
    }
    let mut options = options(Path::new(&src), Path::new(&dst));
    (options.jobs, options.sharding) = (Some(1), Sharding::Count(2));
    if Path::new(&dst).to_string_lossy().contains("indexed") {
        options.format = DatasetFormat::INDEXED;
    }
    match std::env::var(PART) {
        Ok(part) => {
            let prepared = prepare(&options, &(), &Cancel::new()).unwrap();
            let part = part.parse().unwrap();
            prepared.run_part(part, &(), &Cancel::new()).unwrap();
        }
        Err(_) => drop(run(&options).unwrap()),
    }
}

/// Returns the command that packs `src` into `dst`, preceded by the words in `front`.
pub(crate) fn victim(front: &[String], src: &Path, dst: &Path) -> Command {
    let this = std::env::current_exe().unwrap();
    let mut words: Vec<std::ffi::OsString> = front.iter().map(Into::into).collect();
    words.push(this.into());
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .args(["killed::child", "--exact", "--test-threads=1"]);
    command
        .env(SRC, src)
        .env(DST, dst)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn source(dir: &Path) -> std::path::PathBuf {
    let src = dir.join("src");
    tree(&src, 3, 8);
    put(&src, b"n00000001/bad.jpg", b"bad");
    put(
        &src,
        b"n00000001/big.jpg",
        &jpeg(400, 300, 3, &noise(7, 3 << 20)),
    );
    src
}

/// Checks that a dataset without a manifest is incomplete after a kill, and that a rerun completes it.
fn assert_recovers(src: &Path, dst: &Path, whole: &Path, moment: &str) {
    if dst.join("forebay.json").exists() {
        forebay_shard::Dataset::open(dst)
            .unwrap()
            .split("train")
            .unwrap();
    }
    let status = victim(&[], src, dst).status().unwrap();
    assert!(status.success(), "{moment}: the rerun failed");
    assert_same(whole, dst);
}

/// Returns the strace command that injects a fault into the system call `call` at its occurrence `number`.
fn strace(call: &str, inject: &str, number: u32) -> Vec<String> {
    let trace = format!("trace={call}");
    let inject = format!("inject={call}:{inject}:when={number}");
    let words = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        &trace,
        "-e",
        &inject,
    ];
    let mut words = words.map(str::to_owned).to_vec();
    if inject.contains(":error=") {
        // Other calls do not stop the process. In this mode strace sends no signal itself.
        words.insert(1, "--seccomp-bpf".to_owned());
    }
    words
}

fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    // strace ends with the same signal as its child.
    status.signal() == Some(9) || status.code() == Some(137)
}

/// Every how many calls one is killed or fails: there are far more writes than other calls.
fn step_of(call: &str) -> usize {
    match call {
        "write" if !forebay_rigs::is_full_test() => 5,
        _ => 1,
    }
}

#[test]
fn killed_at_every_step_that_changes_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    if !strace_works(dir.path()) {
        eprintln!("skipped: strace is not there or may not trace");
        return;
    }
    let src = source(dir.path());
    for format in [
        "tfrecord",
        "indexed",
        "writer tfrecord",
        "writer indexed",
        "writer staged",
    ] {
        let whole = dir.path().join(format!("{format} whole"));
        assert!(victim(&[], &src, &whole).status().unwrap().success());
        let mut kills = 0;
        for call in [
            "mkdir",
            "write",
            "fsync",
            "fdatasync",
            "rename",
            "unlink",
            "unlinkat",
            "rmdir",
            "fadvise64",
        ] {
            for number in (1..).step_by(step_of(call)) {
                let dst = dir.path().join(format!("{format} {call} {number}"));
                let front = strace(call, "signal=SIGKILL", number);
                let status = victim(&front, &src, &dst).status().unwrap();
                if !was_killed(status) {
                    assert!(status.success(), "{format} {call} {number}: {status}");
                    break;
                }
                kills += 1;
                assert_recovers(&src, &dst, &whole, &format!("{format} {call} {number}"));
                std::fs::remove_dir_all(&dst).unwrap();
            }
        }
        assert!(kills > 20, "{format}: only {kills} kills");
    }
}

#[test]
fn a_pack_of_synset_tars_is_killed_at_every_rename() {
    let dir = tempfile::tempdir().unwrap();
    if !strace_works(dir.path()) {
        eprintln!("skipped: strace is not there or may not trace");
        return;
    }
    let tars = crate::synset_tars::tars_of(&source(dir.path()));
    let whole = dir.path().join("whole");
    assert!(victim(&[], &tars, &whole).status().unwrap().success());
    for number in 1.. {
        let dst = dir.path().join(format!("rename {number}"));
        let front = strace("rename", "signal=SIGKILL", number);
        let status = victim(&front, &tars, &dst).status().unwrap();
        if !was_killed(status) {
            assert!(status.success() && number > 5, "{number}: {status}");
            break;
        }
        assert_recovers(&tars, &dst, &whole, &format!("rename {number}"));
    }
}

#[test]
fn a_killed_export_leaves_no_temporary_files_to_its_rerun() {
    let dir = tempfile::tempdir().unwrap();
    if !strace_works(dir.path()) {
        eprintln!("skipped: strace is not there or may not trace");
        return;
    }
    let (src, shards) = (dir.path().join("src"), dir.path().join("shards"));
    tree(&src, 2, 4);
    run(&options(&src, &shards)).unwrap();
    // The first lock is that of the directory, followed by those of temporary files.
    let (mut strays, mut kills) = (0, 0);
    for (call, number) in [
        ("flock", 2),
        ("flock", 5),
        ("renameat2", 1),
        ("renameat2", 8),
    ] {
        let dst = dir.path().join(format!("export {call} {number}"));
        let front = strace(call, "signal=SIGKILL", number);
        kills += u32::from(was_killed(victim(&front, &shards, &dst).status().unwrap()));
        let found = contents(&dst);
        let names = found.keys().filter_map(|path| path.to_str());
        strays += names.filter(|name| name.ends_with(".forebay-tmp")).count();
        let status = victim(&[], &shards, &dst).status().unwrap();
        assert!(status.success(), "{call} {number}: the rerun failed");
        assert_same(&src, &dst);
    }
    assert!(
        kills == 4 && strays > 0,
        "{kills} kills left {strays} files"
    );
}

#[test]
fn an_error_of_any_step_is_reported_and_a_rerun_recovers() {
    let dir = tempfile::tempdir().unwrap();
    if !strace_works(dir.path()) {
        eprintln!("skipped: strace is not there or may not trace");
        return;
    }
    let src = source(dir.path());
    let whole = dir.path().join("whole");
    assert!(victim(&[], &src, &whole).status().unwrap().success());
    for (call, error) in [
        ("fsync", "EIO"),
        ("fdatasync", "EIO"),
        ("rename", "EIO"),
        ("write", "ENOSPC"),
        ("mkdir", "EACCES"),
    ] {
        for number in (1..).step_by(step_of(call)) {
            let dst = dir.path().join(format!("{call} {number}"));
            let front = strace(call, &format!("error={error}"), number);
            let status = victim(&front, &src, &dst).status().unwrap();
            // The test harness writes too, so the last write may fail without affecting the pack.
            if status.success() {
                break;
            }
            let there = if dst.exists() {
                contents(&dst)
            } else {
                Default::default()
            };
            let leftover = there
                .into_keys()
                .find(|path| path.to_string_lossy().contains("forebay-tmp"));
            assert!(leftover.is_none(), "{call} {number}: {leftover:?} stays");
            assert_recovers(&src, &dst, &whole, &format!("{error} at {call} {number}"));
            std::fs::remove_dir_all(&dst).unwrap();
        }
    }
}

/// Returns the number of kills at random moments, which `FOREBAY_TEST_KILLS` sets.
fn kills(by_default: u64) -> u64 {
    let asked = std::env::var("FOREBAY_TEST_KILLS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(by_default)
}

#[test]
fn parts_killed_at_random_moments() {
    let dir = tempfile::tempdir().unwrap();
    let (src, whole) = (source(dir.path()), dir.path().join("whole"));
    let begin = Instant::now();
    assert!(victim(&[], &src, &whole).status().unwrap().success());
    let duration = begin.elapsed();
    let dst = dir.path().join("dst");
    let part = |number: u64| {
        let mut part = victim(&[], &src, &dst);
        part.env(PART, format!("{number}/2"));
        part
    };
    for kill in 0..kills(12) {
        let moment = duration.mul_f64(f64::from(noise(kill + 1000, 1)[0]) / 255.0);
        let begin = Instant::now();
        let mut running: Vec<_> = (1..=2).map(|n| part(n).spawn().unwrap()).collect();
        while begin.elapsed() < moment {
            std::hint::spin_loop();
        }
        // One of the parts is killed, or both are.
        for (number, process) in running.iter_mut().enumerate() {
            if kill % 3 == 2 || kill % 3 == number as u64 {
                process.kill().unwrap();
            }
            process.wait().unwrap();
        }
        assert!(!dst.join("forebay.json").exists());
        if kill % 3 == 2 {
            for number in [2, 1] {
                assert!(part(number).status().unwrap().success(), "kill {kill}");
            }
            let options = FinishOptions::new(dst.as_path());
            finish(&options, None, &(), &Cancel::new()).unwrap();
            assert_same(&whole, &dst);
            std::fs::remove_dir_all(&dst).unwrap();
        }
    }
}

#[test]
fn killed_at_random_moments() {
    let kills = kills(25);
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = dir.path().join("whole");
    let begin = Instant::now();
    assert!(victim(&[], &src, &whole).status().unwrap().success());
    let duration = begin.elapsed();
    let dst = dir.path().join("dst");
    for kill in 0..kills {
        // A pack may be killed several times before it is complete.
        let moment = duration.mul_f64(f64::from(noise(kill, 1)[0]) / 255.0);
        let begin = Instant::now();
        let mut child = victim(&[], &src, &dst).spawn().unwrap();
        while begin.elapsed() < moment {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if kill % 3 == 2 {
            assert_recovers(&src, &dst, &whole, &format!("kill {kill} after {moment:?}"));
            std::fs::remove_dir_all(&dst).unwrap();
        }
    }
}

fn strace_works(dir: &Path) -> bool {
    let quick = Command::new("strace")
        .args(["-f", "--seccomp-bpf", "-qq", "-o", "/dev/null"])
        .args(["-e", "trace=none", "true"])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    quick.is_ok_and(|status| status.success())
}

#[test]
fn few_open_files_suffice_and_too_few_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (source(dir.path()), dir.path().join("dst"));
    let limited = |limit: u32, dst: &Path| {
        let front = [
            "sh",
            "-c",
            &format!("ulimit -n {limit}; exec \"$0\" \"$@\""),
        ]
        .map(str::to_owned);
        let mut command = victim(&front, &src, dst);
        command.stdout(Stdio::piped()).output().unwrap()
    };
    assert!(limited(37, &dst).status.success());
    let output = limited(30, &dir.path().join("other"));
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("needed: 37"), "{text}");
}
