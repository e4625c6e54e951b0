//! TFRecords that TensorFlow wrote with the features of other tools: testdata/tfrecord-foreign.

use crate::support;

use std::fs;
use std::path::{Path, PathBuf};

use forebay_shard::{Dataset, Manifest};
use support::{run, text, tree};

fn golden(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tfrecord-foreign");
    root.join(name)
}

/// Copies the files, so that they can be indexed in place.
fn copied(root: &Path, name: &str) -> PathBuf {
    let dir = root.join(name);
    fs::create_dir(&dir).unwrap();
    for (path, bytes) in tree(&golden(name)) {
        fs::write(dir.join(path), bytes).unwrap();
    }
    dir
}

/// Returns key, label and image of each record, by the features that the manifest names.
fn records(root: &Path) -> Vec<(String, Option<i64>, Vec<u8>)> {
    let split = Dataset::open(root).unwrap().split("train").unwrap();
    let (mut record, mut found) = (Vec::new(), Vec::new());
    for number in 0..split.len() {
        split.read(number, &mut record).unwrap();
        let read = split.record_features().image_record(&record).unwrap();
        assert_eq!(
            read.label,
            split.label(number),
            "the index has the label of the record"
        );
        let key = String::from_utf8(split.key(number).unwrap()).unwrap();
        found.push((key, read.label, read.image.to_vec()));
    }
    found
}

#[test]
fn tensorflow_datasets_are_indexed_with_their_classes() {
    let temp = tempfile::tempdir().unwrap();
    let dir = copied(temp.path(), "tfds");
    let ran = run(["index", text(&dir)]).done();
    let said = "names of classes are taken from";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    for said in ["image      image", "label      label"] {
        assert!(ran.stdout.contains(said), "{}", ran.stdout);
    }
    let manifest = Manifest::load(&dir).unwrap();
    assert_eq!(manifest.requires, ["record-features"]);
    let classes: Vec<&str> = manifest
        .classes
        .iter()
        .map(|class| class.name.as_str())
        .collect();
    assert_eq!(
        (manifest.label_base, classes),
        (0, vec!["ant", "bee", "cat"])
    );
    let found = records(&dir);
    let labels: Vec<_> = found
        .iter()
        .map(|(key, label, _)| (key.as_str(), label.unwrap()))
        .collect();
    assert_eq!(
        labels,
        [
            ("0.jpg", 0),
            ("1.jpg", 1),
            ("2.jpg", 2),
            ("3.jpg", 0),
            ("4.jpg", 1),
            ("5.jpg", 2)
        ]
    );

    // All commands that read records use the same features.
    run(["verify", text(&dir), "--deep"]).done();
    let inspected = run(["inspect", text(&dir), "--deep", "--json"])
        .done()
        .summary();
    assert_eq!(
        (
            &inspected["images"]["records"],
            &inspected["images"]["unreadable"]
        ),
        (&6.into(), &0.into()),
        "{inspected}"
    );
    let images = temp.path().join("images");
    run(["export", text(&dir), text(&images)]).done();
    let exported = tree(&images);
    for (key, _, image) in &found {
        assert_eq!(&exported[Path::new(key)], image);
    }

    // A conversion keeps the features, with classes and labels, and creates seek points of the image.
    let fbs = temp.path().join("fbs");
    let convert = [
        "convert",
        text(&dir),
        text(&fbs),
        "--format",
        "indexed",
        "--seek-points",
        "on",
    ];
    run(convert).done();
    assert_eq!(records(&fbs), found);
    let converted = Manifest::load(&fbs).unwrap();
    assert_eq!(
        (converted.record_features, converted.classes),
        (manifest.record_features, manifest.classes)
    );
    run(["verify", text(&fbs), "--deep"]).done();
    // Converting the files themselves gives the same records.
    let direct = temp.path().join("direct");
    let ran = run([
        "convert",
        text(&golden("tfds")),
        text(&direct),
        "--format",
        "indexed",
        "--json",
    ])
    .done();
    assert_eq!(records(&direct), found);
    assert_eq!(Manifest::load(&direct).unwrap().classes.len(), 3);
    let summary = ran.summary();
    let notes = summary["notes"].to_string();
    assert!(notes.contains("label.labels.txt"), "{notes}");
    let roles = &summary["account"]["roles"];
    assert_eq!(roles["image"]["source"], "image");
    assert_eq!(roles["label"]["source"], "label");
}

