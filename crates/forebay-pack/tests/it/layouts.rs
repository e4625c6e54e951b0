//! Packs every layout that a source can have, built from the images of testdata.

use crate::layout;
use crate::support;

use forebay_pack::{Action, Error, Finding, PackOptions, Reason, SourceError, SourceLayout};
use forebay_shard::{Dataset, ExampleView, Manifest};
use layout::*;
use std::collections::BTreeMap;
use std::path::Path;
use support::*;

fn pack(src: &Path, dst: &Path) -> forebay_pack::Summary {
    run(&options(src, dst)).unwrap()
}

fn layout_of(dst: &Path) -> String {
    let manifest = Manifest::load(dst).unwrap();
    manifest.pack["layout"].as_str().unwrap().to_owned()
}

/// Returns key, label and image of every record.
fn essence(dst: &Path, split: &str) -> BTreeMap<Vec<u8>, (i64, Vec<u8>)> {
    let records = records(dst, split).into_iter();
    records
        .map(|(key, seen)| (key, (seen.label, seen.image)))
        .collect()
}

fn report(dst: &Path) -> Vec<Finding> {
    let text = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Passes the features of the record with this key to `look`, as a reader of the dataset sees them.
fn example(dst: &Path, split: &str, key: &str, look: impl Fn(&ExampleView<'_>)) {
    let dataset = Dataset::open(dst).unwrap();
    let split = dataset.split(split).unwrap();
    let mut record = Vec::new();
    for number in 0..split.len() {
        if split.key(number).unwrap() == key.as_bytes() {
            split.read(number, &mut record).unwrap();
            return look(&ExampleView::parse(&record).unwrap());
        }
    }
    panic!("there is no record {key}");
}

fn floats(example: &ExampleView<'_>, name: &str) -> Vec<f32> {
    let feature = example
        .get(name)
        .unwrap_or_else(|| panic!("no feature {name}"));
    feature.floats().unwrap()
}

#[test]
fn archives_of_every_kind_equal_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let train = pictures().join("train");
    let folder = dir.path().join("folder");
    let summary = pack(&train, &folder);
    let expected = essence(&folder, "train");
    assert_eq!(expected.len(), 48);
    for (name, prefix) in [
        ("a.tar", ""),
        ("b.tar.gz", "./"),
        ("c.tar.zst", "101_ObjectCategories/"),
        ("d.zip", ""),
        ("e.zip", "some/where/"),
        ("f.tar", "./101_ObjectCategories/"),
    ] {
        let archive = dir.path().join(name);
        write_archive(&archive, &tree_below(&train, prefix));
        for jobs in [1, 3] {
            let dst = dir.path().join(format!("{name}-{jobs}"));
            let mut options = options(&archive, &dst);
            options.jobs = Some(jobs);
            let packed = run(&options).unwrap();
            assert_eq!(packed.skipped(), 0, "{name}: {:?}", report(&dst));
            assert_eq!(packed.image_bytes, summary.image_bytes);
            assert!(essence(&dst, "train") == expected, "{name}");
            assert_eq!(
                Manifest::load(&dst).unwrap().classes,
                Manifest::load(&folder).unwrap().classes
            );
        }
        assert_same(
            &dir.path().join(format!("{name}-1")),
            &dir.path().join(format!("{name}-3")),
        );
    }
}

#[test]
fn an_archive_may_have_splits_and_lists() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    pack(&pictures(), &folder);
    for name in ["all.tar", "all.zip", "all.tar.zst"] {
        let archive = dir.path().join(name);
        write_archive(&archive, &tree_below(&pictures(), "images/"));
        let dst = dir.path().join(format!("{name}.d"));
        pack(&archive, &dst);
        for split in ["train", "validation"] {
            assert!(
                essence(&dst, split) == essence(&folder, split),
                "{name} {split}"
            );
        }
        let classes = Manifest::load(&dst).unwrap().classes;
        assert_eq!(classes, Manifest::load(&folder).unwrap().classes);
        assert_eq!(
            classes[4].text.as_deref(),
            Some("seashore, coast, seacoast, sea-coast")
        );
        assert_eq!(layout_of(&dst), "splits");
    }
    // An archive of one split has the name of the split in its own name.
    let archive = dir.path().join("some_val.tar");
    write_archive(&archive, &tree_below(&pictures().join("val"), ""));
    let dst = dir.path().join("val");
    pack(&archive, &dst);
    assert!(essence(&dst, "validation") == essence(&folder, "validation"));
}

