//! Fast images: packing and converting to them, and restoring the same bytes.

use crate::convert::{
    StopAfter, all, assert_verifies, data, done, of, pictures, progressive_pictures,
};
use crate::support::{assert_same, contents, options as pack_options, run, tree};
use forebay_image::{Decoder, FastCoding, Format as ImageKind, Limits, SeekDensity, sniff};
use forebay_pack::{
    Cancel, DatasetFormat, Error, ExportOptions, ImageChange, ImageForm, OnBad, OutputFormat,
    RecordFormat, RepairOptions, SeekPointChange, Sharding, convert, export, repair,
};
use forebay_shard::example::{IMAGE_FAST, set_bytes};
use forebay_shard::manifest::{ShardEntry, SplitEntry};
use forebay_shard::{
    BlockCompression, ExampleView, Manifest, RecordMeta, ShardFormat, ShardWriter, image_record,
    indexed, tfrecord,
};
use forebay_store::Location;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

const FORMS: [ImageForm; 2] = [
    ImageForm::Fast(FastCoding::Coded),
    ImageForm::Fast(FastCoding::Raw),
];

/// Returns the kinds of the images in the records of a dataset.
fn kinds(root: &Path) -> Vec<Option<ImageKind>> {
    let records = all(root);
    let images = records.iter().map(|seen| image_record(&seen.3).unwrap());
    images.map(|record| sniff(record.image)).collect()
}

#[test]
fn converted_records_keep_their_pixels_and_are_restored() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (source, format) in [
        ("indexed", DatasetFormat::INDEXED),
        ("tfrecord", DatasetFormat::TfRecord),
    ] {
        pictures(&at(source), format, Some(SeekDensity::Auto));
    }
    let records = all(&at("indexed"));
    let mut decoder = Decoder::new(Limits::default());
    for form in FORMS {
        let fast = at(form.name());
        let mut options = of(&at("indexed"), &fast, DatasetFormat::INDEXED);
        options.images = ImageChange::To(form);
        let summary = done(&options);
        let count = kinds(&fast)
            .iter()
            .filter(|kind| **kind == Some(ImageKind::Fast))
            .count();
        assert!(
            count > 10 && count as u64 == summary.fast.images,
            "{summary:?}"
        );
        assert_verifies(&fast);
        let records_now = all(&fast);
        let images = records_now
            .iter()
            .map(|seen| image_record(&seen.3).unwrap());
        for image in images.filter(|record| sniff(record.image) == Some(ImageKind::Fast)) {
            assert_eq!(image.seek_points, None);
        }
        for (old, new) in records.iter().zip(&records_now) {
            let [old, new] = [old, new].map(|seen| image_record(&seen.3).unwrap().image);
            assert_eq!(decoder.decode(old), decoder.decode(new));
        }
        let [old, new] = [&at("indexed"), &fast].map(|root| Manifest::load(root).unwrap());
        assert_eq!(new.requires, ["fast-1"]);
        assert!(
            new.features
                .iter()
                .any(|feature| feature.name == "image/fast")
        );
        assert_eq!(new.order, old.order);
        assert_eq!(new.sample_fingerprint, old.sample_fingerprint);
        assert_eq!(new.schema(), old.schema());
        // Converted back to JPEGs, in the same shards and in TFRecords.
        for (to, format) in [
            ("indexed", DatasetFormat::INDEXED),
            ("tfrecord", DatasetFormat::TfRecord),
        ] {
            let back = at(&format!("{}-{to}", form.name()));
            let mut options = of(&fast, &back, format);
            if format == DatasetFormat::INDEXED {
                options.images = ImageChange::To(ImageForm::Jpeg);
            }
            let summary = done(&options);
            assert_eq!(summary.fast.images, 0);
            assert_eq!(data(&back), data(&at(to)), "{form:?} to {to}");
            let manifest = Manifest::load(&back).unwrap();
            assert!(manifest.requires.is_empty());
            assert_eq!(manifest.features, old.features);
            assert_eq!(manifest.order, old.order);
        }
        // A copy keeps fast images.
        let copy = at(&format!("{}-copy", form.name()));
        done(&of(&fast, &copy, DatasetFormat::INDEXED));
        assert_eq!(data(&copy), data(&fast));
        assert_eq!(Manifest::load(&copy).unwrap().requires, ["fast-1"]);
    }
    // Fast images are converted from one coding to the other.
    let mut options = of(&at("fast"), &at("fast-to-raw"), DatasetFormat::INDEXED);
    options.images = ImageChange::To(FORMS[1]);
    done(&options);
    assert_eq!(data(&at("fast-to-raw")), data(&at("fast-raw")));
}

