//! Conversions to other tools' formats and back keep samples, order, classes and all features.

use crate::support;

use forebay_image::{FastCoding, PngCompression, SampleFormat, encode_png_samples};
use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, ConvertSummary, DatasetFormat, ImageChange, ImageForm,
    MaxBad, Observer, OnBad, OutputFormat, RecordFormat, RecordInput, SeekPointChange, ShardDone,
    Sharding, convert,
};
use forebay_shard::{BlockCompression, Dataset, ExampleBuilder, Manifest, RecordMeta, tfrecord};
use forebay_store::{Durability, Location};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{contents, jpeg, options, run, tree};

/// Returns formats that are written, with their compressions.
fn outputs() -> [(&'static str, OutputFormat); 3] {
    let zstd = "zstd:3".parse().unwrap();
    let records = OutputFormat::Records;
    [
        (
            "webdataset",
            records(RecordFormat::WEBDATASET, BlockCompression::NONE),
        ),
        ("mds", records(RecordFormat::MDS, BlockCompression::NONE)),
        ("mds-zstd", records(RecordFormat::MDS, zstd)),
    ]
}

/// Returns the formats that can hold everything that a dataset can contain.
fn lossless() -> impl Iterator<Item = (&'static str, OutputFormat)> {
    let (plain, zstd) = (BlockCompression::NONE, "zstd:3".parse().unwrap());
    let records = OutputFormat::Records;
    outputs().into_iter().chain([
        ("lmdb", records(RecordFormat::LMDB, plain)),
        ("arrayrecord", records(RecordFormat::ARRAY_RECORD, plain)),
        (
            "arrayrecord-zstd",
            records(RecordFormat::ARRAY_RECORD, zstd),
        ),
    ])
}

fn of(source: ConvertSource, dst: &Path, format: impl Into<OutputFormat>) -> ConvertOptions {
    let mut options = ConvertOptions::new(source, Location::from(dst), format);
    options.durability = Durability::Cached;
    options
}

fn dataset(root: &Path) -> ConvertSource {
    ConvertSource::Dataset(Location::from(root))
}

fn records(root: &Path, format: OutputFormat) -> ConvertSource {
    let OutputFormat::Records(format, _) = format else {
        panic!("shards are no records");
    };
    ConvertSource::Records(format, Box::new(RecordInput::new(root)))
}

fn done(options: &ConvertOptions) -> ConvertSummary {
    convert(options, &(), &Cancel::new()).unwrap()
}

/// Split, key, label and bytes of a record.
type Seen = (String, Vec<u8>, Option<i64>, Vec<u8>);

/// Returns all records of all splits, in order.
fn all(root: &Path) -> Vec<Seen> {
    let dataset = Dataset::open(root).unwrap();
    let names: Vec<String> = dataset.splits().map(str::to_owned).collect();
    let mut found = Vec::new();
    for name in names {
        let split = dataset.split(&name).unwrap();
        for i in 0..split.len() {
            let mut record = Vec::new();
            split.read(i, &mut record).unwrap();
            found.push((name.clone(), split.key(i).unwrap(), split.label(i), record));
        }
    }
    found
}

#[test]
fn datasets_round_trip_through_other_formats() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let mut packing = options(&src, &path("packed"));
    (packing.format, packing.seek_points) = (DatasetFormat::INDEXED, None);
    packing.sharding = Sharding::Count(3);
    run(&packing).unwrap();
    let packed = Manifest::load(path("packed")).unwrap();
    for (name, format) in lossless() {
        let there = path(name);
        let mut options = of(dataset(&path("packed")), &there, format);
        options.jobs = Some(1);
        let summary = done(&options);
        assert_eq!((summary.skipped(), summary.changed_keys), (0, 0), "{name}");
        assert!(there.join(summary.manifest).is_file());
        assert!(done(&options).already_complete, "{name}");
        // Any number of threads writes the same bytes.
        let mut options = of(dataset(&path("packed")), &path("parallel"), format);
        options.jobs = Some(3);
        done(&options);
        assert_eq!(contents(&there), contents(&path("parallel")), "{name}");
        // With `overwrite`, another dataset replaces it.
        let mut options = of(
            dataset(&path("packed")),
            &path("parallel"),
            DatasetFormat::INDEXED,
        );
        options.overwrite = true;
        done(&options);
        assert!(!path("parallel/train").exists());
        std::fs::remove_dir_all(path("parallel")).unwrap();

        let back = path(&format!("{name}-back"));
        done(&of(records(&there, format), &back, DatasetFormat::INDEXED));
        assert!(all(&path("packed")) == all(&back), "{name}");
        let manifest = Manifest::load(&back).unwrap();
        assert_eq!(manifest.sample_fingerprint, packed.sample_fingerprint);
        assert!(manifest.sample_fingerprint.is_some());
        assert_eq!(manifest.classes, packed.classes, "{name}");
        assert_eq!(manifest.label_base, packed.label_base, "{name}");
        assert_eq!(manifest.order, packed.order, "{name}");
        assert_eq!(manifest.features, packed.features, "{name}");
        assert_eq!(manifest.schema(), packed.schema(), "{name}");
    }
}

