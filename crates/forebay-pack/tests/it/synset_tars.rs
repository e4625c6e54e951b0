//! A directory with one tar per synset gives the dataset of the extracted tree, also after interruptions.

use crate::layout;
use crate::support;

use forebay_pack::{
    Action, Cancel, DatasetFormat, Error, FinishOptions, Observer, Part, Reason, ShardDone,
    Sharding, SourceLayout, finish, prepare,
};
use layout::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::*;

/// Writes a tar for each class directory of a tree, next to the tree.
pub(crate) fn tars_of(extracted: &Path) -> PathBuf {
    let tars = extracted.with_extension("tars");
    std::fs::create_dir_all(&tars).unwrap();
    for entry in std::fs::read_dir(extracted).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            let bytes = tar_of(&tree_below(&path, ""));
            std::fs::write(tars.join(format!("{name}.tar")), bytes).unwrap();
        } else {
            std::fs::copy(&path, tars.join(name)).unwrap();
        }
    }
    tars
}

fn shards(dst: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = contents(dst).into_iter();
    files
        .filter(|(path, _)| path != Path::new("forebay.json"))
        .collect()
}

fn manifest(dst: &Path) -> forebay_shard::Manifest {
    forebay_shard::Manifest::load(dst).unwrap()
}

#[test]
fn tars_of_synsets_give_the_shards_of_the_extracted_tree() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    // More archives than are kept open. One class has subdirectories, and one has no images.
    tree(&src, 70, 2);
    put(&src, b"n00000003/any/depth/x.png", &png(9, 9));
    put(&src, b"n00000004/bad.jpg", b"bad");
    std::fs::create_dir(src.join("n00000099")).unwrap();
    let tars = tars_of(&src);
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let whole = dir.path().join(format!("{format:?}"));
        let mut given = options(&src, &whole);
        given.format = format;
        let expected = run(&given).unwrap();
        for jobs in [1, 3] {
            let dst = dir.path().join(format!("{format:?} {jobs}"));
            let mut given = options(&tars, &dst);
            (given.format, given.jobs) = (format, Some(jobs));
            let summary = run(&given).unwrap();
            assert_eq!(summary.classes, 71);
            assert_eq!(summary.records(), expected.records());
            assert_eq!(manifest(&dst).pack["layout"], "synset-tars");
            assert_eq!(manifest(&dst).classes, manifest(&whole).classes);
            assert_eq!(manifest(&dst).fingerprint, manifest(&whole).fingerprint);
            assert!(shards(&dst) == shards(&whole), "{format:?} {jobs}");
            assert!(records(&dst, "train").contains_key(b"n00000003/any/depth/x.png".as_slice()));
            comparison(&dst, &tars);
        }
    }
}

#[test]
fn tars_of_synsets_are_detected_by_their_names_alone() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src, 2, 3);
    put(&src, b"classes.txt", b"n00000001\nn00000000\n");
    let tars = tars_of(&src);
    let layout = |name: &str, layout: Option<&str>| {
        let mut given = options(&tars, &dir.path().join(name));
        given.layout = layout.map(|name| SourceLayout::named(name).unwrap());
        prepare(&given, &(), &Cancel::new()).map(|prepared| prepared.census().layout().name())
    };
    assert_eq!(layout("detected", None).unwrap(), "synset-tars");
    let summary = run(&options(&tars, &dir.path().join("listed"))).unwrap();
    assert_eq!(summary.classes, 2);
    let label =
        records(&dir.path().join("listed"), "train")[&b"n00000001/n00000001_0.JPEG".to_vec()].label;
    assert_eq!(label, 1, "a list beside the tars numbers the classes");
    // Any other tar prevents the detection, and next to directories the tars are taken as already extracted.
    std::fs::rename(tars.join("n00000001.tar"), tars.join("dogs.tar")).unwrap();
    std::fs::remove_file(tars.join("classes.txt")).unwrap();
    assert!(layout("other", None).is_err());
    assert_eq!(
        layout("forced", Some("synset-tars")).unwrap(),
        "synset-tars"
    );
    std::fs::rename(tars.join("dogs.tar"), tars.join("n00000001.tar")).unwrap();
    put(&tars, b"n00000000/x.jpg", &jpeg(8, 8, 3, b"x"));
    assert_eq!(layout("beside", None).unwrap(), "classes");
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let mut given = options(&empty, &dir.path().join("none"));
    given.layout = SourceLayout::named("synset-tars");
    let error = run(&given).unwrap_err().to_string();
    assert!(error.contains("there is no tar of a synset"), "{error}");
}