#[test]
fn the_tpu_layout_has_a_line_for_each_validation_image() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    copy_tree(&pictures().join("train"), &src.join("train"));
    let mut lines = Vec::new();
    for (class, name, bytes) in validation() {
        put(&src, format!("validation/{name}").as_bytes(), &bytes);
        lines.push((name, class));
    }
    lines.sort();
    let text: String = lines
        .iter()
        .map(|(_, class)| format!("{class}\n"))
        .collect();
    put(&src, b"synset_labels.txt", text.as_bytes());
    let summary = pack(&src, &dst);
    assert_eq!((summary.records(), summary.skipped()), (60, 0));
    assert_eq!(layout_of(&dst), "tpu");
    let found = records(&dst, "validation");
    for (name, class) in &lines {
        assert_eq!(found[name.as_bytes()].synset.as_ref(), Some(class));
        assert_eq!(found[name.as_bytes()].label, label_of(class));
    }
}

#[test]
fn kaggle_s_layout_has_all_splits_text_and_boxes() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    let images = kaggle(&src);
    let archive = dir.path().join("imagenet.tar.gz");
    write_archive(&archive, &tree_below(&src.join("ILSVRC"), "ILSVRC/"));
    // The lists are next to the archive, as in Kaggle's distribution.
    for list in ["LOC_synset_mapping.txt", "LOC_val_solution.csv"] {
        std::fs::copy(src.join(list), dir.path().join(list)).unwrap();
    }
    for (name, src) in [
        ("top", src.clone()),
        ("below", src.join("ILSVRC")),
        ("archive", archive),
    ] {
        let dst = dir.path().join(name);
        let summary = pack(&src, &dst);
        assert_eq!(layout_of(&dst), "kaggle");
        assert_eq!(summary.records(), images as u64);
        let splits: Vec<_> = summary
            .splits
            .iter()
            .map(|s| (s.name.as_str(), s.records))
            .collect();
        assert_eq!(splits, [("test", 2), ("train", 48), ("validation", 12)]);
        assert_eq!(summary.skipped(), 0, "{:?}", report(&dst));

        let alp = "n09193705/n09193705_11.JPEG";
        example(&dst, "train", alp, |example| {
            // The annotation is for 800 x 600: 80 60 400 450, 600 540 200 -30 (corners swapped), and a box without area.
            assert_eq!(floats(example, "image/object/bbox/xmin"), [0.1, 0.25]);
            assert_eq!(floats(example, "image/object/bbox/xmax"), [0.5, 0.75]);
            assert_eq!(floats(example, "image/object/bbox/ymin"), [0.1, 0.0]);
            assert_eq!(floats(example, "image/object/bbox/ymax"), [0.75, 0.9]);
            let labels: Vec<i64> = example
                .get("image/object/bbox/label")
                .unwrap()
                .int64s()
                .unwrap();
            assert_eq!(labels, [3, 3]);
            assert_eq!(
                example.bytes("image/class/text").unwrap(),
                Some(&b"alp"[..])
            );
            assert_eq!(
                example.bytes("image/class/synset").unwrap(),
                Some(&b"n09193705"[..])
            );
        });
        for (split, key) in [
            ("train", "n09193705/n09193705_122.JPEG"),
            ("test", "ILSVRC2012_test_00000001.JPEG"),
        ] {
            example(&dst, split, key, |example| {
                for side in ["xmin", "xmax", "ymin", "ymax"] {
                    assert!(floats(example, &format!("image/object/bbox/{side}")).is_empty());
                }
                assert!(example.get("image/object/bbox/label").is_some());
            });
        }
        example(&dst, "test", "ILSVRC2012_test_00000001.JPEG", |example| {
            assert_eq!(example.int64("image/class/label").unwrap(), Some(-1));
        });
        let found = records(&dst, "validation");
        for (class, name, bytes) in validation() {
            let seen = &found[name.as_bytes()];
            assert_eq!((seen.label, seen.image == bytes), (label_of(&class), true));
        }
        let manifest = Manifest::load(&dst).unwrap();
        let shape = |name: &str| {
            manifest
                .features
                .iter()
                .find(|f| f.name == name)
                .map(|f| f.shape.clone())
        };
        assert_eq!(shape("image/object/bbox/xmin"), Some(vec![None]));
        let bad = report(&dst);
        let bad: Vec<_> = bad
            .iter()
            .filter(|f| f.reason == Reason::BadAnnotation)
            .collect();
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert!(bad[0].path.ends_with("n11939491_1.xml"), "{bad:?}");
        let all = report(&dst);
        let mut scaled = all.iter().filter(|f| f.reason == Reason::ScaledBoxes);
        let scaled = (scaled.next().unwrap(), scaled.next());
        assert!(
            scaled.0.path.ends_with(alp) && scaled.1.is_none(),
            "{scaled:?}"
        );
        assert_eq!(scaled.0.action, Action::Kept);
    }
    for split in ["train", "validation", "test"] {
        assert!(
            essence(&dir.path().join("top"), split) == essence(&dir.path().join("archive"), split)
        );
    }
}

