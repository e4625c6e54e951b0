//! Allowed and refused contents of a destination.

use crate::support;

use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, DatasetFormat, DatasetWriter, Error, Observer,
    OutputFormat, Reason, RecordFormat, RecordInput, RepairOptions, Sharding, ShuffleWhen,
    UnfinishedBy, convert, pack, prepare, repair,
};
use forebay_shard::BlockCompression;
use forebay_store::{DirLock, Location};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use support::*;

/// Cancels a pack in the shard after this number of shards, of one hundred files each.
struct StopAfter(u64, AtomicU64, Cancel);

impl StopAfter {
    fn shards(count: u64) -> Self {
        Self(count, AtomicU64::new(0), Cancel::new())
    }
}

impl Observer for StopAfter {
    fn advanced(&self, files: u64, _bytes: u64) {
        if self.1.fetch_add(files, Ordering::Relaxed) + files > self.0 * 100 {
            self.2.cancel();
        }
    }
}

fn interrupted(src: &Path, dst: &Path, shards: u64) {
    let mut options = options(src, dst);
    options.jobs = Some(1);
    let stop = StopAfter::shards(shards);
    let error = pack(&options, &stop, &stop.2).unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    assert!(error.hint().unwrap().contains("continues"));
    assert!(!dst.join("forebay.json").exists());
}

#[test]
fn an_interrupted_pack_continues_and_gives_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (src, whole) = (dir.path().join("src"), dir.path().join("whole"));
    tree(&src, 4, 100);
    run(&options(&src, &whole)).unwrap();
    for shards in 0..=2 {
        let dst = dir.path().join(format!("after {shards}"));
        interrupted(&src, &dst, shards);
        let summary = run(&options(&src, &dst)).unwrap();
        assert_eq!(
            (summary.resumed_shards, summary.packed_files),
            (shards, 400 - 100 * shards)
        );
        assert_same(&whole, &dst);
    }
    let again = run(&options(&src, &whole)).unwrap();
    assert!(again.already_complete);
    assert_eq!((again.records(), again.packed_files), (400, 0));
}

#[test]
fn a_finished_shard_that_was_damaged_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let (src, whole) = (dir.path().join("src"), dir.path().join("whole"));
    tree(&src, 4, 100);
    run(&options(&src, &whole)).unwrap();
    let shard = "train-00000-of-00004";
    let damages: [&dyn Fn(&Path); 4] = [
        &|dst| std::fs::remove_file(dst.join(shard)).unwrap(),
        &|dst| std::fs::remove_file(dst.join("index").join(format!("{shard}.fbi"))).unwrap(),
        &|dst| std::fs::write(dst.join(shard), b"short").unwrap(),
        &|dst| {
            let mut bytes = std::fs::read(dst.join(shard)).unwrap();
            bytes[1000] ^= 1;
            std::fs::write(dst.join(shard), bytes).unwrap();
        },
    ];
    for (number, damage) in damages.iter().enumerate() {
        let dst = dir.path().join(format!("damage {number}"));
        interrupted(&src, &dst, 2);
        damage(&dst);
        run(&options(&src, &dst)).unwrap();
        assert_same(&whole, &dst);
    }
}

#[test]
fn other_arguments_or_sources_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 4, 100);
    interrupted(&src, &dst, 1);
    let refused = |change: &dyn Fn(&mut forebay_pack::PackOptions)| {
        let mut options = options(&src, &dst);
        change(&mut options);
        let error = run(&options).unwrap_err();
        assert!(matches!(error, Error::DifferentPack { .. }), "{error}");
        assert!(error.hint().unwrap().contains("overwrite"));
        error.to_string()
    };
    assert!(refused(&|o| o.seed = 7).contains("seed: then 0, now 7"));
    assert!(
        refused(&|o| o.shuffle = ShuffleWhen::Never).contains("shuffle: then training, now never")
    );
    assert!(
        refused(&|o| o.format = forebay_pack::DatasetFormat::INDEXED)
            .contains("format: then tfrecord, now indexed")
    );
    // Equal images in another directory are another source, unless sizes and modification times are equal too.
    let moved = dir.path().join("moved");
    tree(&moved, 4, 99);
    let error = run(&options(&moved, &dst)).unwrap_err().to_string();
    assert!(
        error.contains("source: then /") && error.contains("moved"),
        "{error}"
    );
    // `overwrite` replaces the dataset.
    let mut over = options(&src, &dst);
    (over.overwrite, over.seed) = (true, 7);
    run(&over).unwrap();
    let clean = dir.path().join("clean");
    let mut same = options(&src, &clean);
    same.seed = 7;
    run(&same).unwrap();
    assert_same(&dst, &clean);
}

