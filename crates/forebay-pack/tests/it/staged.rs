//! Packs through a staging area give the result of a local pack, byte for byte, whatever happens meanwhile.
//!
//! The store is a directory here. The same code is used for object stores, which the tests of `forebay-store` cover.

use crate::support;

use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, DatasetFormat, Error, Observer, PackOptions, Part,
    Sharding, Stage, Uploaded, convert, pack, prepare,
};
use forebay_staging::StagingArea;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use support::*;

const SRC: &str = "FOREBAY_TEST_STAGED_SRC";
const DIR: &str = "FOREBAY_TEST_STAGED_DIR";
/// Number of kills in the test below, if this environment variable is set.
const KILLS: &str = "FOREBAY_TEST_KILLS";

fn staged(src: &Path, dir: &Path, bytes: u64) -> PackOptions {
    let mut options = options(src, &dir.join("there"));
    options.sharding = Sharding::Count(6);
    options.upload.staging_dir = Some(dir.join("area"));
    options.upload.staging_bytes = Some(bytes);
    options
}

fn source(dir: &Path) -> PathBuf {
    let src = dir.join("src");
    tree(&src, 4, 30);
    put(&src, b"n00000001/bad.jpg", b"bad");
    src
}

/// Packs the source locally, for comparison.
fn whole(src: &Path, dir: &Path) -> PathBuf {
    let whole = dir.join("whole");
    let mut options = options(src, &whole);
    options.sharding = Sharding::Count(6);
    run(&options).unwrap();
    whole
}

#[track_caller]
fn assert_area_is_empty(dir: &Path) {
    let seen = StagingArea::look(&dir.join("area")).unwrap();
    assert!(seen.sessions.is_empty(), "{seen:?}");
}

#[test]
fn a_staged_pack_equals_a_local_pack() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let whole = dir.path().join(format!("whole {format:?}"));
        let mut local = options(&src, &whole);
        (local.format, local.sharding) = (format, Sharding::Count(6));
        run(&local).unwrap();
        let dir = dir.path().join(format!("{format:?}"));
        // There is space for two of the six shards, so the others wait.
        let mut options = staged(&src, &dir, 450 << 10);
        options.format = format;
        let summary = run(&options).unwrap();
        assert_same(&whole, &dir.join("there"));
        assert_area_is_empty(&dir);
        assert!(!summary.already_complete);
        assert_eq!(summary.root, dir.join("there"));
        assert_eq!(
            summary.report.as_deref(),
            Some(dir.join("there/pack/report.jsonl").as_path())
        );
        let uploaded = summary.uploaded.unwrap();
        assert_eq!(
            uploaded.files,
            if format == DatasetFormat::TfRecord {
                6 * 3 + 1
            } else {
                6 + 1
            }
        );
        let again = run(&options).unwrap();
        assert!(again.already_complete);
        assert_eq!(
            (again.fingerprint, again.findings, again.report),
            (summary.fingerprint, summary.findings, summary.report)
        );
        assert_area_is_empty(&dir);
        assert_same(&whole, &dir.join("there"));
    }
}

#[test]
fn a_staging_area_that_is_too_small_is_refused_first() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let error = run(&staged(&src, dir.path(), 100)).unwrap_err();
    assert!(
        matches!(&error, Error::Store(forebay_store::Error::AreaTooSmall { needed_bytes, .. }) if *needed_bytes > 50_000),
        "{error}"
    );
    assert!(!dir.path().join("there").exists());
    // Parts that share a directory cannot be written to it through an area.
    let mut options = staged(&src, dir.path(), 1 << 20);
    let prepared = prepare(&options, &(), &Cancel::new()).unwrap();
    let part: Part = "1/2".parse().unwrap();
    for refused in [
        prepared.run_part(part, &(), &Cancel::new()).err(),
        prepared.record_plan(&()).err(),
    ] {
        let error = refused.unwrap();
        assert!(
            matches!(&error, Error::Options(what) if what.contains("without a staging area")),
            "{error}"
        );
    }
    // The staging area must not be inside the source.
    options.upload.staging_dir = Some(src.join("area"));
    assert!(matches!(run(&options), Err(Error::Destination { .. })));
}

/// Cancels a pack after this number of shards.
struct StopsAfter {
    left: AtomicU64,
    cancel: Cancel,
    stages: Mutex<Vec<Stage>>,
}

impl StopsAfter {
    fn shards(count: u64) -> Self {
        Self {
            left: AtomicU64::new(count),
            cancel: Cancel::new(),
            stages: Mutex::default(),
        }
    }
}

impl Observer for StopsAfter {
    fn stage(&self, stage: Stage) {
        self.stages.lock().unwrap().push(stage);
    }

    fn shard_done(&self, shard: &forebay_pack::ShardDone) {
        if !shard.resumed && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.cancel.cancel();
        }
    }
}

