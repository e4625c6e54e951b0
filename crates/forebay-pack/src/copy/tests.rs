//! Copies between local directories. The tests in `tests/it/copy.rs` copy to and from a server.

use super::*;
use forebay_shard::Manifest;
use forebay_shard::manifest::{ShardEntry, SplitEntry};
use forebay_shard::{ShardFormat, checksum::crc32c};
use forebay_store::{Cancel, Location, ObjectOrTree, StoreOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The content of all files below a directory, by relative path.
fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(root: &Path, dir: &Path, out: &mut BTreeMap<String, Vec<u8>>) {
        let Ok(entries) = std::fs::read_dir(dir) else {
            return;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, out);
            } else {
                let name = path
                    .strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                out.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    let mut out = BTreeMap::new();
    walk(root, root, &mut out);
    out
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Writes a dataset of shards with random bytes: the copy checks names, sizes and checksums, and does not parse shards.
fn dataset(root: &Path, seed: u64, shards: &[(&str, usize)]) -> Manifest {
    std::fs::create_dir_all(root.join("index")).unwrap();
    let entries = shards.iter().zip(0..).map(|((name, len), number)| {
        let content = bytes(seed + number, *len);
        std::fs::write(root.join(name), &content).unwrap();
        std::fs::write(root.join(format!("index/{name}.idx")), format!("0 {len}\n")).unwrap();
        ShardEntry {
            name: (*name).to_owned(),
            records: 1,
            bytes: content.len() as u64,
            crc32c: crc32c(&content),
            blake3: None,
        }
    });
    let split = SplitEntry::new("train", entries.collect());
    let mut manifest = Manifest::new(ShardFormat::TfRecord, 1, vec![split]);
    let json = manifest.to_json().unwrap();
    manifest.fingerprint = manifest.fingerprint();
    std::fs::write(root.join("forebay.json"), json).unwrap();
    manifest
}

const SHARDS: [(&str, usize); 3] = [
    ("train-00000-of-00003", 100_000),
    ("train-00001-of-00003", 3_000_000),
    ("train-00002-of-00003", 1),
];

/// Records the events of a copy.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl CopyObserver for Seen {
    fn done(&self, key: &str, _bytes: u64, action: CopyAction) {
        self.0.lock().unwrap().push(format!("{action:?} {key}"));
    }

    fn damaged(&self, key: &str, problem: &str) {
        self.0
            .lock()
            .unwrap()
            .push(format!("damaged {key}: {problem}"));
    }
}

impl Seen {
    fn take(&self) -> Vec<String> {
        let mut seen = std::mem::take(&mut *self.0.lock().unwrap());
        seen.sort();
        seen
    }
}

/// Cancels the copy after the first copied object.
struct StopAtFirst(Cancel);

impl CopyObserver for StopAtFirst {
    fn done(&self, _key: &str, _bytes: u64, action: CopyAction) {
        if action == CopyAction::Copy {
            self.0.cancel();
        }
    }
}

struct Place {
    dir: tempfile::TempDir,
    seen: Seen,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            seen: Seen::default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn plan(&self, from: &str, to: &str, options: CopyOptions) -> Result<CopyPlan, CopyError> {
        let store = StoreOptions::default();
        let at = |name: &str| {
            let path = self.path(name);
            let slash = if name.ends_with('/') { "/" } else { "" };
            Location::parse(format!(
                "{}{slash}",
                path.display().to_string().trim_end_matches('/')
            ))
        };
        let source = ObjectOrTree::find(&at(from)?, &store)?;
        let target = CopyTarget::find(&at(to)?, &source, &store)?;
        CopyPlan::make(source, target, options, &(), &Cancel::new())
    }

    fn copy(&self, from: &str, to: &str, options: CopyOptions) -> Result<CopySummary, CopyError> {
        self.plan(from, to, options)?
            .run(&self.seen, &Cancel::new())
    }
}

fn sync() -> CopyOptions {
    CopyOptions {
        mode: CopyMode::Sync,
        ..CopyOptions::default()
    }
}

#[test]
fn a_dataset_arrives_whole_and_once() {
    let place = Place::new();
    dataset(&place.path("a"), 1, &SHARDS);
    let summary = place.copy("a", "b", CopyOptions::default()).unwrap();
    assert_eq!((summary.copied, summary.kept, summary.published), (7, 0, 1));
    assert_eq!(tree(&place.path("a")), tree(&place.path("b")));
    let order = place.seen.0.lock().unwrap().last().cloned();
    assert_eq!(
        order.as_deref(),
        Some("Publish forebay.json"),
        "the manifest is last"
    );
    place.seen.take();

    // The second copy keeps the shards, whose checksums are known. The indexes have no checksum and are copied again.
    let summary = place.copy("a", "b", CopyOptions::default()).unwrap();
    assert_eq!((summary.kept, summary.published), (4, 0));
    assert!(
        place
            .seen
            .take()
            .contains(&"Keep train-00001-of-00003".to_owned())
    );

    // The path of a manifest stands for its dataset.
    let summary = place
        .copy("a/forebay.json", "c", CopyOptions::default())
        .unwrap();
    assert_eq!(summary.copied, 7);
    assert_eq!(tree(&place.path("a")), tree(&place.path("c")));
}

#[test]
fn an_interrupted_copy_is_continued() {
    let place = Place::new();
    dataset(&place.path("a"), 1, &SHARDS);
    let plan = place.plan("a", "b", CopyOptions::default()).unwrap();
    let stopped = Cancel::new();
    stopped.cancel();
    let error = plan.run(&(), &stopped).unwrap_err();
    assert!(
        matches!(error, CopyError::Interrupted { total: 7, .. }),
        "{error}"
    );
    assert!(!place.path("b/forebay.json").exists());

    // The state after a killed copy: some shards, a truncated one among them, and a temporary file.
    std::fs::copy(
        place.path("a/train-00000-of-00003"),
        place.path("b/train-00000-of-00003"),
    )
    .unwrap();
    std::fs::write(place.path("b/train-00001-of-00003"), b"cut").unwrap();
    std::fs::write(place.path("b/.train-00002-of-00003.forebay-tmp"), b"half").unwrap();
    let summary = place.copy("a", "b", CopyOptions::default()).unwrap();
    assert_eq!(summary.kept, 1);
    assert_eq!(tree(&place.path("a")), tree(&place.path("b")));
}

#[test]
fn a_damaged_shard_is_never_published() {
    let place = Place::new();
    dataset(&place.path("a"), 1, &SHARDS);
    for flipped in [0, 1_500_000, 2_999_999] {
        let mut content = bytes(2, 3_000_000);
        content[flipped] ^= 1;
        std::fs::write(place.path("a/train-00001-of-00003"), &content).unwrap();
        let error = place.copy("a", "b", CopyOptions::default()).unwrap_err();
        let CopyError::Damaged {
            count: 1, first, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(first, "train-00001-of-00003");
        let there = tree(&place.path("b"));
        assert!(!there.contains_key("forebay.json"));
        assert!(!there.contains_key("train-00001-of-00003"));
        assert!(
            there.contains_key("train-00000-of-00003"),
            "the others are copied"
        );
    }
    std::fs::write(place.path("a/train-00001-of-00003"), bytes(2, 3_000_000)).unwrap();
    place.copy("a", "b", CopyOptions::default()).unwrap();
    assert_eq!(tree(&place.path("a")), tree(&place.path("b")));

    // A shard that is damaged at the destination is replaced.
    std::fs::write(place.path("b/train-00000-of-00003"), bytes(99, 100_000)).unwrap();
    let plan = place.plan("a", "b", sync()).unwrap();
    let bad = plan
        .items()
        .find(|item| item.key == "train-00000-of-00003")
        .unwrap();
    assert_eq!(
        (bad.action, bad.why),
        (CopyAction::Copy, Some(Why::Content))
    );
    plan.run(&(), &Cancel::new()).unwrap();
    assert_eq!(tree(&place.path("a")), tree(&place.path("b")));
}

#[test]
fn an_index_of_another_shard_is_refused() {
    use forebay_shard::{IndexBuilder, RecordMeta};
    let place = Place::new();
    let manifest = dataset(&place.path("a"), 1, &SHARDS);
    let mut builder = IndexBuilder::new();
    builder.push(5, &RecordMeta::new(1, b"key")).unwrap();
    let right = manifest.splits[0].shards[0].crc32c;
    let index = place.path("a/index/train-00000-of-00003.fbi");
    std::fs::write(&index, builder.to_fbi(right)).unwrap();
    place.copy("a", "b", CopyOptions::default()).unwrap();

    for bad in [builder.to_fbi(right ^ 1), b"no index".to_vec(), Vec::new()] {
        std::fs::write(&index, bad).unwrap();
        let error = place.copy("a", "c", CopyOptions::default()).unwrap_err();
        assert!(
            matches!(error, CopyError::Damaged { count: 1, .. }),
            "{error}"
        );
        assert!(!place.path("c/forebay.json").exists());
    }
}

#[test]
fn an_incomplete_dataset_is_refused() {
    let place = Place::new();
    dataset(&place.path("a"), 1, &SHARDS);
    std::fs::write(place.path("a/train-00000-of-00003"), b"cut").unwrap();
    std::fs::remove_file(place.path("a/train-00002-of-00003")).unwrap();
    let error = place
        .copy("a", "b", CopyOptions::default())
        .unwrap_err()
        .to_string();
    for text in ["train-00000-of-00003", "3 bytes", "100000", "1 more"] {
        assert!(error.contains(text), "no {text}: {error}");
    }
    assert!(!place.path("b").exists());

    std::fs::write(place.path("a/forebay.json"), b"{}").unwrap();
    assert!(matches!(
        place.copy("a", "b", sync()),
        Err(CopyError::Manifest(_))
    ));
    std::fs::remove_file(place.path("a/forebay.json")).unwrap();
    std::fs::create_dir(place.path("a/.forebay-pack")).unwrap();
    std::fs::write(place.path("a/.forebay-pack/journal"), b"").unwrap();
    let error = place.copy("a", "b", sync()).unwrap_err();
    assert!(error.to_string().contains("unfinished dataset"), "{error}");
}

#[test]
fn another_dataset_is_replaced_only_with_overwrite() {
    let place = Place::new();
    dataset(&place.path("old"), 1, &SHARDS);
    dataset(&place.path("new"), 50, &SHARDS);
    place.copy("old", "at", CopyOptions::default()).unwrap();
    let error = place.copy("new", "at", sync()).unwrap_err();
    assert!(matches!(error, CopyError::Refused { .. }), "{error}");
    assert!(error.hint().unwrap().contains("overwritten"));
    assert_eq!(
        tree(&place.path("at")),
        tree(&place.path("old")),
        "nothing was touched"
    );

    // The same names with other bytes: the old manifest is deleted first, so a cancelled copy leaves no manifest.
    let options = CopyOptions {
        overwrite: true,
        ..sync()
    };
    let plan = place.plan("new", "at", options.clone()).unwrap();
    assert_eq!(plan.replaced().collect::<Vec<_>>(), [("", true)]);
    let stopped = Cancel::new();
    plan.run(&StopAtFirst(stopped.clone()), &stopped)
        .unwrap_err();
    assert!(!place.path("at/forebay.json").exists());
    place.copy("new", "at", options.clone()).unwrap();
    assert_eq!(tree(&place.path("at")), tree(&place.path("new")));

    // Other names: the manifest is replaced atomically, and readers of the old dataset can go on.
    dataset(&place.path("third"), 70, &[("train-00000-of-00001", 5000)]);
    let plan = place.plan("third", "at", options).unwrap();
    assert_eq!(plan.replaced().collect::<Vec<_>>(), [("", false)]);
    plan.run(&(), &Cancel::new()).unwrap();
    let there = tree(&place.path("at"));
    assert_eq!(
        there["forebay.json"],
        tree(&place.path("third"))["forebay.json"]
    );
    assert!(there.contains_key("train-00001-of-00003"));
}

#[test]
fn only_one_of_two_concurrent_copies_publishes() {
    let place = Place::new();
    dataset(&place.path("one"), 1, &SHARDS);
    dataset(&place.path("two"), 50, &[("train-00000-of-00001", 10)]);
    let plan = place.plan("one", "at", CopyOptions::default()).unwrap();
    place.copy("two", "at", CopyOptions::default()).unwrap();
    let error = plan.run(&(), &Cancel::new()).unwrap_err();
    assert!(matches!(error, CopyError::Changed { .. }), "{error}");
    assert_eq!(
        tree(&place.path("at"))["forebay.json"],
        tree(&place.path("two"))["forebay.json"]
    );
    // Publishing the same dataset twice is no conflict.
    let plan = place.plan("one", "same", CopyOptions::default()).unwrap();
    place.copy("one", "same", CopyOptions::default()).unwrap();
    plan.run(&(), &Cancel::new()).unwrap();
}

#[test]
fn only_extra_objects_are_deleted() {
    let place = Place::new();
    dataset(&place.path("a"), 1, &SHARDS);
    std::fs::create_dir_all(place.path("at/b/old/deep")).unwrap();
    std::fs::write(place.path("at/b/old/deep/file"), b"x").unwrap();
    std::fs::write(place.path("at/beside"), b"x").unwrap();
    let summary = place.copy("a", "at/b", sync()).unwrap();
    assert_eq!(summary.deleted, 0);
    assert!(
        place.path("at/b/old/deep/file").exists(),
        "not without --delete"
    );
    place.seen.take();

    let options = CopyOptions {
        delete: true,
        ..sync()
    };
    let plan = place.plan("a", "at/b", options.clone()).unwrap();
    let planned: Vec<_> = plan
        .deletions()
        .iter()
        .map(|object| object.key.as_str())
        .collect();
    assert_eq!(planned, ["old/deep/file"]);
    assert!(
        place.path("at/b/old/deep/file").exists(),
        "a plan changes nothing"
    );
    let summary = place.copy("a", "at/b", options.clone()).unwrap();
    assert_eq!((summary.deleted, summary.deleted_bytes), (1, 1));
    assert!(
        place
            .seen
            .take()
            .contains(&"Delete old/deep/file".to_owned())
    );
    assert_eq!(tree(&place.path("at/b")), tree(&place.path("a")));
    assert!(
        !place.path("at/b/old").exists(),
        "nor empty directories stay"
    );
    assert!(place.path("at/beside").exists());

    // If the source is damaged, nothing is deleted: the destination may have the last good copy.
    std::fs::write(place.path("at/b/extra"), b"x").unwrap();
    std::fs::write(place.path("at/b/train-00000-of-00003"), b"x").unwrap();
    std::fs::write(place.path("a/train-00000-of-00003"), bytes(77, 100_000)).unwrap();
    place.copy("a", "at/b", options).unwrap_err();
    assert!(place.path("at/b/extra").exists());
}

#[test]
fn dangerous_deletions_are_refused() {
    let place = Place::new();
    let options = CopyOptions {
        delete: true,
        ..sync()
    };
    std::fs::create_dir(place.path("empty")).unwrap();
    dataset(&place.path("a"), 1, &SHARDS);
    dataset(&place.path("all/one"), 20, &SHARDS);
    let before = tree(&place.path("all"));
    let error = place.copy("empty", "all", options.clone()).unwrap_err();
    assert!(error.to_string().contains("nothing there"), "{error}");
    // A single dataset, copied to the directory that contains all datasets.
    let error = place.copy("a", "all", options.clone()).unwrap_err();
    assert!(error.to_string().contains("one/forebay.json"), "{error}");
    std::fs::write(place.path("file"), b"x").unwrap();
    assert!(place.copy("file", "all/", options.clone()).is_err());
    for (from, to) in [("all", "all/one"), ("all/one", "all"), ("a", "a")] {
        let error = place.copy(from, to, options.clone()).unwrap_err();
        assert!(error.to_string().contains("overlaps"), "{error}");
    }
    assert_eq!(tree(&place.path("all")), before);
}

#[test]
fn files_of_another_dataset_are_not_replaced() {
    let place = Place::new();
    dataset(&place.path("at"), 1, &SHARDS);
    std::fs::create_dir(place.path("plain")).unwrap();
    std::fs::write(place.path("plain/train-00000-of-00003"), b"other").unwrap();
    let error = place.copy("plain", "at", sync()).unwrap_err();
    assert!(
        error.to_string().contains("train-00000-of-00003 belongs"),
        "{error}"
    );
}

#[test]
fn each_dataset_is_published_once_it_is_complete() {
    let place = Place::new();
    dataset(&place.path("all/one"), 1, &SHARDS);
    dataset(&place.path("all/two"), 20, &SHARDS);
    std::fs::write(place.path("all/README"), b"text").unwrap();
    std::fs::write(place.path("all/one/train-00002-of-00003"), b"?").unwrap();
    place.copy("all", "at", sync()).unwrap_err();
    let there = tree(&place.path("at"));
    assert!(there.contains_key("two/forebay.json") && there.contains_key("README"));
    assert!(!there.contains_key("one/forebay.json"));
    std::fs::write(place.path("all/one/train-00002-of-00003"), bytes(3, 1)).unwrap();
    let summary = place.copy("all", "at", sync()).unwrap();
    assert_eq!(summary.published, 1);
    assert_eq!(tree(&place.path("all")), tree(&place.path("at")));
}

#[test]
fn plain_files_are_compared_according_to_options() {
    let place = Place::new();
    std::fs::create_dir(place.path("a")).unwrap();
    std::fs::write(place.path("a/x"), b"one").unwrap();
    place.copy("a", "b", sync()).unwrap();
    // The object at the destination is not older and has the same size: it stays, and its bytes are not compared.
    assert_eq!(place.copy("a", "b", sync()).unwrap().kept, 1);
    std::fs::write(place.path("b/x"), b"two").unwrap();
    assert_eq!(place.copy("a", "b", sync()).unwrap().kept, 1);
    let read = CopyOptions {
        compare: Compare::Read,
        ..sync()
    };
    assert_eq!(place.copy("a", "b", read.clone()).unwrap().copied, 1);
    assert_eq!(place.copy("a", "b", read).unwrap().kept, 1);
    // `CopyMode::Copy` does not accept a modification time.
    assert_eq!(
        place.copy("a", "b", CopyOptions::default()).unwrap().copied,
        1
    );
    std::fs::write(place.path("a/x"), b"longer").unwrap();
    assert_eq!(place.copy("a", "b", sync()).unwrap().copied, 1);
    assert_eq!(tree(&place.path("a")), tree(&place.path("b")));
}

#[test]
fn a_single_object_is_copied_into_or_as_the_target() {
    let place = Place::new();
    std::fs::create_dir(place.path("dir")).unwrap();
    std::fs::write(place.path("x"), b"bytes").unwrap();
    place.copy("x", "dir", CopyOptions::default()).unwrap();
    place.copy("x", "new/", CopyOptions::default()).unwrap();
    place.copy("x", "other/y", CopyOptions::default()).unwrap();
    for name in ["dir/x", "new/x", "other/y"] {
        assert_eq!(std::fs::read(place.path(name)).unwrap(), b"bytes", "{name}");
    }
    let error = place
        .copy("missing", "dir", CopyOptions::default())
        .unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn the_bandwidth_limit_is_respected() {
    let place = Place::new();
    std::fs::create_dir(place.path("a")).unwrap();
    for name in ["x", "y"] {
        std::fs::write(place.path(&format!("a/{name}")), bytes(1, 1 << 20)).unwrap();
    }
    let options = CopyOptions {
        limiter: Some(forebay_store::Limiter::new(Some(4 << 20))),
        ..sync()
    };
    let begin = std::time::Instant::now();
    place.copy("a", "b", options).unwrap();
    // 2 MiB at 4 MiB/s takes 0.5 s, less the burst. Slower machines only take longer.
    assert!(begin.elapsed() >= std::time::Duration::from_millis(250));
}

#[test]
fn a_locked_destination_is_refused() {
    let place = Place::new();
    dataset(&place.path("a"), 1, &SHARDS);
    std::fs::create_dir(place.path("b")).unwrap();
    let held = forebay_store::DirLock::acquire(&place.path("b")).unwrap();
    let error = place.copy("a", "b", sync()).unwrap_err();
    assert!(error.to_string().contains("in use by"), "{error}");
    drop(held);
    place.copy("a", "b", sync()).unwrap();
}