/// Records why a pack started over.
#[derive(Default)]
struct Anew(std::sync::Mutex<Vec<String>>);

impl Observer for Anew {
    fn begins_anew(&self, differences: &[String]) {
        self.0.lock().unwrap().extend_from_slice(differences);
    }
}

#[test]
fn a_changed_source_is_packed_in_its_current_state() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src, 4, 100);
    let touched = src.join("n00000001/n00000001_1.JPEG");
    let changes: [(&dyn Fn(), &str); 3] = [
        (
            &|| put(&src, b"n00000002/new.jpg", &jpeg(20, 20, 3, b"new")),
            "train: n00000002: then 100 files",
        ),
        (
            &|| {
                let bytes = std::fs::read(&touched).unwrap();
                std::fs::write(&touched, bytes).unwrap();
            },
            "train: n00000001: files were modified since",
        ),
        (
            &|| std::fs::remove_dir_all(src.join("n00000003")).unwrap(),
            "train: n00000003 is gone from the source",
        ),
    ];
    for (number, (change, said)) in changes.into_iter().enumerate() {
        let dst = dir.path().join(format!("dst {number}"));
        interrupted(&src, &dst, 2);
        change();
        let anew = Anew::default();
        let summary = pack(&options(&src, &dst), &anew, &Cancel::new()).unwrap();
        let differences = anew.0.into_inner().unwrap().join("; ");
        assert!(differences.contains(said), "{differences}");
        assert_eq!(summary.resumed_shards, 0);
        let undisturbed = dir.path().join(format!("undisturbed {number}"));
        run(&options(&src, &undisturbed)).unwrap();
        assert_same(&undisturbed, &dst);
    }
}

/// Changes the source when the plan is complete, between census and reading.
struct Meanwhile<'a>(&'a (dyn Fn() + Sync));

impl Observer for Meanwhile<'_> {
    fn planned(&self, _: &forebay_pack::Census, _: &forebay_pack::Plan) {
        self.0();
    }
}

#[test]
fn vanished_or_changed_files_are_never_left_out_silently() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src, 4, 30);
    let victim = |number: u32| src.join(format!("n00000002/n00000002_{number}.JPEG"));
    let changes: [(&(dyn Fn() + Sync), Reason); 4] = [
        (
            &|| std::fs::remove_file(victim(3)).unwrap(),
            Reason::Vanished,
        ),
        (
            &|| std::fs::write(victim(4), jpeg(9, 9, 3, b"shorter")).unwrap(),
            Reason::SizeChanged,
        ),
        (
            &|| std::fs::write(victim(5), jpeg(9, 9, 3, &noise(1, 70_000))).unwrap(),
            Reason::SizeChanged,
        ),
        (
            &|| std::fs::rename(src.join("n00000003"), dir.path().join("away")).unwrap(),
            Reason::Vanished,
        ),
    ];
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        for jobs in [1, 3] {
            let dst = dir.path().join(format!("dst {number} {jobs}"));
            let mut options = options(&src, &dst);
            options.jobs = Some(jobs);
            if jobs == 3 {
                // This change is not visible between census and reading.
                run(&options).unwrap();
            } else {
                let error = pack(&options, &Meanwhile(change), &Cancel::new()).unwrap_err();
                let Error::SourceChanged(found) = &error else {
                    panic!("{error}")
                };
                assert_eq!(found.reason, expected, "{error}");
                assert!(found.path.contains("n0000000"), "{error}");
                assert!(error.hint().unwrap().contains("same command again"));
                assert!(!dst.join("forebay.json").exists());
                run(&options).unwrap();
            }
        }
        assert_same(
            &dir.path().join(format!("dst {number} 1")),
            &dir.path().join(format!("dst {number} 3")),
        );
    }
}

