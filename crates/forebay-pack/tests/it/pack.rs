//! Contents of a pack: every image occurs once with the right features, and the bytes do not depend on the number of jobs.

use crate::support;

use forebay_pack::{Action, Cancel, DatasetFormat, ExportOptions, Sharding, ShuffleWhen, export};
use forebay_shard::{Dataset, Manifest};
use forebay_store::Durability;
use std::path::Path;
use support::*;

#[test]
fn the_output_is_the_same_for_any_number_of_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src, 5, 12);
    put(&src, b"n00000001/notes.txt", b"no image");
    put(&src, b"n00000002/broken.jpg", b"no image");
    for format in DatasetFormat::all() {
        let packed = |name: &str, jobs, durability| {
            let dst = dir.path().join(format!("{format:?}{name}"));
            let mut options = options(&src, &dst);
            (options.format, options.jobs, options.durability) = (format, Some(jobs), durability);
            run(&options).unwrap();
            dst
        };
        let one = packed("1", 1, Durability::Synced);
        assert_same(&one, &packed("2", 2, Durability::Cached));
        assert_same(&one, &packed("8", 8, Durability::Synced));
        let names: Vec<_> = contents(&one).into_keys().collect();
        let hidden = names.iter().filter(|n| {
            n.components()
                .any(|c| c.as_os_str().as_encoded_bytes().starts_with(b"."))
        });
        assert_eq!(hidden.count(), 0, "nothing is left behind: {names:?}");
    }
}

/// All workers share one shard of many runs: large files, very small ones, and some that are not images.
#[test]
fn one_shard_is_the_same_for_any_number_of_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    for number in 0..700usize {
        let len = match number {
            0..24 => 20_000 * number,
            24 => 3_000_000,
            _ => number % 90,
        };
        let image = match number % 50 {
            49 => b"no image".to_vec(),
            _ => jpeg(300, 200, 3, &noise(number as u64, len)),
        };
        put(&src, format!("c/{number:04}.jpg").as_bytes(), &image);
    }
    for format in DatasetFormat::all() {
        let packed = |jobs| {
            let dst = dir.path().join(format!("{format:?}{jobs}"));
            let mut options = options(&src, &dst);
            (options.format, options.jobs) = (format, Some(jobs));
            options.sharding = Sharding::Count(1);
            let summary = run(&options).unwrap();
            assert_eq!((summary.records(), summary.skipped()), (686, 14));
            dst
        };
        let one = packed(1);
        assert_eq!(records(&one, "train").len(), 686);
        assert_same(&one, &packed(2));
        assert_same(&one, &packed(16));
    }
}