#[test]
fn an_interrupted_conversion_to_another_format_continues() {
    struct StopAfter<'a>(AtomicUsize, &'a Cancel);
    impl Observer for StopAfter<'_> {
        fn shard_done(&self, _: &ShardDone) {
            if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.1.cancel();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let (src, packed) = (dir.path().join("src"), dir.path().join("packed"));
    tree(&src, 3, 20);
    run(&options(&src, &packed)).unwrap();
    for (name, format) in lossless() {
        let to = |part: &str| {
            let dst = dir.path().join(format!("{name}-{part}"));
            let mut options = of(dataset(&packed), &dst, format);
            (options.sharding, options.jobs) = (Some(Sharding::Count(6)), Some(1));
            (options, dst)
        };
        let (whole, whole_dir) = to("whole");
        done(&whole);
        let (interrupted, dst) = to("interrupted");
        let cancel = Cancel::new();
        let observer = StopAfter(AtomicUsize::new(2), &cancel);
        convert(&interrupted, &observer, &cancel).unwrap_err();
        let manifest = done(&whole).manifest;
        assert!(!dst.join(manifest).exists() && !dst.join("train/index.json").exists());
        let summary = done(&interrupted);
        assert!(summary.resumed_shards >= 2, "{name}");
        assert_eq!(contents(&whole_dir), contents(&dst), "{name}");
    }
}

/// Writes TFRecords with these records, as another tool does.
fn foreign(parent: &Path, records: &[(&[u8], Vec<u8>)]) -> ConvertSource {
    let dir = parent.join("foreign");
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("train-00000-of-00001");
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = tfrecord::WriterBuilder::new().from_writer(file, &path);
    for (_, record) in records {
        writer.append(record, &RecordMeta::default()).unwrap();
    }
    writer.finish().unwrap();
    let mut input = RecordInput::new(dir.as_path());
    input.splits = BTreeMap::from([("train".to_owned(), vec![path])]);
    ConvertSource::Records(RecordFormat::TFRECORD, Box::new(input))
}

fn record(key: &[u8], change: impl FnOnce(&mut ExampleBuilder<'_>)) -> Vec<u8> {
    let image = jpeg(4, 4, 3, b"x");
    let mut builder = ExampleBuilder::new();
    builder
        .add_bytes("image", &image)
        .add_int64("label", 2)
        .add_bytes("filename", key);
    change(&mut builder);
    builder.to_vec()
}

#[test]
fn keys_that_are_invalid_names_are_changed_and_listed() {
    let dir = tempfile::tempdir().unwrap();
    let keys: [&[u8]; 7] = [
        b"a/1.jpg",
        b"a/1.png",
        b"a/1.jpg",
        b"v1.0/x.y.jpg",
        b"../up.jpg",
        b"",
        b"no-extension",
    ];
    let records_of = keys.map(|key| (key, record(key, |_| ())));
    let source = foreign(dir.path(), &records_of);
    let (_, format) = outputs()[0];
    let dst = dir.path().join("wds");
    let summary = done(&of(source, &dst, format));
    // One key occurs twice; the second record with it is bad.
    assert_eq!((summary.changed_keys, summary.skipped()), (5, 1));
    let report = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap();
    assert_eq!(report.lines().count(), 6);
    assert!(
        report.contains("key-changed") && report.contains("a/1%2Epng.png"),
        "{report}"
    );
    let back = dir.path().join("back");
    done(&of(records(&dst, format), &back, DatasetFormat::INDEXED));
    let found: Vec<String> = all(&back)
        .into_iter()
        .map(|(_, key, ..)| String::from_utf8(key).unwrap())
        .collect();
    assert_eq!(
        found,
        [
            "a/1.jpg",
            "a/1%2Epng.png",
            "v1.0/x%2Ey.jpg",
            "%2E%2E/up.jpg",
            "%2300000004.jpg",
            "no-extension.jpg"
        ]
    );
}

#[test]
fn unsupported_features_are_named_or_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let with = |number: usize| {
        record(format!("{number}.jpg").as_bytes(), |builder| {
            builder
                .add_bytes_list("blobs/a", &[b"\xff", b"\xfe"])
                .add_float("weight", 0.1);
        })
    };
    let records_of: Vec<(&[u8], Vec<u8>)> = (0..3).map(|number| (&b""[..], with(number))).collect();
    for (name, format) in outputs() {
        let source = foreign(dir.path(), &records_of);
        let mut options = of(source, &dir.path().join(name), format);
        let error = convert(&options, &(), &Cancel::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains("drop_feature blobs/a"), "{name}: {error}");
        options.drop_features.insert("blobs/a".to_owned());
        options.overwrite = true;
        assert_eq!(done(&options).splits[0].records, 3, "{name}");
        let back = dir.path().join(format!("{name}-back"));
        done(&of(
            records(&dir.path().join(name), format),
            &back,
            DatasetFormat::INDEXED,
        ));
        let expected = record(b"0.jpg", |builder| {
            builder.add_float("weight", 0.1);
        });
        assert!(all(&back)[0].3 == expected, "{name}");
        options.drop_features = ["image".to_owned()].into();
        let error = convert(&options, &(), &Cancel::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains("images and labels stay"), "{error}");
    }
}