#[test]
fn compressed_files_are_converted_in_order() {
    let temp = tempfile::tempdir().unwrap();
    let plain = temp.path().join("plain");
    run([
        "convert",
        text(&golden("tfds")),
        text(&plain),
        "--format",
        "tfrecord",
    ])
    .done();
    for (name, shards) in [("gzip", "2"), ("zlib", "2"), ("gzip", "5")] {
        let dst = temp.path().join(format!("{name}-{shards}"));
        let source = golden(name);
        let convert = [
            "convert",
            text(&source),
            text(&dst),
            "--format",
            "tfrecord",
            "--shards",
            shards,
        ];
        run(convert).done();
        assert_eq!(records(&dst), records(&plain), "{name} {shards}");
        run(["verify", text(&dst)]).done();
    }
    let dir = copied(temp.path(), "gzip");
    let ran = run(["index", text(&dir)]).failed_with(&["compressed as a whole (gzip)"]);
    assert!(ran.stderr.contains("`forebay convert`"), "{}", ran.stderr);
}

#[test]
fn usual_names_and_options_choose_the_features() {
    let temp = tempfile::tempdir().unwrap();
    for (name, image, label) in [
        ("raw-name", "image_raw", "y"),
        ("other-name", "photo", "class"),
    ] {
        let dir = copied(temp.path(), name);
        run(["index", text(&dir)]).done();
        let features = Manifest::load(&dir).unwrap().record_features;
        assert_eq!(
            (features.image.as_str(), features.label.as_str()),
            (image, label)
        );
        assert_eq!(records(&dir).len(), 6);
    }
    let dir = copied(temp.path(), "two-images");
    run(["index", text(&dir)]).failed_with(&["record 0", "left, right", "--image-feature"]);
    run([
        "index",
        text(&dir),
        "--image-feature",
        "right",
        "--label-base",
        "1",
        "--label-feature",
        "label",
    ])
    .failed_with(&["record 0: its label is 0", "--label-base 0"]);
    run(["index", text(&dir), "--image-feature", "right"]).done();
    assert_eq!(Manifest::load(&dir).unwrap().record_features.image, "right");
    let right = ["index", text(&dir), "--image-feature", "right"];
    run(right.into_iter().chain(["--label-feature", "left"]))
        .failed_with(&["\"left\" has the name of a label and holds no single integer"]);
}

#[test]
fn records_with_several_images_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = copied(temp.path(), "several");
    run(["index", text(&dir)]).failed_with(&["record 0", "image holds 2 values"]);
}

#[test]
fn files_that_no_loader_reads_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    for (name, what) in [
        ("pixels", "its features are image (bytes), label (int64)"),
        ("sequence", "SequenceExample"),
        ("text", "no tensorflow.Example"),
    ] {
        let dir = copied(temp.path(), name);
        let shard = "train-00000-of-00001";
        run(["index", text(&dir)]).failed_with(&[shard, "record 0", what]);
        assert!(!dir.join("forebay.json").exists());
        let dst = temp.path().join(format!("{name} converted"));
        run(["convert", text(&dir), text(&dst)]).failed_with(&[shard, "record 0", what]);
        assert!(!dst.join("forebay.json").exists());
        run(["index", text(&dir), "--allow-no-image"]).done();
    }
}

#[test]
fn a_list_of_classes_that_does_not_fit_is_not_used() {
    let temp = tempfile::tempdir().unwrap();
    let dir = copied(temp.path(), "raw-name");
    fs::write(dir.join("labels.txt"), "a\nb\nc\nd\ne\n").unwrap();
    let ran = run(["index", text(&dir)]).done();
    assert!(
        ran.stderr.contains(
            "labels.txt has 5 different names of classes and labels need 6: it is not used"
        ),
        "{}",
        ran.stderr
    );
    assert!(Manifest::load(&dir).unwrap().classes.is_empty());
    fs::write(dir.join("labels.txt"), "a\nb\nc\nd\ne\nf\n").unwrap();
    run(["index", text(&dir)]).done();
    assert_eq!(Manifest::load(&dir).unwrap().classes.len(), 6);
}