#[test]
fn every_image_occurs_once_with_its_features() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src, 3, 7);
    put(&src, b"n00000001/grey.jpg", &jpeg(64, 32, 1, b"grey"));
    put(&src, b"n00000001/ink.jpg", &testdata("dirty/cmyk.jpg"));
    put(&src, b"n00000001/tiny.jpg", &jpeg(9, 100, 3, b"x"));
    put(&src, b"n00000001/deep/er/a.png", &png(5, 6));
    let webp =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats/lossy-alpha.webp");
    let webp = std::fs::read(webp).unwrap();
    put(&src, b"n00000001/picture.webp", &webp);
    put(&src, b"n00000001/picture", &webp);
    let tiff = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiff/palette-lzw.tif");
    let tiff = std::fs::read(tiff).unwrap();
    put(&src, b"n00000001/scan.tif", &tiff);
    put(&src, b"n00000001/scan", &tiff);
    put(&src, b"n00000002/no_extension", &jpeg(65, 33, 3, b"plain"));
    put(
        &src,
        b"n00000002/\xff\xfe odd\nname.jpg",
        &jpeg(66, 33, 3, b"odd"),
    );
    for format in DatasetFormat::all() {
        let dst = dir.path().join(format!("{format:?}"));
        let mut options = options(&src, &dst);
        options.format = format;
        let summary = run(&options).unwrap();
        assert_eq!((summary.records(), summary.skipped()), (31, 0));
        let found = records(&dst, "train");
        assert_eq!(found.len(), 31);
        for (key, seen) in &found {
            let path = src.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(key));
            assert!(std::fs::read(&path).unwrap() == seen.image, "{path:?}");
            let class: i64 = String::from_utf8_lossy(&key[1..9]).parse().unwrap();
            assert_eq!((seen.label, seen.text.as_deref()), (class + 1, None));
            assert_eq!(seen.synset.as_ref().unwrap().as_bytes(), &key[..9]);
            assert_eq!(seen.filename, key.rsplit(|b| *b == b'/').next().unwrap());
        }
        let of = |key: &[u8]| {
            let seen = &found[key];
            (seen.format.as_str(), seen.colorspace.as_str(), seen.size)
        };
        assert_eq!(
            of(b"n00000001/grey.jpg"),
            ("JPEG", "Grayscale", (64, 32, 1))
        );
        assert_eq!(of(b"n00000001/ink.jpg"), ("JPEG", "CMYK", (48, 36, 4)));
        assert_eq!(of(b"n00000001/tiny.jpg"), ("JPEG", "RGB", (9, 100, 3)));
        assert_eq!(of(b"n00000001/deep/er/a.png"), ("PNG", "RGB", (5, 6, 3)));
        for name in ["picture", "picture.webp"] {
            let key = format!("n00000001/{name}");
            assert_eq!(of(key.as_bytes()), ("WEBP", "RGBA", (61, 45, 4)));
        }
        for name in ["scan", "scan.tif"] {
            let key = format!("n00000001/{name}");
            assert_eq!(of(key.as_bytes()), ("TIFF", "RGB", (37, 29, 3)));
        }
        assert_eq!(
            of(b"n00000000/n00000000_3.JPEG"),
            ("JPEG", "RGB", (303, 200, 3))
        );
        let manifest = Manifest::load(&dst).unwrap();
        assert_eq!(manifest.classes.len(), 3);
        assert_eq!(manifest.fingerprint, summary.fingerprint);
        let bytes: u64 = found.values().map(|seen| seen.image.len() as u64).sum();
        assert_eq!(
            (
                summary.image_bytes,
                summary.packed_bytes,
                summary.packed_files
            ),
            (bytes, bytes, 31)
        );
    }
}

#[test]
fn sidecars_of_tfrecords_are_in_a_separate_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 4);
    let mut options = options(&src, &dst);
    options.blake3 = true;
    run(&options).unwrap();
    let names: Vec<String> = contents(&dst)
        .keys()
        .map(|path| path.display().to_string())
        .collect();
    let mut expected = vec!["forebay.json".to_owned()];
    for shard in 0..4 {
        expected.push(format!("index/train-{shard:05}-of-00004.fbi"));
        expected.push(format!("index/train-{shard:05}-of-00004.idx"));
        expected.push(format!("train-{shard:05}-of-00004"));
    }
    expected.sort();
    assert_eq!(names, expected);
    for shard in &Manifest::load(&dst).unwrap().splits[0].shards {
        let bytes = std::fs::read(dst.join(&shard.name)).unwrap();
        assert_eq!(shard.bytes, bytes.len() as u64);
        assert_eq!(shard.crc32c, forebay_shard::checksum::crc32c(&bytes));
        assert_eq!(
            shard.blake3.as_deref(),
            Some(blake3::hash(&bytes).to_hex().as_str())
        );
    }
}