#[test]
fn packing_and_converting_give_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let src = at("src");
    progressive_pictures(&src);
    crate::support::put(
        &src,
        b"class/picture.png",
        &forebay_image::encode_png(&[9; 48], 4, 4),
    );
    let packed = |name: &str, form: ImageForm| {
        let mut options = pack_options(&src, &at(name));
        (options.format, options.images) = (DatasetFormat::INDEXED, form);
        run(&options).unwrap()
    };
    packed("jpeg", ImageForm::Jpeg);
    for form in FORMS {
        let direct = packed(form.name(), form);
        let mut options = of(&at("jpeg"), &at("converted"), DatasetFormat::INDEXED);
        (options.images, options.overwrite) = (ImageChange::To(form), true);
        let converted = done(&options);
        assert_eq!(direct.fast, converted.fast);
        assert!(
            direct.fast.images > 3 && direct.fast.progressive > 2,
            "{direct:?}"
        );
        assert_eq!(data(&at(form.name())), data(&at("converted")));
        let [direct, converted] =
            [form.name(), "converted"].map(|name| Manifest::load(at(name)).unwrap());
        assert_eq!(direct.features, converted.features);
        // The order of epochs is that of the JPEGs, although fast images are larger.
        let jpeg = Manifest::load(at("jpeg")).unwrap();
        assert!(jpeg.order.is_some());
        assert_eq!(
            (&direct.order, &converted.order),
            (&jpeg.order, &jpeg.order)
        );
        // An export restores the original files, including progressive ones.
        let out = at(&format!("{}-out", form.name()));
        let options = ExportOptions::new(at(form.name()).as_path(), out.as_path());
        export(&options, &(), &Cancel::new()).unwrap();
        for (path, bytes) in contents(&src) {
            assert!(std::fs::read(out.join(&path)).unwrap() == bytes, "{path:?}");
        }
        let mut options = of(&at(form.name()), &at("back"), DatasetFormat::INDEXED);
        (options.images, options.overwrite) = (ImageChange::To(ImageForm::Jpeg), true);
        done(&options);
        assert_eq!(data(&at("back")), data(&at("jpeg")));
        let features = |name: &str| Manifest::load(at(name)).unwrap().features;
        assert_eq!(features("back"), features("jpeg"));
    }
}

#[test]
fn other_formats_get_jpegs() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    pictures(&at("jpeg"), DatasetFormat::INDEXED, None);
    // Formats with arrays need images of equal size.
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats/420.jpg");
    for class in ["a", "b"] {
        std::fs::create_dir_all(at("same").join(class)).unwrap();
        std::fs::copy(&image, at("same").join(class).join("1.jpg")).unwrap();
    }
    let mut packing = pack_options(&at("same"), &at("same-jpeg"));
    packing.format = DatasetFormat::INDEXED;
    run(&packing).unwrap();
    for source in ["", "same-"] {
        let [jpeg, fast] = ["jpeg", "fast"].map(|form| at(&format!("{source}{form}")));
        let mut options = of(&jpeg, &fast, DatasetFormat::INDEXED);
        options.images = ImageChange::To(FORMS[0]);
        assert!(done(&options).fast.images > 0);
    }
    for (source, format) in [
        ("", RecordFormat::WEBDATASET),
        ("", RecordFormat::MDS),
        ("", RecordFormat::LMDB),
        ("", RecordFormat::ARRAY_RECORD),
        ("same-", RecordFormat::NPZ),
        ("same-", RecordFormat::SAFETENSORS),
        ("same-", RecordFormat::ZARR),
    ] {
        let to = OutputFormat::Records(format, BlockCompression::NONE);
        let written = ["jpeg", "fast"].map(|name| {
            let dst = at(&format!("{name}-{}", format.name()));
            let mut options = of(
                &at(&format!("{source}{name}")),
                &dst,
                DatasetFormat::INDEXED,
            );
            options.format = to;
            done(&options);
            data(&dst)
        });
        let [of_jpeg, of_fast] = written.map(|mut files| {
            files.retain(|path, _| !path.ends_with("forebay-conversion.json"));
            files
        });
        assert!(of_jpeg == of_fast, "{}", format.name());
        let mut options = of(&at("jpeg"), &at("refused"), DatasetFormat::INDEXED);
        (options.format, options.images) = (to, ImageChange::To(FORMS[0]));
        let error = convert(&options, &(), &Cancel::new()).unwrap_err();
        assert!(error.to_string().contains("no other tool"), "{error}");
    }
}