/// Cancels a pack after the first shard.
struct StopAfterOne(Cancel, AtomicUsize);

impl Observer for StopAfterOne {
    fn shard_done(&self, _shard: &ShardDone) {
        if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
            self.0.cancel();
        }
    }
}

#[test]
fn a_pack_of_synset_tars_resumes_and_runs_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src, 8, 10);
    let tars = tars_of(&src);
    let given = |name: &str| {
        let mut given = options(&tars, &dir.path().join(name));
        (given.jobs, given.sharding) = (Some(1), Sharding::Count(12));
        given
    };
    run(&given("whole")).unwrap();
    let stop = StopAfterOne(Cancel::new(), AtomicUsize::new(0));
    let error = forebay_pack::pack(&given("resumed"), &stop, &stop.0).unwrap_err();
    assert!(
        matches!(error, Error::Interrupted { finished: 1.., .. }),
        "{error}"
    );
    assert!(run(&given("resumed")).unwrap().resumed_shards > 0);
    assert_same(&dir.path().join("whole"), &dir.path().join("resumed"));
    for number in 1..=3 {
        let prepared = prepare(&given("parts"), &(), &Cancel::new()).unwrap();
        let part = Part::new(number, 3).unwrap();
        prepared.run_part(part, &(), &Cancel::new()).unwrap();
    }
    let parts = dir.path().join("parts");
    finish(
        &FinishOptions::new(parts.as_path()),
        None,
        &(),
        &Cancel::new(),
    )
    .unwrap();
    assert_same(&dir.path().join("whole"), &parts);
}

#[test]
fn labels_may_come_from_a_file_beside_the_tars() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src, 5, 4);
    let tars = tars_of(&src);
    let mut lines = "path,label\n".to_owned();
    for (number, (path, _)) in contents(&src).iter().enumerate() {
        lines += &format!("{},{}\n", path.display(), number % 3 + 1);
    }
    let list = dir.path().join("list.csv");
    std::fs::write(&list, lines).unwrap();
    for (src, dst) in [(&src, "extracted"), (&tars, "packed")] {
        let mut given = options(src, &dir.path().join(dst));
        given.labels = Some(list.clone());
        run(&given).unwrap();
    }
    let both = ["extracted", "packed"].map(|dst| shards(&dir.path().join(dst)));
    assert!(both[0] == both[1]);
}

#[test]
fn a_damaged_tar_is_refused_with_its_name_and_offset() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    // More archives than are kept open, so the pack opens each one again when it reads its images.
    tree(&src, 70, 2);
    let tars = tars_of(&src);
    let victim = tars.join("n00000001.tar");
    let whole = std::fs::read(&victim).unwrap();
    let refused = |name: &str, expected: &str| {
        let error = run(&options(&tars, &dir.path().join(name)))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("n00000001.tar") && error.contains(expected),
            "{error}"
        );
    };
    std::fs::write(&victim, &whole[..whole.len() / 2]).unwrap();
    refused("cut", "cut short");
    let mut flipped = whole.clone();
    flipped[3] ^= 0x40;
    std::fs::write(&victim, &flipped).unwrap();
    refused("flipped", "no tar");
    std::fs::write(&victim, gzip(&whole)).unwrap();
    refused("gzip", "decompress it");
    std::fs::write(&victim, b"hello").unwrap();
    refused("text", "no tar");
    // A tar that changes between census and reading stops the pack.
    std::fs::write(&victim, &whole).unwrap();
    let prepared = prepare(
        &options(&tars, &dir.path().join("later")),
        &(),
        &Cancel::new(),
    )
    .unwrap();
    std::fs::write(&victim, &whole[..whole.len() / 2]).unwrap();
    let error = prepared.run(&(), &Cancel::new()).unwrap_err().to_string();
    assert!(error.contains("changed since its census"), "{error}");
}

