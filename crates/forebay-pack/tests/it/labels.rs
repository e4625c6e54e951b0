//! Labels: files of labels, split columns in them, and trees that store labels where `pack` does not look.

use crate::layout;
use crate::support;

use forebay_pack::{Action, Error, Finding, OnBad, Reason, SourceError, SourceLayout, Summary};
use forebay_shard::{Dataset, ExampleView, Manifest};
use layout::*;
use std::path::{Path, PathBuf};
use support::*;

fn pack(src: &Path, dst: &Path) -> forebay_pack::Result<Summary> {
    run(&options(src, dst))
}

fn picture(src: &Path, path: &str) {
    put(src, path.as_bytes(), &jpeg(10, 20, 3, path.as_bytes()));
}

/// Creates a source with files at these paths; files with names of images are images.
fn source(root: &Path, paths: &[&str]) -> PathBuf {
    let src = root.join("src");
    for path in paths {
        if path.ends_with(".jpg") {
            picture(&src, path);
        } else {
            put(&src, path.as_bytes(), b"x");
        }
    }
    src
}

fn report(dst: &Path) -> Vec<Finding> {
    let text = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap_or_default();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn labels(dst: &Path, split: &str) -> Vec<(String, i64)> {
    let records = records(dst, split).into_iter();
    let text = |key: Vec<u8>| String::from_utf8(key).unwrap();
    records.map(|(key, seen)| (text(key), seen.label)).collect()
}

#[test]
fn a_split_column_divides_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path(), &["1.jpg", "2.jpg", "deep/3.jpg", "4.jpg"]);
    let file = dir.path().join("labels.csv");
    std::fs::write(
        &file,
        "path,label,split\n1.jpg,1,train\n2.jpg,2,val\ndeep/3.jpg,2.0,test\n4.jpg,1,train\n",
    )
    .unwrap();
    let dst = dir.path().join("dst");
    let mut given = options(&src, &dst);
    given.labels = Some(file.clone());
    assert_eq!(run(&given).unwrap().skipped(), 0);
    let pair = |key: &str, label| (key.to_owned(), label);
    assert_eq!(labels(&dst, "train"), [pair("1.jpg", 1), pair("4.jpg", 1)]);
    assert_eq!(labels(&dst, "validation"), [pair("2.jpg", 2)]);
    assert_eq!(labels(&dst, "test"), [pair("deep/3.jpg", 2)]);
    let features = Manifest::load(&dst).unwrap().features;
    assert!(features.iter().all(|feature| feature.name != "split"));
    // The comparison with the source finds each file in the split that the column assigned.
    let against = comparison(&dst, &src);
    let dataset = Dataset::open(&dst).unwrap();
    for name in ["train", "validation", "test"] {
        for shard in dataset.split(name).unwrap().shards() {
            let mut scan = shard.scan(0..shard.len());
            while let Some(record) = scan.next_record().unwrap() {
                against.check(shard.path(), record.info.index, record.bytes);
            }
        }
    }
    let compared = against.finish().unwrap();
    assert_eq!(
        (compared.verbatim, compared.differences.len()),
        (4, 0),
        "{compared:?}"
    );
    // A single split.
    let one = dir.path().join("one");
    let mut given = options(&src, &one);
    given.labels = Some(file.clone());
    given.split = Some("validation".into());
    run(&given).unwrap();
    assert_eq!(labels(&one, "validation"), [pair("2.jpg", 2)]);
    assert_eq!(Manifest::load(&one).unwrap().splits.len(), 1);
    // Directories of splits must agree with the column.
    let split = dir.path().join("split");
    picture(&split, "train/1.jpg");
    std::fs::write(&file, "path,label,split\ntrain/1.jpg,1,val\n").unwrap();
    let mut given = options(&split, &dir.path().join("no"));
    given.labels = Some(file);
    let error = run(&given).unwrap_err().to_string();
    assert!(
        error.contains("line 2: train/1.jpg is of the split validation"),
        "{error}"
    );
}

#[test]
fn a_line_never_labels_two_files() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path(), &["train/a.jpg", "val/a.jpg"]);
    let file = dir.path().join("labels.csv");
    std::fs::write(&file, "path,label\na.jpg,1\n").unwrap();
    let mut given = options(&src, &dir.path().join("dst"));
    given.labels = Some(file.clone());
    let error = run(&given).unwrap_err().to_string();
    assert!(
        error.contains("line 2: a.jpg stands for several files"),
        "{error}"
    );
    std::fs::write(&file, "path,label\ntrain/a,1\nval/a,2\n").unwrap();
    run(&given).unwrap();
    let dst = dir.path().join("dst");
    assert_eq!(labels(&dst, "validation"), [("a.jpg".to_owned(), 2)]);
}