/// Encodes pixels as conversions from arrays do.
fn fast_png(pixels: &[u8], width: u32, height: u32) -> Vec<u8> {
    let (rgb, fast) = (SampleFormat::Rgb8, PngCompression::Fast);
    encode_png_samples(pixels, width, height, rgb, fast).unwrap()
}

/// Several threads build records from the rows of one file: none is lost, and their order is unchanged.
#[test]
fn rows_of_one_file_are_the_same_for_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let record = |number: u32| {
        let pixels: Vec<u8> = (0..9 * 7 * 3u32)
            .map(|at| (at * 31 + number * 17) as u8)
            .collect();
        let image = fast_png(&pixels, 9, 7);
        let key = format!("k/{number}");
        let mut builder = ExampleBuilder::new();
        builder.add_bytes("image", &image);
        builder.add_int64("label", i64::from(number % 3));
        builder.add_bytes("filename", key.as_bytes());
        builder.to_vec()
    };
    let records_of: Vec<(&[u8], Vec<u8>)> = (0..700).map(|n| (&b""[..], record(n))).collect();
    let npz = OutputFormat::Records(RecordFormat::NPZ, BlockCompression::NONE);
    done(&of(foreign(dir.path(), &records_of), &path("npz"), npz));
    // Without the facts that the conversion stored, the user gives the first label.
    std::fs::remove_file(path("npz/forebay-conversion.json")).unwrap();
    let to = |name: &str, jobs, first_label| {
        let mut input = RecordInput::new(path("npz"));
        input.features.label_base = Some(first_label);
        let source = ConvertSource::Records(RecordFormat::NPZ, Box::new(input));
        let mut options = of(source, &path(name), DatasetFormat::INDEXED);
        options.jobs = Some(jobs);
        options
    };
    for jobs in [1, 2, 7] {
        let (whole, skipped) = (format!("whole-{jobs}"), format!("skipped-{jobs}"));
        assert_eq!(done(&to(&whole, jobs, 0)).splits[0].records, 700);
        let mut failing = to(&format!("failed-{jobs}"), jobs, 1);
        failing.on_bad = OnBad::Fail;
        let error = convert(&failing, &(), &Cancel::new()).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("record 0: ") && said.contains("its label is 0"),
            "{said}"
        );
        let mut skipping = to(&skipped, jobs, 1);
        skipping.max_bad = MaxBad::Share(1.0);
        let summary = done(&skipping);
        assert_eq!((summary.splits[0].records, summary.skipped()), (466, 234));
        for name in ["whole", "skipped"] {
            let [one, several] = [1, jobs].map(|jobs| contents(&path(&format!("{name}-{jobs}"))));
            assert!(one == several, "{name}, {jobs} threads");
        }
    }
    let keys: Vec<_> = all(&path("whole-7"))
        .into_iter()
        .map(|seen| seen.1)
        .collect();
    let expected = (0..700).map(|number| format!("k/{number}").into_bytes());
    assert!(keys.into_iter().eq(expected));
}