#[test]
fn labels_follow_the_list_of_classes() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    put(&src, b"n00000003/a.jpg", &jpeg(20, 20, 3, b"a"));
    put(&src, b"n00000001/b.jpg", &jpeg(20, 20, 3, b"b"));
    put(
        &src,
        b"LOC_synset_mapping.txt",
        b"n00000001 tench, Tinca\nn00000002 goldfish\nn00000003 shark\n",
    );
    let dst = dir.path().join("one");
    run(&options(&src, &dst)).unwrap();
    let found = records(&dst, "train");
    let of = |key: &[u8]| (found[key].label, found[key].text.clone().unwrap());
    assert_eq!(of(b"n00000003/a.jpg"), (3, "shark".into()));
    assert_eq!(of(b"n00000001/b.jpg"), (1, "tench, Tinca".into()));

    let dst = dir.path().join("zero");
    let mut from_zero = options(&src, &dst);
    from_zero.label_base = 0;
    run(&from_zero).unwrap();
    assert_eq!(
        records(&dst, "train")[b"n00000003/a.jpg".as_slice()].label,
        2
    );
    assert_eq!(Manifest::load(&dst).unwrap().label_base, 0);

    put(&src, b"n00000009/c.jpg", &jpeg(20, 20, 3, b"c"));
    let error = run(&options(&src, &dir.path().join("refused")))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("n00000009") && error.contains("LOC_synset_mapping.txt"),
        "{error}"
    );

    let list = dir.path().join("my list");
    std::fs::write(&list, "n00000009\nn00000003\nn00000001\n").unwrap();
    let dst = dir.path().join("own");
    let mut own = options(&src, &dst);
    own.classes = Some(list);
    run(&own).unwrap();
    assert_eq!(
        records(&dst, "train")[b"n00000009/c.jpg".as_slice()].label,
        1
    );
}

#[test]
fn splits_are_recognized_and_a_single_one_keeps_its_labels() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    for (key, content) in [
        ("train/b/1.jpg", "1"),
        ("train/c/2.jpg", "2"),
        ("val/a/3.jpg", "3"),
        ("val/c/4.jpg", "4"),
    ] {
        put(&src, key.as_bytes(), &jpeg(20, 20, 3, content.as_bytes()));
    }
    let both = dir.path().join("both");
    let summary = run(&options(&src, &both)).unwrap();
    let names: Vec<_> = summary
        .splits
        .iter()
        .map(|s| (s.name.as_str(), s.records))
        .collect();
    assert_eq!(names, [("train", 2), ("validation", 2)]);
    for asked in ["val", "validation"] {
        let one = dir.path().join(asked);
        let mut options = options(&src, &one);
        options.split = Some(asked.into());
        run(&options).unwrap();
        let found = records(&one, "validation");
        assert_eq!(found, records(&both, "validation"));
        assert_eq!(found[b"c/4.jpg".as_slice()].label, 3);
    }
    let mut options = options(&src, &dir.path().join("none"));
    options.split = Some("test".into());
    assert!(
        run(&options)
            .unwrap_err()
            .to_string()
            .contains("train, validation")
    );
}

#[test]
fn synset_labels_give_the_classes_of_a_validation_split() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    put(&src, b"train/n00000001/a.jpg", &jpeg(20, 20, 3, b"a"));
    put(&src, b"train/n00000002/b.jpg", &jpeg(20, 20, 3, b"b"));
    for name in ["v1", "v2", "v3"] {
        put(
            &src,
            format!("validation/{name}.JPEG").as_bytes(),
            &jpeg(20, 20, 3, name.as_bytes()),
        );
    }
    put(
        &src,
        b"synset_labels.txt",
        b"n00000002\nn00000001\nn00000002\n",
    );
    run(&options(&src, &dst)).unwrap();
    let found = records(&dst, "validation");
    let labels: Vec<_> = found
        .values()
        .map(|seen| (seen.label, seen.synset.clone().unwrap()))
        .collect();
    assert_eq!(
        labels,
        [
            (2, "n00000002".into()),
            (1, "n00000001".into()),
            (2, "n00000002".into())
        ]
    );

    put(&src, b"validation/v4.JPEG", &jpeg(20, 20, 3, b"4"));
    let error = run(&options(&src, &dir.path().join("x")))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("3 lines") && error.contains("4 images"),
        "{error}"
    );
}