#[test]
fn a_line_for_each_box_makes_lists() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path(), &["0a.jpg", "0b.jpg"]);
    let file = dir.path().join("boxes.csv");
    std::fs::write(
        &file,
        "ImageID,LabelName,XMin,XMax\n0b,dog,0.5,1\n0a,cat,0.25,0.5\n0b,cat,0,0.5\n",
    )
    .unwrap();
    let dst = dir.path().join("dst");
    let mut given = options(&src, &dst);
    given.labels = Some(file);
    let summary = run(&given).unwrap();
    assert!(
        summary.warnings[0].contains("1 of 2 images have several lines"),
        "{:?}",
        summary.warnings
    );
    assert_eq!(
        labels(&dst, "train"),
        [("0a.jpg".to_owned(), 1), ("0b.jpg".to_owned(), -1)]
    );
    let split = Dataset::open(&dst).unwrap().split("train").unwrap();
    let mut record = Vec::new();
    let number = split.find_key(b"0b.jpg").unwrap().unwrap();
    split.read(number, &mut record).unwrap();
    let example = ExampleView::parse(&record).unwrap();
    assert_eq!(example.get("XMin").unwrap().floats().unwrap(), [0.5, 0.0]);
    let objects = example.get("image/object/class/label").unwrap();
    assert_eq!(objects.int64s().unwrap(), [2, 1]);
    let manifest = Manifest::load(&dst).unwrap();
    let shape = |name: &str| {
        manifest
            .features
            .iter()
            .find(|f| f.name == name)
            .unwrap()
            .shape
            .clone()
    };
    assert_eq!(
        (shape("XMin"), shape("image/object/class/label")),
        (vec![None], vec![None])
    );
}

#[test]
fn trees_of_other_tools_are_refused() {
    let cases: &[(&str, &[&str])] = &[
        (
            "COCO",
            &[
                "annotations/instances_val2017.json",
                "train2017/1.jpg",
                "val2017/2.jpg",
            ],
        ),
        (
            "COCO",
            &["annotations/all.json", "train/1.jpg", "val/2.jpg"],
        ),
        ("COCO", &["train/_annotations.coco.json", "train/1.jpg"]),
        (
            "Pascal VOC",
            &[
                "Annotations/1.xml",
                "JPEGImages/1.jpg",
                "ImageSets/Main/train.txt",
            ],
        ),
        ("Pascal VOC", &["VOCdevkit/VOC2012/JPEGImages/1.jpg"]),
        (
            "YOLO",
            &["images/train/1.jpg", "labels/train/1.txt", "data.yaml"],
        ),
        ("YOLO", &["train/images/1.jpg", "train/labels/1.txt"]),
        ("text files", &["1.jpg", "1.txt", "2.jpg", "2.txt"]),
        ("XML annotations", &["1.jpg", "1.xml"]),
        ("OpenImages", &["train-annotations-bbox.csv", "0a.jpg"]),
        (
            "WebDataset",
            &["part/1.jpg", "part/1.cls", "part/2.jpg", "part/2.cls"],
        ),
        ("WebDataset", &["1.jpg", "1.json"]),
        (
            "all images in one directory",
            &["images/a/1.jpg", "images/b/2.jpg", "meta/classes.json"],
        ),
        ("MDS", &["index.json", "shard.00000.mds"]),
        ("MDS", &["train/index.json", "train/shard.00000.mds.zstd"]),
        ("Parquet", &["data/train-00000-of-00001.parquet"]),
        ("TFRecords", &["train-00000-of-00004"]),
        ("LMDB", &["data.mdb", "lock.mdb"]),
        ("FFCV", &["train.beton"]),
        ("tar archives", &["shard-000000.tar", "shard-000001.tar"]),
        (
            "Forebay dataset",
            &["forebay.json", "train-00000-of-00001.fbs"],
        ),
    ];
    for (format, paths) in cases {
        let dir = tempfile::tempdir().unwrap();
        let src = source(dir.path(), paths);
        let error = pack(&src, &dir.path().join("dst")).unwrap_err();
        let hint = error.hint().unwrap_or_default();
        let text = error.to_string();
        assert!(
            matches!(error, Error::Source(SourceError::ForeignTree { .. })),
            "{format}: {text}"
        );
        assert!(text.contains(format), "{format}: {text}");
        assert!(hint.contains("layout classes"), "{format}: {hint}");
        assert!(!dir.path().join("dst").exists(), "{format}");
    }
}

