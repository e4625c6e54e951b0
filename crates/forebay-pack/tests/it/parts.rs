//! Parts of a pack, in any order, concurrent, repeated or killed, give the result of a single pack when joined.

use crate::support;

use forebay_pack::{
    Cancel, DatasetFormat, Error, FinishOptions, Observer, PackOptions, Part, PartSummary, Result,
    Summary, finish, prepare, prepare_part,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Condvar, Mutex};
use support::*;

fn part(number: u32, count: u32) -> Part {
    Part::new(number, count).unwrap()
}

fn run_part(options: &PackOptions, part: Part) -> Result<PartSummary> {
    prepare_part(options, &(), &Cancel::new())?.run_part(part, &(), &Cancel::new())
}

fn join(dst: &Path) -> Result<Summary> {
    finish(&FinishOptions::new(dst), None, &(), &Cancel::new())
}

/// Joins the parts after reading the source again.
fn join_with_source(options: &PackOptions) -> Result<Summary> {
    let source = prepare(options, &(), &Cancel::new())?;
    let finish_options = FinishOptions::new(options.dst.clone());
    finish(&finish_options, Some(&source), &(), &Cancel::new())
}

fn source(dir: &Path) -> std::path::PathBuf {
    let src = dir.join("src");
    for split in ["train", "val"] {
        tree(&src.join(split), 3, 20);
    }
    put(&src, b"train/n00000001/bad.jpg", b"bad");
    put(&src, b"train/n00000001/.hidden", b"x");
    src
}

#[test]
fn joined_parts_equal_the_pack_of_one_machine() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let whole = dir.path().join(format!("{format:?} whole"));
        let mut options = options(&src, &whole);
        options.format = format;
        let alone = run(&options).unwrap();
        // If there are more parts than shards, some parts have no work.
        for (count, at_once) in [(1, false), (3, false), (3, true), (11, true)] {
            let dst = dir.path().join(format!("{format:?} {count} {at_once}"));
            let mut options = options.clone();
            options.dst = dst.as_path().into();
            let begin = Barrier::new(if at_once { count as usize } else { 1 });
            let run_one = |number| {
                begin.wait();
                run_part(&options, part(number, count)).unwrap()
            };
            let summaries: Vec<PartSummary> = if at_once {
                let run_one = &run_one;
                std::thread::scope(|scope| {
                    let threads = (1..=count).map(|number| scope.spawn(move || run_one(number)));
                    let threads: Vec<_> = threads.collect();
                    threads.into_iter().map(|t| t.join().unwrap()).collect()
                })
            } else {
                (1..=count).rev().map(run_one).collect()
            };
            assert!(!dst.join("forebay.json").exists());
            assert_eq!(summaries.iter().map(|s| s.shards).sum::<u64>(), 8);
            assert_eq!(summaries.iter().map(|s| s.records).sum::<u64>(), 120);
            assert_eq!(summaries.iter().map(|s| s.skipped()).sum::<u64>(), 1);
            let joined = join(&dst).unwrap();
            assert_eq!(joined.fingerprint, alone.fingerprint);
            assert_eq!(joined.findings, alone.findings);
            assert_eq!(joined.splits, alone.splits);
            assert_same(&whole, &dst);
            // Later runs find the work done.
            assert!(run_part(&options, part(1, count)).unwrap().already_complete);
            assert!(join(&dst).unwrap().already_complete);
            assert!(join_with_source(&options).unwrap().already_complete);
            assert!(run(&options).unwrap().already_complete);
            assert_same(&whole, &dst);
        }
    }
}