/// Truncates a tar after the first shard.
struct CutAfterOne(PathBuf, AtomicUsize);

impl Observer for CutAfterOne {
    fn shard_done(&self, _shard: &ShardDone) {
        if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
            let whole = std::fs::read(&self.0).unwrap();
            std::fs::write(&self.0, &whole[..whole.len() / 2]).unwrap();
        }
    }
}

#[test]
fn a_tar_that_changes_while_many_are_packed_stops_the_pack() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    // More archives than are kept open.
    tree(&src, 70, 2);
    let tars = tars_of(&src);
    let dst = dir.path().join("dst");
    let mut given = options(&tars, &dst);
    (given.jobs, given.sharding) = (Some(1), Sharding::Count(70));
    given.shuffle = forebay_pack::ShuffleWhen::Never;
    let cut = CutAfterOne(tars.join("n00000069.tar"), AtomicUsize::new(0));
    let error = forebay_pack::pack(&given, &cut, &Cancel::new()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::SourceChanged(_)), "{text}");
    assert!(
        text.contains("n00000069.tar: the archive has changed since its census"),
        "{text}"
    );
    assert!(!dst.join("forebay.json").exists());
}

#[test]
fn hostile_names_stay_in_the_directory_of_their_tar() {
    let dir = tempfile::tempdir().unwrap();
    let tars = dir.path().join("tars");
    let image = |text: &str| jpeg(10, 10, 3, text.as_bytes());
    let mut header = tar::Header::new_gnu();
    let up = b"../n00000002/up.jpg";
    header.as_old_mut().name[..up.len()].copy_from_slice(up);
    header.set_size(0);
    header.set_cksum();
    let bytes = [
        header.as_bytes().to_vec(),
        tar_of(&[
            ("a.jpg".to_owned(), image("a")),
            (".hidden.jpg".to_owned(), image("h")),
            ("notes.txt".to_owned(), b"text".to_vec()),
        ]),
    ];
    put(&tars, b"n00000001.tar", &bytes.concat());
    put(
        &tars,
        b"n00000002.tar",
        &tar_of(&[("b.jpg".to_owned(), image("b"))]),
    );
    put(&tars, b"outside.jpg", &image("o"));
    // Without the extension, each name would be the directory itself or its parent.
    for name in [&b".tar"[..], b"..tar", b"...tar"] {
        put(&tars, name, &tar_of(&[("c.jpg".to_owned(), image("c"))]));
    }
    let dst = dir.path().join("dst");
    run(&options(&tars, &dst)).unwrap();
    let keys: Vec<_> = records(&dst, "train").into_keys().collect();
    assert_eq!(
        keys,
        [b"n00000001/a.jpg".to_vec(), b"n00000002/b.jpg".to_vec()]
    );
    let report = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap();
    let findings: Vec<forebay_pack::Finding> = report
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let has = |path: &str, action, reason| {
        let mut all = findings.iter();
        all.any(|found| (found.path.as_str(), found.action, found.reason) == (path, action, reason))
    };
    assert!(has(
        "../n00000002/up.jpg",
        Action::Skipped,
        Reason::UnsafeName
    ));
    assert!(has(
        "n00000001/.hidden.jpg",
        Action::Ignored,
        Reason::Hidden
    ));
    assert!(has(
        "n00000001/notes.txt",
        Action::Ignored,
        Reason::NotAnImage
    ));
    assert!(
        has("outside.jpg", Action::Skipped, Reason::Outside),
        "{findings:?}"
    );
}