/// The image has 375 x 500 pixels, but its annotation is for 800 x 600.
#[test]
fn images_whose_boxes_cannot_fit_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    kaggle(&src);
    let name = "train/n09193705/n09193705_122";
    let xml = format!("ILSVRC/Annotations/CLS-LOC/{name}.xml");
    std::fs::write(src.join(xml), annotation(BOXES)).unwrap();
    let dst = dir.path().join("dst");
    let summary = pack(&src, &dst);
    assert_eq!(summary.skipped(), 1);
    let all = report(&dst);
    let left_out = all.iter().find(|f| f.action == Action::Skipped).unwrap();
    assert_eq!(left_out.reason, Reason::BadAnnotation);
    assert!(left_out.path.ends_with("n09193705_122.JPEG"), "{left_out}");
    assert!(left_out.detail.contains("800x600"), "{left_out}");
}

#[test]
fn the_academic_archives_are_packed_directly() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    academic(&src);
    let dst = dir.path().join("dst");
    let summary = pack(&src, &dst);
    assert_eq!(summary.skipped(), 0, "{:?}", report(&dst));
    assert_eq!(layout_of(&dst), "academic");
    let folder = dir.path().join("folder");
    pack(&pictures(), &folder);
    assert!(essence(&dst, "train") == essence(&folder, "train"));
    // The same images, keyed by their file names as in the archive, with labels from meta.mat.
    let found = records(&dst, "validation");
    assert_eq!(found.len(), 12);
    for (class, name, bytes) in validation() {
        let seen = &found[name.as_bytes()];
        assert_eq!((seen.label, seen.image == bytes), (label_of(&class), true));
        assert_eq!(seen.synset.as_ref(), Some(&class));
    }
    assert_eq!(
        found[&b"ILSVRC2012_val_00000005.JPEG"[..]].text.as_deref(),
        Some("alp")
    );
    assert_eq!(records(&dst, "test").len(), 1);
    example(&dst, "train", "n09193705/n09193705_11.JPEG", |example| {
        assert_eq!(floats(example, "image/object/bbox/xmax"), [0.5, 0.75]);
    });
    // A single split has the same labels.
    let alone = dir.path().join("alone");
    let mut one = options(&src, &alone);
    one.split = Some("validation".into());
    run(&one).unwrap();
    assert!(essence(&alone, "validation") == essence(&dst, "validation"));
    // Without the development kit, Kaggle's lists next to the archives are used.
    std::fs::remove_file(src.join("ILSVRC2012_devkit_t12.tar.gz")).unwrap();
    let kaggle_src = dir.path().join("kaggle");
    kaggle(&kaggle_src);
    for list in ["LOC_synset_mapping.txt", "LOC_val_solution.csv"] {
        std::fs::copy(kaggle_src.join(list), src.join(list)).unwrap();
    }
    let listed = dir.path().join("listed");
    assert_eq!(pack(&src, &listed).warnings.len(), 1);
    assert!(essence(&listed, "validation") == essence(&dst, "validation"));
    // The tar of tars can be packed alone.
    let tars = dir.path().join("tars");
    pack(&src.join("ILSVRC2012_img_train.tar"), &tars);
    assert!(essence(&tars, "train") == essence(&folder, "train"));
}