#[test]
fn missing_shards_are_named_with_their_parts() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (source(dir.path()), dir.path().join("dst"));
    let options = options(&src, &dst);
    let error = join(&dst).unwrap_err().to_string();
    assert!(error.contains("no part has been packed"), "{error}");
    run_part(&options, part(1, 3)).unwrap();
    run_part(&options, part(3, 3)).unwrap();
    let assert_missing = |expected: &[&str]| {
        let error = join(&dst).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(hint.contains("parts again: 2/3"), "{hint}");
        let Error::Missing {
            missing,
            parts,
            total,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(missing, expected);
        assert_eq!((parts, total), (vec![part(2, 3)], 8));
        assert!(!dst.join("forebay.json").exists());
    };
    let shards = [
        "train-00001-of-00004",
        "validation-00000-of-00004",
        "validation-00003-of-00004",
    ];
    assert_missing(&shards);
    run_part(&options, part(2, 3)).unwrap();
    // A missing shard, a damaged shard and a damaged index all count as missing, and the part writes them again.
    std::fs::remove_file(dst.join(shards[0])).unwrap();
    for damaged in [
        dst.join(shards[1]),
        dst.join("index").join(format!("{}.fbi", shards[2])),
    ] {
        let mut bytes = std::fs::read(&damaged).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(&damaged, bytes).unwrap();
    }
    assert_missing(&shards);
    let again = run_part(&options, part(2, 3)).unwrap();
    assert_eq!((again.shards, again.resumed_shards), (3, 0));
    join(&dst).unwrap();
    let whole = dir.path().join("whole");
    run(&support::options(&src, &whole)).unwrap();
    assert_same(&whole, &dst);
}

#[test]
fn a_run_without_parts_completes_the_work_of_parts() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst, whole) = (
        source(dir.path()),
        dir.path().join("dst"),
        dir.path().join("whole"),
    );
    let options = options(&src, &dst);
    run(&support::options(&src, &whole)).unwrap();
    run_part(&options, part(2, 3)).unwrap();
    // Another number of parts also continues with the finished shards.
    let other = run_part(&options, part(2, 2)).unwrap();
    assert_eq!((other.shards, other.resumed_shards), (4, 2));
    let summary = run(&options).unwrap();
    assert_eq!(summary.resumed_shards, 5);
    assert_same(&whole, &dst);
}

#[test]
fn parts_with_different_plans_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (source(dir.path()), dir.path().join("dst"));
    let options = options(&src, &dst);
    run_part(&options, part(1, 2)).unwrap();
    let differs = |error: Error, who: &str, what: &str| {
        assert!(matches!(error, Error::DifferentPart { .. }), "{error}");
        assert!(error.hint().unwrap().contains("plan again"));
        let error = error.to_string();
        assert!(error.contains(who) && error.contains(what), "{error}");
    };
    let mut seed = options.clone();
    seed.seed = 3;
    differs(
        run_part(&seed, part(2, 2)).unwrap_err(),
        "part 2/2",
        "seed: then 0, now 3",
    );
    put(&src, b"train/n00000002/new.jpg", &jpeg(20, 20, 3, b"new"));
    let what = "train: n00000002: then 20 files";
    // A part that lists the source, such as one of an earlier version, finds the new file.
    let prepared = prepare(&options, &(), &Cancel::new()).unwrap();
    let listed = prepared.run_part(part(2, 2), &(), &Cancel::new());
    differs(listed.unwrap_err(), "part 2/2", what);
    differs(
        join_with_source(&options).unwrap_err(),
        "as it is now",
        what,
    );
    // On a file system without links, two parts may each have published a plan.
    let work = dst.join(".forebay-pack");
    std::fs::rename(work.join("plan"), work.join("kept")).unwrap();
    run_part(&options, part(2, 2)).unwrap();
    std::fs::rename(work.join("kept"), work.join("plan")).unwrap();
    differs(join(&dst).unwrap_err(), "part 2/2", what);
    // A new plan replaces that state, and the parts pack the source in its current state.
    let prepared = prepare(&options, &(), &Cancel::new()).unwrap();
    assert!(!prepared.record_plan(&()).unwrap());
    assert!(prepared.record_plan(&()).unwrap());
    for number in [1, 2] {
        assert_eq!(
            run_part(&options, part(number, 2)).unwrap().resumed_shards,
            0
        );
    }
    join_with_source(&options).unwrap();
    let whole = dir.path().join("whole");
    run(&support::options(&src, &whole)).unwrap();
    assert_same(&whole, &dst);
}

/// Pauses in the first shard until it is released.
#[derive(Default)]
struct Pause {
    inside: AtomicBool,
    go: Mutex<bool>,
    changed: Condvar,
}