#[test]
fn tfrecords_have_no_fast_images() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    pictures(&at("jpeg"), DatasetFormat::INDEXED, None);
    let mut options = of(&at("jpeg"), &at("tfrecord"), DatasetFormat::TfRecord);
    options.images = ImageChange::To(FORMS[0]);
    let error = convert(&options, &(), &Cancel::new()).unwrap_err();
    assert!(error.to_string().contains("indexed shards"), "{error}");
    let mut pack = pack_options(&at("src"), &at("packed"));
    (pack.format, pack.images) = (DatasetFormat::TfRecord, FORMS[0]);
    let error = run(&pack).unwrap_err();
    assert!(error.to_string().contains("indexed shards"), "{error}");
}

/// Writes the training records of a dataset of fast images into one shard. The images of the records `damaged` are truncated,
/// although all checksums are correct.
fn with_damaged_images(src: &Path, dst: &Path, format: ShardFormat, damaged: &[usize]) {
    std::fs::create_dir_all(dst.join("index")).unwrap();
    let name = format!("train-00000-of-00001{}", format.extension());
    let path = dst.join(&name);
    let file = std::fs::File::create(&path).unwrap();
    let mut writer: ShardWriter<_> = match format {
        ShardFormat::Indexed => indexed::WriterBuilder::new()
            .from_writer(file, &path)
            .unwrap(),
        _ => tfrecord::WriterBuilder::new().from_writer(file, &path),
    };
    let records = all(src).into_iter().filter(|seen| seen.0 == "train");
    for (number, (_, key, label, record)) in records.enumerate() {
        let mut changed = record.clone();
        if damaged.contains(&number) {
            let image = ExampleView::parse(&record).unwrap().bytes(IMAGE_FAST);
            let image = image.unwrap().unwrap();
            let half = &image[..image.len() / 2];
            set_bytes(&record, &[(IMAGE_FAST, Some(half))], &mut changed).unwrap();
        }
        let meta = RecordMeta { label, key: &key };
        writer.append(&changed, &meta).unwrap();
    }
    let (_, summary) = writer.finish().unwrap();
    if let Some(fbi) = summary.to_fbi().filter(|_| format == ShardFormat::TfRecord) {
        std::fs::write(dst.join(format!("index/{name}.fbi")), fbi).unwrap();
    }
    let old = Manifest::load(src).unwrap();
    let entry = ShardEntry {
        name,
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let splits = vec![SplitEntry::new("train", vec![entry])];
    let mut manifest = Manifest::new(format, old.label_base, splits);
    (manifest.features, manifest.pack) = (old.features, old.pack);
    std::fs::write(dst.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
}

#[test]
fn one_damaged_fast_image_is_a_bad_record() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    progressive_pictures(&at("src"));
    let mut packing = pack_options(&at("src"), &at("fast"));
    (packing.format, packing.images) = (DatasetFormat::INDEXED, FORMS[0]);
    run(&packing).unwrap();
    let fast = all(&at("fast")).into_iter().map(|seen| {
        let example = ExampleView::parse(&seen.3).unwrap();
        example.get(IMAGE_FAST).is_some()
    });
    let fast: Vec<bool> = fast.collect();
    let numbers = (0..fast.len()).filter(|number| fast[*number]);
    // The first record is damaged too, because formats with columns take their types from it.
    let damaged: Vec<usize> = numbers.take(2).collect();
    let whole = (fast.len() - damaged.len()) as u64;
    with_damaged_images(&at("fast"), &at("damaged"), ShardFormat::Indexed, &damaged);
    let records = |format| OutputFormat::Records(format, BlockCompression::NONE);
    let to_jpeg = ImageChange::To(ImageForm::Jpeg);
    for (number, (to, images)) in [
        (DatasetFormat::TfRecord.into(), ImageChange::Keep),
        (DatasetFormat::INDEXED.into(), to_jpeg),
        (DatasetFormat::INDEXED.into(), ImageChange::To(FORMS[1])),
        (records(RecordFormat::WEBDATASET), ImageChange::Keep),
        (records(RecordFormat::MDS), ImageChange::Keep),
    ]
    .into_iter()
    .enumerate()
    {
        for jobs in [1, 4] {
            let dst = at(&format!("{number}-{jobs}"));
            let mut options = of(&at("damaged"), &dst, DatasetFormat::INDEXED);
            (options.format, options.images, options.jobs) = (to, images, Some(jobs));
            options.on_bad = OnBad::Fail;
            let error = convert(&options, &(), &Cancel::new()).unwrap_err();
            let first = format!("record {}: {IMAGE_FAST}", damaged[0]);
            assert!(error.to_string().contains(&first), "{error}");
            options.on_bad = OnBad::Skip;
            options.overwrite = true;
            let summary = done(&options);
            let written: u64 = summary.splits.iter().map(|split| split.records).sum();
            assert_eq!((summary.skipped(), written), (2, whole), "{to:?} {jobs}");
            let report = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap();
            let named = |number: &usize| report.contains(&format!("record {number}: {IMAGE_FAST}"));
            assert!(damaged.iter().all(named), "{report}");
        }
        assert_eq!(
            data(&at(&format!("{number}-1"))),
            data(&at(&format!("{number}-4")))
        );
    }
    // Repairs write TFRecords with the JPEGs instead of fast images.
    with_damaged_images(
        &at("fast"),
        &at("tfrecord"),
        ShardFormat::TfRecord,
        &damaged,
    );
    let summary = repair(
        &RepairOptions::new(at("tfrecord").as_path(), at("repaired").as_path()),
        &(),
        &Cancel::new(),
    );
    let summary = summary.unwrap();
    assert_eq!((summary.lost_records, summary.lost_places), (2, 2));
    assert_eq!(summary.damage, 2);
    let lost: Vec<u64> = summary
        .lost
        .iter()
        .filter_map(|l| Some(l.records.clone()?.start))
        .collect();
    assert_eq!(lost, [damaged[0] as u64, damaged[1] as u64]);
    assert!(
        summary
            .lost
            .iter()
            .all(|lost| lost.bytes.end > lost.bytes.start)
    );
    assert_eq!(all(&at("repaired")).len() as u64, whole);
    assert_verifies(&at("repaired"));
}

#[test]
fn seek_points_are_recomputed_only_for_jpegs() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    pictures(&at("jpeg"), DatasetFormat::INDEXED, Some(SeekDensity::Rows));
    let mut options = of(&at("jpeg"), &at("fast"), DatasetFormat::INDEXED);
    options.images = ImageChange::To(FORMS[0]);
    options.seek_points = SeekPointChange::Make(SeekDensity::Rows);
    done(&options);
    for (_, _, _, record) in all(&at("fast")) {
        let record = image_record(&record).unwrap();
        assert!(sniff(record.image) != Some(ImageKind::Fast) || record.seek_points.is_none());
    }
    let mut options = of(&at("fast"), &at("removed"), DatasetFormat::INDEXED);
    options.images = ImageChange::To(ImageForm::Jpeg);
    options.seek_points = SeekPointChange::Remove;
    assert_eq!(done(&options).seek_points.images, 0);
    options.dst = Location::from(at("kept").as_path());
    options.seek_points = SeekPointChange::Keep;
    done(&options);
    assert_eq!(data(&at("kept")), data(&at("jpeg")));
}

#[test]
fn an_interrupted_conversion_to_fast_images_continues() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    tree(&at("src"), 3, 20);
    run(&pack_options(&at("src"), &at("packed"))).unwrap();
    let to = |name: &str| {
        let mut options = of(&at("packed"), &at(name), DatasetFormat::INDEXED);
        (options.sharding, options.jobs) = (Some(Sharding::Count(6)), Some(1));
        options.images = ImageChange::To(FORMS[1]);
        options
    };
    let whole = done(&to("whole"));
    let (options, cancel) = (to("interrupted"), Cancel::new());
    let stop = StopAfter(AtomicUsize::new(2), &cancel);
    let result = convert(&options, &stop, &cancel);
    assert!(
        matches!(result, Err(Error::Interrupted { .. })),
        "{result:?}"
    );
    // A conversion with another encoding does not continue it.
    let mut other = options.clone();
    other.images = ImageChange::Keep;
    let refused = convert(&other, &(), &Cancel::new()).unwrap_err();
    assert!(refused.to_string().contains("images"), "{refused}");
    let summary = done(&options);
    assert!(summary.resumed_shards >= 2);
    assert_eq!(summary.fast, whole.fast);
    assert_same(&at("interrupted"), &at("whole"));
}