#[test]
fn a_rerun_reports_the_same_findings() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 5);
    put(&src, b"n00000001/bad.jpg", b"bad");
    let first = run(&options(&src, &dst)).unwrap();
    let again = run(&options(&src, &dst)).unwrap();
    assert!(again.already_complete);
    assert_eq!((again.skipped(), &again.findings), (1, &first.findings));
    assert_eq!(again.skipped_examples, first.skipped_examples);
}

#[test]
fn another_dataset_is_only_replaced_with_overwrite() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 5);
    put(&src, b"n00000001/bad.jpg", b"bad");
    run(&options(&src, &dst)).unwrap();
    let before = contents(&dst);
    let mut other = options(&src, &dst);
    other.format = forebay_pack::DatasetFormat::INDEXED;
    let error = run(&other).unwrap_err();
    let changed = "other options (format: then tfrecord, now indexed)";
    assert!(
        matches!(&error, Error::OtherDataset { what, .. } if what.contains(changed)),
        "{error}"
    );
    let mut resized = options(&src, &dst);
    (resized.resize_short, resized.seed) = (Some(100), 5);
    let error = run(&resized).unwrap_err().to_string();
    let changed = "(resize_short: then not given, now 100; seed: then 0, now 5)";
    assert!(error.contains(changed), "{error}");
    // The options are the same, but the source has changed.
    put(&src, b"n00000001/new.jpg", b"bad");
    let error = run(&options(&src, &dst)).unwrap_err().to_string();
    assert!(error.contains("a source that has changed since"), "{error}");
    std::fs::remove_file(src.join("n00000001/new.jpg")).unwrap();
    assert_eq!(before, contents(&dst));
    other.overwrite = true;
    put(&dst, b"precious.txt", b"x");
    assert!(
        run(&other)
            .unwrap_err()
            .to_string()
            .contains("precious.txt")
    );
    assert!(dst.join("forebay.json").exists());
    std::fs::remove_file(dst.join("precious.txt")).unwrap();
    run(&other).unwrap();
    assert!(contents(&dst).keys().all(|name| !name.starts_with("index")));
}

#[test]
fn invalid_destinations_are_refused_before_writing() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 2);
    let refused = |src: &Path, dst: &Path| run(&options(src, dst)).unwrap_err().to_string();
    assert!(refused(&dir.path().join("missing"), &dst).contains("no such directory"));
    assert!(refused(&src.join("n00000000/n00000000_0.JPEG"), &dst).contains("not a directory"));
    assert!(refused(&src, &src).contains("lies in the source"));
    assert!(refused(&src, &src.join("a/b")).contains("lies in the source"));
    std::os::unix::fs::symlink(&src, dir.path().join("alias")).unwrap();
    assert!(refused(&src, &dir.path().join("alias/out")).contains("lies in the source"));
    std::fs::create_dir_all(dir.path().join("hollow/class")).unwrap();
    assert!(refused(&dir.path().join("hollow"), &dst).contains("no images"));
    std::fs::create_dir_all(dir.path().join("void")).unwrap();
    assert!(refused(&dir.path().join("void"), &dst).contains("empty"));
    assert!(!dst.exists());

    put(dir.path(), b"full/thesis.tex", b"x");
    assert!(refused(&src, &dir.path().join("full")).contains("thesis.tex"));
    assert!(refused(&src, &dir.path().join("full/thesis.tex")).contains("thesis.tex"));
    let mut remote = options(&src, &dst);
    remote.dst = Location::parse("s3://bucket/x").unwrap();
    assert!(run(&remote).unwrap_err().to_string().contains("s3"));
    let mut huge = options(&src, &dst);
    huge.sharding = forebay_pack::Sharding::Count(0);
    assert!(matches!(run(&huge).unwrap_err(), Error::Options(_)));
}