#[test]
fn stored_shards_are_neither_packed_nor_uploaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let mut options = staged(&src, dir.path(), 450 << 10);
    options.jobs = Some(1);
    let stops = StopsAfter::shards(3);
    let error = pack(&options, &stops, &stops.cancel).unwrap_err();
    assert!(
        matches!(error, Error::Interrupted { finished: 3.., .. }),
        "{error}"
    );
    assert!(!dir.path().join("there/forebay.json").exists());
    // Recovery of the area uploads the finished shards, and the pack finds them at their destination.
    let mut recovery = forebay_staging::AreaOptions::new(dir.path().join("area"));
    recovery.max_bytes = Some(1 << 20);
    StagingArea::recover(&recovery, &Cancel::new()).unwrap();
    let count = |extension: &str| {
        let names = std::fs::read_dir(dir.path().join("there")).unwrap();
        names
            .filter(|name| {
                name.as_ref()
                    .unwrap()
                    .file_name()
                    .to_string_lossy()
                    .starts_with(extension)
            })
            .count()
    };
    let there = count("train-");
    assert!(there >= 3);
    let summary = run(&options).unwrap();
    assert_eq!(summary.resumed_shards as usize, there);
    assert_eq!(
        summary.uploaded.unwrap().files as usize,
        (6 - there) * 3 + 1
    );
    assert_same(&whole, &dir.path().join("there"));
    assert_area_is_empty(dir.path());
    // A shard that was damaged or replaced at the destination is written again.
    std::fs::remove_dir_all(dir.path().join("there")).unwrap();
    let stops = StopsAfter::shards(3);
    assert!(pack(&options, &stops, &stops.cancel).is_err());
    StagingArea::recover(&recovery, &Cancel::new()).unwrap();
    let victim = std::fs::read_dir(dir.path().join("there")).unwrap();
    let victim = victim
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("/train-"))
        .unwrap();
    let mut bytes = std::fs::read(&victim).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&victim, bytes).unwrap();
    run(&options).unwrap();
    assert_same(&whole, &dir.path().join("there"));
}

#[test]
fn a_changed_source_starts_over_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let mut options = staged(&src, dir.path(), 450 << 10);
    options.sharding = Sharding::Bytes(20_000);
    let stops = StopsAfter::shards(5);
    assert!(pack(&options, &stops, &stops.cancel).is_err());
    for class in 1..4 {
        std::fs::remove_dir_all(src.join(format!("n{class:08}"))).unwrap();
    }
    run(&options).unwrap();
    let mut local = options.clone();
    local.dst = dir.path().join("whole").as_path().into();
    local.upload = Default::default();
    run(&local).unwrap();
    assert_same(&dir.path().join("whole"), &dir.path().join("there"));
}

#[test]
fn only_one_of_two_packs_owns_the_destination() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let one = staged(&src, dir.path(), 450 << 10);
    let stops = StopsAfter::shards(2);
    assert!(pack(&one, &stops, &stops.cancel).is_err());
    // Another machine, with its own staging area, packs something else.
    let mut other = one.clone();
    other.upload.staging_dir = Some(dir.path().join("other area"));
    other.seed = 7;
    let error = run(&other).unwrap_err();
    let Error::Claimed {
        by, differences, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(by.contains(&std::process::id().to_string()), "{by}");
    assert!(
        differences.iter().any(|line| line.contains("seed")),
        "{differences:?}"
    );
    assert!(error.hint().unwrap().contains("overwrite"));
    // With `overwrite` it takes over; then the first pack detects this, and publishes nothing.
    let stops = StopsAfter::shards(2);
    other.overwrite = true;
    assert!(pack(&other, &stops, &stops.cancel).is_err());
    assert!(matches!(run(&one), Err(Error::Claimed { .. })));
    other.overwrite = false;
    run(&other).unwrap();
    let mut local = other.clone();
    local.dst = dir.path().join("whole of the other").as_path().into();
    local.upload = Default::default();
    run(&local).unwrap();
    assert_same(
        &dir.path().join("whole of the other"),
        &dir.path().join("there"),
    );
    // A complete dataset is replaced only with `overwrite`.
    assert!(matches!(run(&one), Err(Error::OtherDataset { .. })));
    let mut replacing = one.clone();
    replacing.overwrite = true;
    run(&replacing).unwrap();
    assert_same(&whole, &dir.path().join("there"));
}

#[test]
fn two_concurrent_packs_publish_one_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let packers: Vec<PackOptions> = (0..3u64)
        .map(|seed| {
            let mut options = staged(&src, dir.path(), 450 << 10);
            options.upload.staging_dir = Some(dir.path().join(format!("area {seed}")));
            options.seed = seed;
            options
        })
        .collect();
    let results: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = packers
            .iter()
            .map(|options| scope.spawn(move || run(options)))
            .collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let won: Vec<usize> = (0..3).filter(|at| results[*at].is_ok()).collect();
    assert_eq!(won.len(), 1, "{results:?}");
    for (at, result) in results.iter().enumerate() {
        if let Err(error) = result {
            assert!(
                matches!(
                    error,
                    Error::Claimed { .. } | Error::Destination { .. } | Error::OtherDataset { .. }
                ),
                "{at}: {error}"
            );
        }
    }
    let mut local = packers[won[0]].clone();
    local.dst = dir.path().join("whole").as_path().into();
    local.upload = Default::default();
    run(&local).unwrap();
    assert_same(&dir.path().join("whole"), &dir.path().join("there"));
}