#[test]
fn images_without_classes_have_no_label() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    put(&src, b"a.jpg", &jpeg(20, 20, 3, b"a"));
    put(&src, b"b.jpg", &jpeg(20, 20, 3, b"b"));
    let summary = run(&options(&src, &dst)).unwrap();
    assert!(summary.warnings.is_empty(), "{:?}", summary.warnings);
    let found = records(&dst, "train");
    assert!(
        found
            .values()
            .all(|seen| seen.label == -1 && seen.synset.is_none())
    );
}

#[test]
fn a_class_may_be_called_train() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    put(&src, b"train/a.jpg", &jpeg(20, 20, 3, b"a"));
    put(&src, b"bus/b.jpg", &jpeg(20, 20, 3, b"b"));
    run(&options(&src, &dst)).unwrap();
    assert_eq!(records(&dst, "train")[b"train/a.jpg".as_slice()].label, 2);
}

#[test]
fn an_export_restores_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src.join("train"), 3, 5);
    tree(&src.join("test"), 2, 2);
    put(
        &src,
        b"train/n00000001/deep/\xff.jpg",
        &jpeg(20, 20, 3, b"a"),
    );
    for format in DatasetFormat::all() {
        let dst = dir.path().join(format!("{format:?}"));
        let mut options = options(&src, &dst);
        (options.format, options.shuffle) = (format, ShuffleWhen::Always);
        run(&options).unwrap();
        let out = dir.path().join(format!("{format:?} out"));
        let all = ExportOptions::new(dst.as_path(), out.as_path());
        let summary = export(&all, &(), &Cancel::new()).unwrap();
        assert_eq!((summary.files, summary.unchanged), (20, 0));
        assert_same(&src, &out);
        let again = export(&all, &(), &Cancel::new()).unwrap();
        assert_eq!((again.files, again.unchanged), (0, 20));
        std::fs::write(out.join("test/n00000001/n00000001_1.JPEG"), "changed").unwrap();
        let refused = export(&all, &(), &Cancel::new()).unwrap();
        assert_eq!(
            (refused.unchanged, refused.skipped, refused.damaged),
            (19, 1, 0)
        );
        let first = refused.first_skipped.unwrap().to_string();
        assert!(
            first.contains("n00000001_1.JPEG") && first.contains("nothing is overwritten"),
            "{first}"
        );
        let kept = std::fs::read(out.join("test/n00000001/n00000001_1.JPEG")).unwrap();
        assert_eq!(kept, b"changed");

        let mut one = ExportOptions::new(
            dst.as_path(),
            dir.path().join(format!("{format:?} one")).as_path(),
        );
        one.split = Some("test".into());
        export(&one, &(), &Cancel::new()).unwrap();
        assert_same(&src.join("test"), one.dst.local_path().unwrap());
    }
}

#[test]
fn concurrent_exports_are_refused_or_correct() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src.join("train"), 3, 9);
    tree(&src.join("test"), 3, 9);
    run(&options(&src, &dst)).unwrap();
    let out = dir.path().join("out");
    // Two exports write the same directory; a third one writes a subdirectory, under its own lock.
    let begin = std::sync::Barrier::new(3);
    let one = |split: Option<&str>| {
        let to = split.map_or(out.clone(), |split| out.join(split));
        let mut options = ExportOptions::new(dst.as_path(), to.as_path());
        options.split = split.map(str::to_owned);
        begin.wait();
        export(&options, &(), &Cancel::new())
    };
    std::thread::scope(|scope| {
        let exports = [None, None, Some("test")].map(|split| scope.spawn(move || one(split)));
        for (number, export) in exports.into_iter().enumerate() {
            match export.join().unwrap() {
                Ok(summary) => assert_eq!(summary.skipped, 0),
                Err(error) => {
                    let error = error.to_string();
                    // The other export may not have written its process id yet.
                    assert!(number < 2 && error.contains("is in use by "), "{error}");
                }
            }
        }
    });
    assert_same(&src, &out);

    let _lock = forebay_store::DirLock::acquire(&out).unwrap();
    let refused = export(
        &ExportOptions::new(dst.as_path(), out.as_path()),
        &(),
        &Cancel::new(),
    );
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("is in use by process"), "{refused}");
}