impl Pause {
    fn wait_until_inside(&self) {
        while !self.inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn let_go(&self) {
        *self.go.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

impl Observer for Pause {
    fn advanced(&self, _files: u64, _bytes: u64) {
        self.inside.store(true, Ordering::Release);
        let go = self.go.lock().unwrap();
        drop(self.changed.wait_while(go, |go| !*go).unwrap());
    }
}

#[test]
fn the_same_part_twice_is_refused_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst, whole) = (
        source(dir.path()),
        dir.path().join("dst"),
        dir.path().join("whole"),
    );
    let options = options(&src, &dst);
    run(&support::options(&src, &whole)).unwrap();
    let pause = Pause::default();
    std::thread::scope(|scope| {
        let prepared = prepare(&options, &(), &Cancel::new()).unwrap();
        let first = scope.spawn({
            let pause = &pause;
            move || prepared.run_part(part(1, 2), pause, &Cancel::new())
        });
        pause.wait_until_inside();
        let refused = |error: Error| {
            let error = error.to_string();
            let who = format!("process {} on ", std::process::id());
            assert!(
                error.contains(&who) && error.contains("part 1/2"),
                "{error}"
            );
        };
        refused(run_part(&options, part(1, 2)).unwrap_err());
        refused(run_part(&options, part(2, 3)).unwrap_err());
        refused(run(&options).unwrap_err());
        refused(join(&dst).unwrap_err());
        let prepared = prepare(&options, &(), &Cancel::new()).unwrap();
        refused(prepared.record_plan(&()).unwrap_err());
        run_part(&options, part(2, 2)).unwrap();
        pause.let_go();
        first.join().unwrap().unwrap();
    });
    join(&dst).unwrap();
    assert_same(&whole, &dst);
    // While a process holds the whole destination, no part begins.
    let lock = forebay_store::DirLock::acquire(&dst).unwrap();
    let error = run_part(&options, part(1, 2)).unwrap_err().to_string();
    assert!(error.contains("is in use by process"), "{error}");
    drop(lock);
}

#[test]
fn a_part_changes_only_its_own_files() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (source(dir.path()), dir.path().join("dst"));
    let mut over = options(&src, &dst);
    over.overwrite = true;
    assert!(matches!(
        run_part(&over, part(1, 2)),
        Err(Error::PartOverwrites)
    ));
    put(&dst, b"thesis.tex", b"x");
    let options = options(&src, &dst);
    let error = run_part(&options, part(1, 2)).unwrap_err().to_string();
    assert!(error.contains("thesis.tex"), "{error}");
    assert!(!dst.join(".forebay-pack").exists());
    std::fs::remove_file(dst.join("thesis.tex")).unwrap();
    // One shard that another part is writing, and one that this part did not finish.
    put(&dst, b".train-00001-of-00004.forebay-tmp", b"half");
    put(&dst, b".train-00000-of-00004.forebay-tmp", b"half");
    run_part(&options, part(1, 2)).unwrap();
    assert!(dst.join(".train-00001-of-00004.forebay-tmp").exists());
    assert!(!dst.join(".train-00000-of-00004.forebay-tmp").exists());
    run_part(&options, part(2, 2)).unwrap();
    std::fs::write(dst.join(".forebay-pack/plan"), b"00000000 {}\n").unwrap();
    let error = join(&dst).unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
    std::fs::remove_file(dst.join(".forebay-pack/plan")).unwrap();
    assert_eq!(run_part(&options, part(2, 2)).unwrap().resumed_shards, 4);
    join(&dst).unwrap();
}

#[test]
fn an_interrupted_run_continues_as_parts() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst, whole) = (
        source(dir.path()),
        dir.path().join("dst"),
        dir.path().join("whole"),
    );
    let mut one = options(&src, &dst);
    one.jobs = Some(1);
    /// Cancels after the first shard.
    struct StopAfterOne(Cancel);
    impl Observer for StopAfterOne {
        fn shard_done(&self, _: &forebay_pack::ShardDone) {
            self.0.cancel();
        }
    }
    let stop = StopAfterOne(Cancel::new());
    let error = forebay_pack::pack(&one, &stop, &stop.0).unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    let error = join(&dst).unwrap_err().to_string();
    assert!(error.contains("without parts"), "{error}");
    let resumed: u64 = (1..=2)
        .map(|number| run_part(&one, part(number, 2)).unwrap().resumed_shards)
        .sum();
    assert!(resumed >= 1);
    join(&dst).unwrap();
    run(&options(&src, &whole)).unwrap();
    assert_same(&whole, &dst);
}