/// Changes seek points and fast images of one shard, with one thread and with several.
#[test]
fn changes_of_a_shard_do_not_depend_on_threads() {
    let dir = tempfile::tempdir().unwrap();
    let (src, packed) = (dir.path().join("src"), dir.path().join("packed"));
    tree(&src, 3, 20);
    let mut packing = options(&src, &packed);
    packing.seek_points = None;
    run(&packing).unwrap();
    for (name, images) in [
        ("points", ImageChange::Keep),
        ("fast", ImageChange::To(ImageForm::Fast(FastCoding::Coded))),
    ] {
        let to = |jobs: usize| {
            let dst = dir.path().join(format!("{name}-{jobs}"));
            let mut options = of(dataset(&packed), &dst, DatasetFormat::INDEXED);
            options.sharding = Some(Sharding::Count(1));
            options.images = images;
            if images == ImageChange::Keep {
                options.seek_points = SeekPointChange::Make(Default::default());
            }
            options.jobs = Some(jobs);
            done(&options);
            contents(&dst)
        };
        let one = to(1);
        for jobs in [2, 5] {
            assert!(one == to(jobs), "{name}, {jobs} threads");
        }
    }
}

/// Arrays hold pixels of one size, so converted images have the same pixels in another encoding.
#[test]
fn arrays_are_written_resumed_and_replaced() {
    struct StopAfter<'a>(AtomicUsize, &'a Cancel);
    impl Observer for StopAfter<'_> {
        fn shard_done(&self, _: &ShardDone) {
            if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.1.cancel();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let record = |number: u8| {
        let pixels: Vec<u8> = (0..4 * 3 * 3)
            .map(|at: u8| at.wrapping_mul(7).wrapping_add(number))
            .collect();
        let image = fast_png(&pixels, 4, 3);
        let key = format!("k/{number}");
        let mut builder = ExampleBuilder::new();
        builder
            .add_bytes("image", &image)
            .add_int64("label", i64::from(number) % 3)
            .add_bytes("filename", key.as_bytes())
            .add_floats("weights", &[0.5; 3][..usize::from(number) % 4]);
        builder.to_vec()
    };
    let records_of: Vec<(&[u8], Vec<u8>)> = (0..12).map(|n| (&b""[..], record(n))).collect();
    let source = foreign(dir.path(), &records_of);
    let plain = BlockCompression::NONE;
    for (name, format, compression) in [
        ("npz", RecordFormat::NPZ, plain),
        ("safetensors", RecordFormat::SAFETENSORS, plain),
        ("lmdb", RecordFormat::LMDB, plain),
        #[cfg(feature = "formats")]
        ("hdf5", RecordFormat::HDF5, plain),
        ("zarr", RecordFormat::ZARR, plain),
        ("zarr-zstd", RecordFormat::ZARR, "zstd:3".parse().unwrap()),
    ] {
        let output = OutputFormat::Records(format, compression);
        let to = |part: &str| {
            let dst = path(&format!("{name}-{part}"));
            let mut options = of(source.clone(), &dst, output);
            (options.sharding, options.jobs) = (Some(Sharding::Count(6)), Some(1));
            (options, dst)
        };
        let (mut whole, whole_dir) = to("whole");
        done(&whole);
        assert!(done(&whole).already_complete, "{name}");
        let (interrupted, dst) = to("interrupted");
        let cancel = Cancel::new();
        let observer = StopAfter(AtomicUsize::new(2), &cancel);
        convert(&interrupted, &observer, &cancel).unwrap_err();
        assert!(done(&interrupted).resumed_shards >= 2, "{name}");
        assert!(contents(&whole_dir) == contents(&dst), "{name}");
        let back = path(&format!("{name}-back"));
        done(&of(
            records(&whole_dir, output),
            &back,
            DatasetFormat::INDEXED,
        ));
        let found = all(&back);
        assert_eq!(found.len(), 12);
        for (number, (split, key, label, record)) in found.into_iter().enumerate() {
            assert_eq!((split.as_str(), label), ("train", Some(number as i64 % 3)));
            assert_eq!(key, format!("k/{number}").into_bytes());
            // The original images were PNGs of the same encoder, so the bytes are equal.
            assert!(record == records_of[number].1, "{name} {number}");
        }
        whole.overwrite = true;
        whole.sharding = Some(Sharding::Count(2));
        done(&whole);
        assert_eq!(contents(&whole_dir).len(), 3, "{name}");
    }
}