#[test]
fn an_export_removes_only_stale_temporary_files() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 3);
    run(&options(&src, &dst)).unwrap();
    let out = dir.path().join("out");
    put(&out, b"n00000001/.export.7-0.forebay-tmp", b"half");
    put(&out, b"elsewhere/.export.7-0.forebay-tmp", b"half");
    let live = forebay_store::AtomicFile::create(&out.join("n00000001/live")).unwrap();
    export(
        &ExportOptions::new(dst.as_path(), out.as_path()),
        &(),
        &Cancel::new(),
    )
    .unwrap();
    assert!(!out.join("n00000001/.export.7-0.forebay-tmp").exists());
    assert!(out.join("elsewhere").exists());
    assert!(out.join("n00000001/.live.forebay-tmp").exists());
    drop(live);
    std::fs::remove_dir_all(out.join("elsewhere")).unwrap();
    assert_same(&src, &out);
}

#[test]
fn an_export_skips_records_that_cannot_become_files() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 5);
    run(&options(&src, &dst)).unwrap();
    // A dataset of another tool, in which some keys are not possible as file names.
    let manifest = Manifest::load(&dst).unwrap();
    let shard = &manifest.splits[0].shards[0];
    let path = dst.join(&shard.name);
    let long = "n".repeat(300);
    let keys = [
        "a/1.jpg",
        long.as_str(),
        "a/1.jpg/2.jpg",
        "../b.jpg",
        "a/3.jpg",
        "",
    ];
    let mut writer = forebay_shard::tfrecord::WriterBuilder::new().from_writer(Vec::new(), &path);
    for (number, key) in keys.iter().enumerate() {
        let mut example = forebay_shard::ExampleBuilder::new();
        // The last record is not an image.
        if number < 5 {
            example.add_bytes("image/encoded", b"image");
        }
        let meta = forebay_shard::RecordMeta::new(1, key.as_bytes());
        writer.append(&example.to_vec(), &meta).unwrap();
    }
    let (mut bytes, summary) = writer.finish().unwrap();
    // Another record is damaged. The first five records have the same length.
    let frame = 16 + {
        let mut example = forebay_shard::ExampleBuilder::new();
        example.add_bytes("image/encoded", b"image").encoded_len()
    };
    bytes[frame * 4 + 20] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let index = dst.join("index").join(format!("{}.fbi", shard.name));
    std::fs::write(index, summary.to_fbi().unwrap()).unwrap();
    let mut forged = manifest.clone();
    forged.splits[0].shards.truncate(1);
    forged.splits[0].shards[0].bytes = summary.bytes;
    forged.splits[0].shards[0].crc32c = summary.crc32c;
    forged.splits[0].shards[0].records = 6;
    (forged.splits[0].bytes, forged.splits[0].records) = (summary.bytes, 6);
    std::fs::write(dst.join("forebay.json"), forged.to_json().unwrap()).unwrap();

    #[derive(Default)]
    struct Skipped(std::sync::Mutex<Vec<String>>);
    impl forebay_pack::Observer for Skipped {
        fn record_skipped(&self, skipped: &forebay_pack::SkippedRecord) {
            self.0.lock().unwrap().push(skipped.to_string());
        }
    }
    let (out, skipped) = (dir.path().join("out"), Skipped::default());
    let options = ExportOptions::new(dst.as_path(), out.as_path());
    let exported = export(&options, &skipped, &Cancel::new()).unwrap();
    let told = skipped.0.into_inner().unwrap();
    assert_eq!(
        (exported.files, exported.skipped, exported.damaged),
        (1, 4, 1),
        "{told:?}"
    );
    assert_eq!(std::fs::read(out.join("a/1.jpg")).unwrap(), b"image");
    for (record, what) in [
        (1, "File name too long"),
        (2, "instead of a directory"),
        (3, "a component that is . or .."),
        (4, "crc32c"),
        (5, "no image/encoded"),
    ] {
        let line = &told[record - 1];
        assert!(
            line.contains(&format!("record {record}")) && line.contains(what),
            "{line}"
        );
    }
    assert!(!dir.path().join("b.jpg").exists());
}

