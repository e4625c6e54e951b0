//! Fast images: packing and converting to them, and back to the same bytes.

use crate::convert::{
    StopAfter, all, assert_verifies, data, done, of, pictures, progressive_pictures,
};
use crate::support::{assert_same, contents, options as pack_options, run, tree};
use forebay_image::{Decoder, FastCoding, Format as ImageKind, Limits, SeekDensity, sniff};
use forebay_pack::{
    Cancel, DatasetFormat, Error, ExportOptions, ImageChange, ImageForm, OutputFormat,
    RecordFormat, SeekPointChange, Sharding, convert, export,
};
use forebay_shard::{BlockCompression, Manifest, image_record};
use forebay_store::Location;
use std::path::Path;
use std::sync::atomic::AtomicUsize;

const FORMS: [ImageForm; 2] = [
    ImageForm::Fast(FastCoding::Coded),
    ImageForm::Fast(FastCoding::Raw),
];

/// Kinds of images in the records of a dataset.
fn kinds(root: &Path) -> Vec<Option<ImageKind>> {
    let records = all(root);
    let images = records.iter().map(|seen| image_record(&seen.3).unwrap());
    images.map(|record| sniff(record.image)).collect()
}

#[test]
fn converted_records_have_the_same_pixels_and_come_back() {
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
        // Back to JPEGs, in the same shards and others.
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
        // A copy keeps them.
        let copy = at(&format!("{}-copy", form.name()));
        done(&of(&fast, &copy, DatasetFormat::INDEXED));
        assert_eq!(data(&copy), data(&fast));
        assert_eq!(Manifest::load(&copy).unwrap().requires, ["fast-1"]);
    }
    // From one coding to the other.
    let mut options = of(&at("fast"), &at("fast-to-raw"), DatasetFormat::INDEXED);
    options.images = ImageChange::To(FORMS[1]);
    done(&options);
    assert_eq!(data(&at("fast-to-raw")), data(&at("fast-raw")));
}

#[test]
fn packing_gives_what_converting_gives() {
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
        // The epoch's order is that of the JPEGs, although fast images are larger.
        let jpeg = Manifest::load(at("jpeg")).unwrap();
        assert!(jpeg.order.is_some());
        assert_eq!(
            (&direct.order, &converted.order),
            (&jpeg.order, &jpeg.order)
        );
        // The very files, progressive ones too.
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
    // Arrays have images of one size.
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
fn tfrecords_have_fast_images_only_if_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    pictures(&at("jpeg"), DatasetFormat::INDEXED, None);
    let mut options = of(&at("jpeg"), &at("tfrecord"), DatasetFormat::TfRecord);
    options.images = ImageChange::To(FORMS[0]);
    let error = convert(&options, &(), &Cancel::new()).unwrap_err();
    assert!(
        error.to_string().contains("--allow-private-images"),
        "{error}"
    );
    options.allow_private_images = true;
    assert!(done(&options).fast.images > 10);
    assert_eq!(Manifest::load(at("tfrecord")).unwrap().requires, ["fast-1"]);
    let mut pack = pack_options(&at("src"), &at("packed"));
    (pack.format, pack.images) = (DatasetFormat::TfRecord, FORMS[0]);
    let error = run(&pack).unwrap_err();
    assert!(
        error.to_string().contains("--allow-private-images"),
        "{error}"
    );
}

#[test]
fn seek_points_are_made_again_only_for_jpegs() {
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
fn an_interrupted_conversion_to_fast_images_goes_on() {
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
    // Other images do not go on with it.
    let mut other = options.clone();
    other.images = ImageChange::Keep;
    let refused = convert(&other, &(), &Cancel::new()).unwrap_err();
    assert!(refused.to_string().contains("images"), "{refused}");
    let summary = done(&options);
    assert!(summary.resumed_shards >= 2);
    assert_eq!(summary.fast, whole.fast);
    assert_same(&at("interrupted"), &at("whole"));
}