#[test]
fn objects_of_others_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let there = dir.path().join("there");
    put(&there, b"thesis.tex", b"mine");
    for overwrite in [false, true] {
        let mut options = staged(&src, dir.path(), 450 << 10);
        options.overwrite = overwrite;
        let error = run(&options).unwrap_err().to_string();
        assert!(error.contains("thesis.tex"), "{error}");
        assert_eq!(
            contents(&there).len(),
            1,
            "nothing was put there, and nothing removed"
        );
    }
}

#[test]
fn a_store_error_is_reported_and_a_rerun_continues() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let options = staged(&src, dir.path(), 450 << 10);
    // A file blocks the path of the index directory.
    let there = dir.path().join("there");
    let stops = StopsAfter::shards(1);
    assert!(pack(&options, &stops, &stops.cancel).is_err());
    std::fs::remove_dir_all(there.join("index")).ok();
    put(&there, b"index", b"in the way");
    assert!(run(&options).is_err());
    assert!(!there.join("forebay.json").exists());
    std::fs::remove_file(there.join("index")).unwrap();
    run(&options).unwrap();
    assert_same(&whole, &there);
    assert_area_is_empty(dir.path());
}

#[test]
fn conversions_are_staged_in_the_same_way() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let source = || ConvertSource::Dataset(whole.as_path().into());
    let local = ConvertOptions::new(
        source(),
        dir.path().join("local").as_path(),
        DatasetFormat::INDEXED,
    );
    convert(&local, &(), &Cancel::new()).unwrap();
    let mut options = ConvertOptions::new(
        source(),
        dir.path().join("there").as_path(),
        DatasetFormat::INDEXED,
    );
    options.jobs = Some(1);
    options.upload.staging_dir = Some(dir.path().join("area"));
    options.upload.staging_bytes = Some(450 << 10);
    let stops = StopsAfter::shards(2);
    assert!(convert(&options, &stops, &stops.cancel).is_err());
    let summary = convert(&options, &(), &Cancel::new()).unwrap();
    assert!(summary.resumed_shards >= 2);
    assert_same(&dir.path().join("local"), &dir.path().join("there"));
    assert_area_is_empty(dir.path());
    assert!(
        convert(&options, &(), &Cancel::new())
            .unwrap()
            .already_complete
    );
}

/// The work of the killed process. Without the environment variables, this test does nothing.
#[test]
fn child() {
    let (Some(src), Some(dir)) = (std::env::var_os(SRC), std::env::var_os(DIR)) else {
        return;
    };
    let mut options = staged(Path::new(&src), Path::new(&dir), 450 << 10);
    options.jobs = Some(1);
    run(&options).unwrap();
}

/// Counts the files below a directory to which another process writes.
fn files(dir: &Path) -> usize {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path()),
            _ => 1,
        })
        .sum()
}

#[test]
fn a_pack_killed_at_any_moment_continues() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let whole = whole(&src, dir.path());
    let kills = std::env::var(KILLS)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(8);
    let mut written = 0;
    for kill in 0..=kills {
        let dir = dir.path().join(format!("kill {kill}"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["staged::child", "--exact", "--test-threads=1"])
            .env(SRC, &src)
            .env(DIR, &dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if kill == 0 {
            assert!(child.wait().unwrap().success());
            written = files(&dir.join("there"));
        } else {
            // Kills are spread over the whole run, including its end. The exact moments do not matter.
            while files(&dir.join("there")) < written * kill / kills
                && child.try_wait().unwrap().is_none()
            {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let there = dir.join("there");
        if there.join("forebay.json").exists() {
            forebay_shard::Dataset::open(&there).unwrap();
        }
        let mut options = staged(&src, &dir, 450 << 10);
        options.jobs = Some(1);
        run(&options).unwrap();
        assert_same(&whole, &there);
        assert_area_is_empty(&dir);
    }
}

/// Checks that the reported bytes of uploads grow to the total.
#[derive(Default)]
struct Tells(Mutex<Vec<Uploaded>>);

impl Observer for Tells {
    fn uploaded(&self, uploaded: &Uploaded) {
        self.0.lock().unwrap().push(uploaded.clone());
    }
}

#[test]
fn uploads_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path());
    let tells = Tells::default();
    let summary = pack(&staged(&src, dir.path(), 1 << 20), &tells, &Cancel::new()).unwrap();
    let told = tells.0.into_inner().unwrap();
    assert!(told.is_sorted_by_key(|uploaded| uploaded.bytes));
    assert_eq!(told.last().unwrap().bytes, summary.uploaded.unwrap().bytes);
}