#[test]
fn a_subset_keeps_the_label_numbers_of_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    academic(&src);
    // Two of six classes, and two validation images.
    let few: Vec<_> = tree_below(&pictures().join("train"), "")
        .into_iter()
        .filter(|(name, _)| name.starts_with("n09332890") || name.starts_with("n11939491"))
        .collect();
    write_tar_of_tars(&src.join("ILSVRC2012_img_train.tar"), &few);
    let some: Vec<_> = validation()
        .into_iter()
        .skip(9)
        .map(|(_, name, bytes)| (name, bytes))
        .collect();
    write_archive(&src.join("ILSVRC2012_img_val.tar"), &some);
    let dst = dir.path().join("dst");
    pack(&src, &dst);
    let labels: std::collections::BTreeSet<i64> = records(&dst, "train")
        .values()
        .map(|seen| seen.label)
        .collect();
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), [4, 6]);
    let found = records(&dst, "validation");
    assert_eq!(found.len(), 3);
    for (class, name, _) in validation().into_iter().skip(9) {
        assert_eq!(found[name.as_bytes()].label, label_of(&class));
    }
}

#[test]
fn a_file_of_labels_overrides_directories() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    for (number, path) in [
        "top.jpg",
        "a/one.jpg",
        "a/deep/two.jpg",
        "b/three.jpg",
        "b/four.jpg",
    ]
    .iter()
    .enumerate()
    {
        put(
            &src,
            path.as_bytes(),
            &jpeg(10 + number as u16, 20, 3, b"x"),
        );
    }
    let file = dir.path().join("labels.csv");
    std::fs::write(
        &file,
        "path,class,score,place\ntop.jpg,dog,0.5,\"here, or there\"\na/one.jpg,cat,1,x\na/deep/two.jpg,dog,,y\nb/three.jpg,ant,-2,z\ngone.jpg,ant,1,\n",
    )
    .unwrap();
    let mut given = options(&src, &dir.path().join("dst"));
    given.labels = Some(file.clone());
    let summary = run(&given).unwrap();
    let dst = dir.path().join("dst");
    let labels: Vec<_> = records(&dst, "train")
        .into_iter()
        .map(|(key, seen)| {
            (
                String::from_utf8(key).unwrap(),
                seen.label,
                seen.synset.unwrap(),
            )
        })
        .collect();
    let expected = [
        ("a/deep/two.jpg", 3, "dog"),
        ("a/one.jpg", 2, "cat"),
        ("b/three.jpg", 1, "ant"),
        ("top.jpg", 3, "dog"),
    ];
    assert_eq!(
        labels,
        expected.map(|(key, label, class)| (key.to_owned(), label, class.to_owned()))
    );
    assert_eq!(summary.skipped(), 2);
    let found: Vec<_> = report(&dst)
        .into_iter()
        .map(|f| (f.path, f.action, f.reason))
        .collect();
    assert_eq!(
        found,
        [
            ("b/four.jpg".to_owned(), Action::Skipped, Reason::Unlisted),
            ("gone.jpg".to_owned(), Action::Skipped, Reason::NotThere),
        ]
    );
    example(&dst, "train", "top.jpg", |example| {
        assert_eq!(floats(example, "score"), [0.5]);
        assert_eq!(
            example.bytes("place").unwrap(),
            Some(&b"here, or there"[..])
        );
    });
    example(&dst, "train", "a/deep/two.jpg", |example| {
        assert!(floats(example, "score").is_empty())
    });
    // Another file of labels makes it another pack.
    std::fs::write(&file, "path,class,score\ntop.jpg,dog,0.25\n").unwrap();
    let again = run(&given).unwrap_err();
    assert!(matches!(again, Error::OtherDataset { .. }), "{again}");
    // The same labels for an archive.
    let archive = dir.path().join("src.tar");
    write_archive(&archive, &tree_below(&src, ""));
    let mut from_archive = options(&archive, &dir.path().join("archive"));
    from_archive.labels = Some(file);
    run(&from_archive).unwrap();
    assert_eq!(records(&dir.path().join("archive"), "train").len(), 1);
}