#[test]
fn an_archive_of_a_webdataset_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = jpeg(10, 20, 3, b"x");
    for (prefix, ending) in [
        ("part/", "cls"),
        ("", "json"),
        ("a/", "json"),
        ("", "txt"),
        ("a/", "txt"),
    ] {
        let file = |name: &str, bytes: &[u8]| (format!("{prefix}{name}"), bytes.to_vec());
        let path = dir.path().join("shard-000000.tar");
        write_archive(
            &path,
            &[
                file(&format!("0001.{ending}"), b"3"),
                file("0001.jpg", &image),
                file(&format!("0002.{ending}"), b"4"),
                file("0002.jpg", &image),
            ],
        );
        let error = pack(&path, &dir.path().join("dst")).unwrap_err();
        assert!(
            matches!(error, Error::Source(SourceError::ForeignTree { .. })),
            "{prefix}{ending}: {error}"
        );
        assert!(error.to_string().contains("WebDataset"), "{error}");
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("`forebay convert SRC DST --format indexed`"),
            "{hint}"
        );
    }
}

#[test]
fn any_tree_is_packed_with_an_explicit_layout_or_labels() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(
        dir.path(),
        &["images/1.jpg", "labels/1.txt", "labels/2.jpg"],
    );
    let mut forced = options(&src, &dir.path().join("forced"));
    forced.layout = SourceLayout::named("classes");
    assert_eq!(run(&forced).unwrap().classes, 2);
    let file = dir.path().join("list.csv");
    std::fs::write(&file, "path,label\nimages/1.jpg,7\n").unwrap();
    let mut listed = options(&src, &dir.path().join("listed"));
    listed.labels = Some(file);
    run(&listed).unwrap();
    assert_eq!(
        labels(&dir.path().join("listed"), "train"),
        [("images/1.jpg".to_owned(), 7)]
    );
}

#[test]
fn folders_of_classes_with_files_beside_images_are_packed() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(
        dir.path(),
        &[
            "cat/1.jpg",
            "cat/1.txt",
            "dog/2.jpg",
            "dog/2.txt",
            "readme.txt",
        ],
    );
    let summary = pack(&src, &dir.path().join("dst")).unwrap();
    assert_eq!(
        (summary.classes, summary.warnings.len()),
        (2, 0),
        "{:?}",
        summary.warnings
    );
}

#[test]
fn label_files_beside_images_are_suggested_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path(), &["1.jpg", "2.jpg", "annotations.json"]);
    put(&src, b"labels.csv", b"path,label\n1.jpg,1\n2.jpg,2\n");
    put(&src, b"notes.csv", b"a,b\n1,2\n");
    let dst = dir.path().join("dst");
    let summary = pack(&src, &dst).unwrap();
    assert_eq!(
        labels(&dst, "train"),
        [("1.jpg".to_owned(), -1), ("2.jpg".to_owned(), -1)]
    );
    let all = summary.warnings.join("\n");
    let option = format!("labels {}", src.join("labels.csv").display());
    assert!(
        all.contains("labels.csv may hold labels") && all.contains(&option),
        "{all}"
    );
    assert!(all.contains("annotations.json may hold labels"), "{all}");
    let found: Vec<_> = report(&dst)
        .into_iter()
        .map(|f| (f.path, f.action, f.reason))
        .collect();
    let unused = |path: &str| (path.to_owned(), Action::Ignored, Reason::UnusedLabels);
    assert_eq!(
        found,
        [
            unused("annotations.json"),
            unused("labels.csv"),
            unused("notes.csv")
        ]
    );
    // The same holds in the directory of a split.
    let src = dir.path().join("splits");
    picture(&src, "train/1.jpg");
    put(
        &src,
        b"train/metadata.jsonl",
        b"{\"file_name\":\"1.jpg\",\"label\":3}\n",
    );
    let summary = pack(&src, &dir.path().join("other")).unwrap();
    let all = summary.warnings.join("\n");
    assert!(
        all.contains("train/metadata.jsonl may hold labels"),
        "{all}"
    );
}

#[test]
fn a_file_too_large_for_a_record_does_not_stop_a_pack() {
    let dir = tempfile::tempdir().unwrap();
    let src = source(dir.path(), &["a/1.jpg", "b/2.jpg"]);
    let sparse = std::fs::File::create(src.join("a/huge.jpg")).unwrap();
    sparse.set_len(100 << 30).unwrap();
    let dst = dir.path().join("dst");
    let summary = pack(&src, &dst).unwrap();
    assert_eq!((summary.records(), summary.skipped()), (2, 1));
    let found = report(&dst);
    assert_eq!(
        (found[0].path.as_str(), found[0].reason),
        ("a/huge.jpg", Reason::TooLarge)
    );
    let mut strict = options(&src, &dir.path().join("strict"));
    strict.on_bad = OnBad::Fail;
    let error = run(&strict).unwrap_err();
    assert!(
        matches!(&error, Error::BadImage(finding) if finding.reason == Reason::TooLarge),
        "{error}"
    );
}