#[test]
fn a_second_concurrent_pack_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 2);
    std::fs::create_dir(&dst).unwrap();
    let lock = DirLock::acquire(&dst).unwrap();
    let error = run(&options(&src, &dst)).unwrap_err().to_string();
    assert!(
        error.contains(&format!("process {}", std::process::id())),
        "{error}"
    );
    drop(lock);
    run(&options(&src, &dst)).unwrap();
}

#[test]
fn an_unfinished_dataset_names_the_command_that_started_it() {
    use crate::convert::{StopAfter, of};
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let src = at("src");
    tree(&src, 3, 20);
    // The writer is at most three shards ahead of its observer.
    let many = |dst: &Path| {
        let mut options = options(&src, dst);
        (options.sharding, options.jobs) = (Sharding::Count(12), Some(1));
        options
    };
    run(&many(&at("whole"))).unwrap();
    let stopped = |of: &dyn Fn(&dyn Observer, &Cancel) -> bool| {
        let cancel = Cancel::new();
        assert!(of(&StopAfter(AtomicUsize::new(1), &cancel), &cancel));
    };
    let is_stopped = |error: Error| matches!(error, Error::Interrupted { .. });
    let packing = many(&at("packed"));
    stopped(&|observer, cancel| pack(&packing, observer, cancel).is_err_and(is_stopped));
    let mut converting = of(&at("whole"), &at("converted"), DatasetFormat::INDEXED);
    converting.jobs = Some(1);
    stopped(&|observer, cancel| convert(&converting, observer, cancel).is_err_and(is_stopped));
    let mut repairing = RepairOptions::new(at("whole").as_path(), at("repaired").as_path());
    repairing.convert.jobs = Some(1);
    stopped(&|observer, cancel| repair(&repairing, observer, cancel).is_err_and(is_stopped));
    let mut tars = of(&at("whole"), &at("tars"), DatasetFormat::INDEXED);
    tars.format = OutputFormat::Records(RecordFormat::WEBDATASET, BlockCompression::NONE);
    convert(&tars, &(), &Cancel::new()).unwrap();
    let tars = Box::new(RecordInput::new(at("tars").as_path()));
    let tars = ConvertSource::Records(RecordFormat::WEBDATASET, tars);
    let indexed = at("indexed");
    let mut indexing = ConvertOptions::new(tars, indexed.as_path(), OutputFormat::Mapped);
    indexing.jobs = Some(1);
    stopped(&|observer, cancel| convert(&indexing, observer, cancel).is_err_and(is_stopped));
    let written = crate::writer::writer_options(&at("written"), DatasetFormat::INDEXED);
    let mut writer = DatasetWriter::create(written, &Cancel::new()).unwrap();
    for sample in crate::writer::samples().into_iter().take(30) {
        writer.write(sample).unwrap();
    }
    drop(writer);
    let mut planning = packing.clone();
    planning.dst = Location::from(at("planned").as_path());
    let prepared = prepare(&planning, &(), &Cancel::new()).unwrap();
    prepared.record_plan(&()).unwrap();
    for (name, by) in [
        ("packed", Some(UnfinishedBy::Pack)),
        ("planned", Some(UnfinishedBy::Pack)),
        ("converted", Some(UnfinishedBy::Convert)),
        ("repaired", Some(UnfinishedBy::Repair)),
        ("indexed", Some(UnfinishedBy::Index)),
        ("written", Some(UnfinishedBy::Writer)),
        ("whole", None),
        ("src", None),
    ] {
        assert_eq!(UnfinishedBy::of(&at(name)), by, "{name}");
    }
}