#[test]
fn an_export_never_leaves_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (dst, out) = (dir.path().join("dst"), dir.path().join("out"));
    tree(&dir.path().join("src"), 1, 1);
    let mut options = options(&dir.path().join("src"), &dst);
    options.sharding = forebay_pack::Sharding::Count(1);
    run(&options).unwrap();
    // A record of the same length whose key leads outside, in an otherwise valid dataset.
    let manifest = Manifest::load(&dst).unwrap();
    let shard = &manifest.splits[0].shards[0];
    let path = dst.join(&shard.name);
    let record = forebay_shard::ExampleBuilder::new()
        .add_bytes("image/encoded", b"evil")
        .to_vec();
    let mut writer = forebay_shard::tfrecord::WriterBuilder::new().from_writer(Vec::new(), &path);
    writer
        .append(
            &record,
            &forebay_shard::RecordMeta::new(1, b"../../evil.jpg"),
        )
        .unwrap();
    let (bytes, summary) = writer.finish().unwrap();
    std::fs::write(&path, &bytes).unwrap();
    std::fs::write(
        dst.join("index").join(format!("{}.fbi", shard.name)),
        summary.to_fbi().unwrap(),
    )
    .unwrap();
    let mut forged = manifest.clone();
    forged.splits[0].shards[0].bytes = summary.bytes;
    forged.splits[0].shards[0].crc32c = summary.crc32c;
    forged.splits[0].bytes = summary.bytes;
    std::fs::write(dst.join("forebay.json"), forged.to_json().unwrap()).unwrap();
    let options = ExportOptions::new(dst.as_path(), out.as_path());
    let error = export(&options, &(), &Cancel::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("record 0") && error.contains("evil"),
        "{error}"
    );
    assert!(!dir.path().join("evil.jpg").exists());
}

#[test]
fn the_images_of_the_repository_can_be_packed() {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(&images, dir.path());
    options.sharding = forebay_pack::Sharding::Count(2);
    let summary = run(&options).unwrap();
    assert!(summary.records() >= 40, "{summary:?}");
    let dataset = Dataset::open(dir.path()).unwrap();
    assert_eq!(dataset.fingerprint(), summary.fingerprint);
    assert!(
        !summary
            .findings
            .iter()
            .any(|((action, _), _)| *action == Action::Skipped),
        "{:?}",
        summary.skipped_examples
    );
}

/// Collects the reported progress of reading an archive.
#[derive(Default)]
struct ArchiveReads(std::sync::Mutex<Vec<(u64, u64)>>);

impl forebay_pack::Observer for ArchiveReads {
    fn archive_read(&self, bytes: u64, len: u64) {
        self.0.lock().unwrap().push((bytes, len));
    }
}

#[test]
fn progress_of_reading_an_archive_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("images.tar.gz");
    let gz = flate2::write::GzEncoder::new(
        std::fs::File::create(&src).unwrap(),
        flate2::Compression::none(),
    );
    let mut archive = tar::Builder::new(gz);
    for number in 0..600u64 {
        let image = jpeg(300, 200, 3, &noise(number, 4000));
        let mut header = tar::Header::new_gnu();
        header.set_size(image.len() as u64);
        header.set_mode(0o644);
        let name = format!("class/{number}.jpg");
        archive
            .append_data(&mut header, name, image.as_slice())
            .unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap();
    let seen = ArchiveReads::default();
    let options = options(&src, &dir.path().join("dst"));
    forebay_pack::pack(&options, &seen, &Cancel::new()).unwrap();
    let seen = seen.0.into_inner().unwrap();
    let len = std::fs::metadata(&src).unwrap().len();
    assert!(seen.iter().all(|(done, of)| *of == len && *done <= len));
    // The archive is read once by the census, and once more to decode the images.
    let restarts = seen.windows(2).filter(|pair| pair[1].0 < pair[0].0);
    assert_eq!(restarts.count(), 1, "{seen:?}");
}