#[test]
fn numeric_labels_are_used_as_given() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    for name in ["a.jpg", "b.jpg", "c.jpg"] {
        put(
            &src,
            format!("train/{name}").as_bytes(),
            &jpeg(10, 20, 3, name.as_bytes()),
        );
    }
    let file = dir.path().join("labels.tsv");
    let given = |dst: &str, base| {
        let mut options = options(&src, &dir.path().join(dst));
        options.labels = Some(file.clone());
        options.label_base = base;
        run(&options)
    };
    std::fs::write(
        &file,
        "file\tlabel\ntrain/a.jpg\t0\nb.jpg\t7\ntrain/c.jpg\t\n",
    )
    .unwrap();
    let error = given("no", 1).unwrap_err().to_string();
    assert!(error.contains("label_base 0"), "{error}");
    given("zero", 0).unwrap();
    let labels: Vec<_> = records(&dir.path().join("zero"), "train")
        .into_values()
        .map(|s| s.label)
        .collect();
    assert_eq!(labels, [0, 7, -1]);
    std::fs::write(
        &file,
        "file\tlabel\ntrain/a.jpg\t1\nb.jpg\t7\ntrain/c.jpg\t-1\n",
    )
    .unwrap();
    given("one", 1).unwrap();
    let labels: Vec<_> = records(&dir.path().join("one"), "train")
        .into_values()
        .map(|s| s.label)
        .collect();
    assert_eq!(labels, [1, 7, -1]);
    std::fs::write(&file, "file\tlabel\nelsewhere/a.jpg\t1\n").unwrap();
    let error = given("none", 1).unwrap_err().to_string();
    assert!(
        error.contains("elsewhere/a.jpg") && error.contains("train/a.jpg"),
        "{error}"
    );
}

#[test]
fn a_layout_can_be_forced_and_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    copy_tree(&pictures().join("val"), &src.join("val"));
    let forced = |name: &str| {
        let mut options: PackOptions = options(&src, &dir.path().join(name));
        options.layout = SourceLayout::named(name);
        assert!(options.layout.is_some(), "{name}");
        run(&options)
    };
    assert_eq!(forced("splits").unwrap().splits[0].name, "validation");
    assert_eq!(forced("classes").unwrap().classes, 1);
    for name in ["kaggle", "tpu", "academic"] {
        assert!(
            matches!(
                forced(name).unwrap_err(),
                Error::Source(SourceError::Source { .. })
            ),
            "{name}"
        );
    }
}

#[test]
fn documentation_has_the_table_of_layouts() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/layouts.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut at = 0;
    for layout in SourceLayout::all() {
        let mut section = format!("## {}: {}\n\n", layout.name(), layout.summary());
        for line in layout.example().lines() {
            section += &format!("    {line}\n");
        }
        assert!(section.contains("SRC/"), "{layout:?}");
        let found = text[at..].find(&section);
        at += found.unwrap_or_else(|| panic!("docs/layouts.md lacks, in this order:\n{section}"));
    }
}
