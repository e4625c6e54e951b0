//! Datasets that are written sample by sample. The tests of killed processes also cover killed writers.

use crate::support;

use forebay_image::{Decoder, Limits, SampleFormat};
use forebay_pack::{
    Cancel, DatasetFormat, DatasetWriter, DraftPixels, DraftValue, Error, ImageEncoding,
    RecordDraft, Result, WriteSummary, WriterOptions,
};
use forebay_shard::manifest::ClassEntry;
use forebay_shard::{Column, ColumnValue, Dataset, ExampleView, Manifest, Schema, verify};
use std::path::Path;
use support::*;

fn schema(columns: &[(&str, &str)]) -> Schema {
    let column = |(name, kind): &(&str, &str)| Column::new(*name, kind.parse().unwrap());
    Schema::new(columns.iter().map(column).collect()).unwrap()
}

pub(crate) fn writer_options(dst: &Path, format: DatasetFormat) -> WriterOptions {
    let columns = [("image", "image"), ("label", "label"), ("caption", "text")];
    let mut options = WriterOptions::new(dst, schema(&columns));
    options.format = format;
    options.shard_bytes = 40 << 10;
    options.jobs = Some(2);
    options
}

/// Returns samples of two alternating splits: encoded JPEGs, and pixels.
pub(crate) fn samples() -> Vec<RecordDraft> {
    let sample = |number: u64| {
        let split = if number % 5 == 4 {
            "validation"
        } else {
            "train"
        };
        let draft = RecordDraft::new(split)
            .value("label", (number % 3) as i64)
            .value("caption", format!("picture {number}"));
        match number % 4 {
            3 => {
                let data = noise(number, 40 * 30 * 3);
                let pixels = DraftPixels::new(40, 30, SampleFormat::Rgb8, data).unwrap();
                draft.key(format!("{number}.png")).value("image", pixels)
            }
            _ => {
                let image = jpeg(300 + number as u16, 200, 3, &noise(number, 4000));
                draft.key(format!("{number}.jpeg")).value("image", image)
            }
        }
    };
    (0..40).map(sample).collect()
}

pub(crate) fn write(options: WriterOptions, samples: Vec<RecordDraft>) -> Result<WriteSummary> {
    let mut writer = DatasetWriter::create(options, &Cancel::new())?;
    for sample in samples {
        writer.write(sample)?;
    }
    writer.close()
}

/// The work of a process that is killed.
pub(crate) fn write_in_child(dst: &Path) {
    let name = dst.to_string_lossy().into_owned();
    let format = match name.contains("tfrecord") {
        true => DatasetFormat::TfRecord,
        false => DatasetFormat::INDEXED,
    };
    let mut options = writer_options(dst, format);
    // With one thread, the order of system calls is the same in each run.
    options.jobs = Some(1);
    options.resume = true;
    if name.contains("staged") {
        options.upload.staging_dir = Some(dst.with_file_name(format!(
            "area of {}",
            dst.file_name().unwrap().to_string_lossy()
        )));
        options.upload.staging_bytes = Some(1 << 20);
    }
    write(options, samples()).unwrap();
}

#[track_caller]
fn value(
    dataset: &Dataset,
    split: &str,
    number: u64,
    column: &str,
    check: &dyn Fn(ColumnValue<'_>),
) {
    let schema = dataset.manifest().schema();
    let mut record = Vec::new();
    dataset
        .split(split)
        .unwrap()
        .read(number, &mut record)
        .unwrap();
    let example = ExampleView::parse(&record).unwrap();
    let column = schema.column(column).unwrap();
    check(column.read(example).unwrap().unwrap());
}

#[test]
fn a_dataset_reads_back_as_it_was_written() {
    for format in DatasetFormat::all() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = writer_options(&dir.path().join("a"), format);
        options.label_base = 1;
        options.classes = ["cat", "dog", "owl"]
            .map(|name| ClassEntry {
                name: name.into(),
                text: None,
            })
            .into();
        let summary = write(options, samples()).unwrap();
        let root = dir.path().join("a");
        let dataset = Dataset::open(&root).unwrap();
        let manifest: &Manifest = dataset.manifest();
        assert_eq!(
            (summary.records(), summary.fingerprint.as_str()),
            (40, dataset.fingerprint())
        );
        assert_eq!(manifest.classes.len(), 3);
        assert!(manifest.sample_fingerprint.is_some() && manifest.order.is_some());
        assert_eq!(manifest.columns.columns().len(), 3);
        let train = dataset.split("train").unwrap();
        let validation = dataset.split("validation").unwrap();
        assert_eq!((train.len(), validation.len()), (32, 8));
        let extension = format.shard_format().extension();
        let names = &manifest.split("train").unwrap().shards;
        assert!(names.len() > 2);
        for (number, shard) in names.iter().enumerate() {
            assert_eq!(shard.name, format!("train-{number:05}{extension}"));
        }
        // Sample 6 is number 5 of its split.
        assert_eq!(train.key(5).unwrap(), b"6.jpeg");
        assert_eq!(train.label(5), Some(1));
        value(&dataset, "train", 5, "caption", &|value| {
            assert_eq!(value, ColumnValue::Bytes(b"picture 6"));
        });
        value(&dataset, "train", 5, "image", &|value| {
            assert_eq!(
                value,
                ColumnValue::Bytes(&jpeg(306, 200, 3, &noise(6, 4000)))
            );
        });
        value(&dataset, "train", 3, "image", &|value| {
            let ColumnValue::Bytes(png) = value else {
                panic!("an image is bytes")
            };
            let decoded = Decoder::new(Limits::default()).decode(png).unwrap();
            assert_eq!(decoded.data, noise(3, 40 * 30 * 3));
        });
        let report =
            verify::verify_dataset(&root, &verify::VerifyOptions::default(), &|_| {}).unwrap();
        assert!(report.is_ok(), "{report}");
    }
}

#[test]
fn bytes_depend_only_on_samples() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let mut one = writer_options(&at(&format!("{format:?} one")), format);
        one.jobs = Some(1);
        write(one, samples()).unwrap();
        let mut many = writer_options(&at(&format!("{format:?} many")), format);
        many.jobs = Some(7);
        write(many, samples()).unwrap();
        let mut staged = writer_options(&at(&format!("{format:?} staged")), format);
        staged.upload.staging_dir = Some(at("area"));
        staged.upload.staging_bytes = Some(1 << 20);
        let summary = write(staged, samples()).unwrap();
        assert!(summary.uploaded.is_some_and(|uploaded| uploaded.files > 4));
        assert_same(
            &at(&format!("{format:?} one")),
            &at(&format!("{format:?} many")),
        );
        assert_same(
            &at(&format!("{format:?} one")),
            &at(&format!("{format:?} staged")),
        );
    }
}

#[test]
fn a_dropped_writer_continues_and_a_complete_one_compares() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, dst) = (dir.path().join("whole"), dir.path().join("dst"));
    write(writer_options(&whole, DatasetFormat::INDEXED), samples()).unwrap();
    let resumed = || {
        let mut options = writer_options(&dst, DatasetFormat::INDEXED);
        options.resume = true;
        options
    };
    let unfinished = |count: usize| {
        let mut writer = DatasetWriter::create(resumed(), &Cancel::new()).unwrap();
        for sample in samples().into_iter().take(count) {
            writer.write(sample).unwrap();
        }
    };
    unfinished(38);
    assert!(dst.join("train-00000.fbs").exists() && !dst.join("forebay.json").exists());
    // Files that the journal does not list are removed, and damaged shards are written again.
    std::fs::write(dst.join("train-00077.fbs"), b"left by a killed writer").unwrap();
    std::fs::write(dst.join("train-00000.fbs"), b"damaged").unwrap();
    let plain = DatasetWriter::create(writer_options(&dst, DatasetFormat::INDEXED), &Cancel::new());
    assert!(matches!(plain.unwrap_err(), Error::Unfinished { .. }));
    let other = write(resumed(), samples().into_iter().rev().collect()).unwrap_err();
    assert!(matches!(other, Error::DifferentSamples { .. }), "{other}");
    let summary = write(resumed(), samples()).unwrap();
    assert!(!summary.already_complete);
    assert_same(&whole, &dst);
    let again = write(resumed(), samples()).unwrap();
    assert!(again.already_complete);
    assert_eq!(again.fingerprint, summary.fingerprint);
    let fewer = write(resumed(), samples().into_iter().skip(1).collect()).unwrap_err();
    assert!(matches!(fewer, Error::DifferentSamples { .. }), "{fewer}");
    let plain = DatasetWriter::create(writer_options(&dst, DatasetFormat::INDEXED), &Cancel::new());
    assert!(matches!(plain.unwrap_err(), Error::Occupied { .. }));
    assert_same(&whole, &dst);
    let mut replaced = writer_options(&dst, DatasetFormat::TfRecord);
    replaced.overwrite = true;
    write(replaced, samples()).unwrap();
    assert!(!dst.join("train-00000.fbs").exists() && dst.join("train-00000").exists());
}

#[test]
fn samples_that_do_not_match_the_schema_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let columns = [
        ("image", "image"),
        ("label", "label"),
        ("boxes", "boxes"),
        ("mask", "mask"),
        ("points", "keypoints"),
        ("vector", "vector[2]"),
    ];
    let mut options = WriterOptions::new(dir.path().join("a").as_path(), schema(&columns));
    options.classes = vec![ClassEntry {
        name: "cat".into(),
        text: None,
    }];
    let mut writer = DatasetWriter::create(options, &Cancel::new()).unwrap();
    let pixels = |format| {
        let data = vec![7; 4 * SampleFormat::pixel_bytes(format)];
        DraftValue::from(DraftPixels::new(2, 2, format, data).unwrap())
    };
    let good = |changed: &str, value: Option<DraftValue>| {
        let mut draft = RecordDraft::new("train").key("k");
        for (name, good) in [
            ("image", picture(8, 8).into()),
            ("label", DraftValue::Int(0)),
            (
                "boxes",
                DraftValue::Boxes {
                    boxes: vec![[0.0, 0.25, 1.0, 0.5]],
                    labels: vec![90],
                },
            ),
            ("mask", pixels(SampleFormat::Gray16)),
            (
                "points",
                DraftValue::Keypoints {
                    points: vec![[0.5, 0.5]],
                    visibility: vec![2],
                },
            ),
            ("vector", vec![1.0f32, 2.0].into()),
        ] {
            draft = match (name == changed, value.clone()) {
                (false, _) => draft.value(name, good),
                (true, Some(value)) => draft.value(name, value),
                (true, None) => draft.without(name),
            };
        }
        draft
    };
    let boxes = |sides, labels| DraftValue::Boxes {
        boxes: vec![sides],
        labels,
    };
    let points = |point, flag| DraftValue::Keypoints {
        points: vec![point],
        visibility: vec![flag],
    };
    for (column, value, said) in [
        ("image", None, "has an image"),
        ("image", Some(vec![1u8, 2, 3].into()), "not an image"),
        ("image", Some(b"GIF89a".to_vec().into()), "GIF"),
        (
            "image",
            Some(picture(64, 64)[..300].to_vec().into()),
            "image",
        ),
        (
            "image",
            Some(DraftValue::Int(1)),
            "expected an encoded image, found an integer",
        ),
        ("image", Some(pixels(SampleFormat::Gray16)), "8 bits"),
        ("label", Some(DraftValue::Int(1)), "from 0 to 0"),
        ("label", Some(DraftValue::Int(-2)), "found -2"),
        (
            "label",
            Some(DraftValue::Float(1.0)),
            "expected an integer, found a float",
        ),
        (
            "boxes",
            Some(boxes([0.0, 0.0, 300.0, 200.0], vec![0])),
            "from 0 to 1",
        ),
        (
            "boxes",
            Some(boxes([0.5, 0.0, 0.25, 1.0], vec![0])),
            "xmin <= xmax",
        ),
        (
            "boxes",
            Some(boxes([0.0, 0.0, 1.0, 1.0], vec![])),
            "1 boxes and 0 labels",
        ),
        (
            "boxes",
            Some(boxes([0.0, 0.0, f32::NAN, 1.0], vec![0])),
            "finite",
        ),
        ("mask", Some(pixels(SampleFormat::Rgb8)), "one channel"),
        (
            "mask",
            Some(picture(8, 8).into()),
            "expected a PNG without alpha, found JPEG",
        ),
        ("points", Some(points([0.5, 1.5], 2)), "from 0 to 1"),
        ("points", Some(points([0.5, 0.5], 3)), "visibility"),
        (
            "vector",
            Some(vec![1.0f32].into()),
            "expected 2 numbers, found 1",
        ),
        (
            "vector",
            Some(pixels(SampleFormat::Gray8)),
            "expected vector[2], found pixels",
        ),
    ] {
        let error = writer.write(good(column, value)).unwrap_err();
        let Error::Sample(refused) = &error else {
            panic!("{error}")
        };
        assert_eq!(
            (refused.column.as_deref(), refused.key.as_str()),
            (Some(column), "k")
        );
        assert!(refused.problem.contains(said), "{error}");
    }
    for (draft, said) in [
        (
            good("", None).value("other", 1),
            "no such column: it has image, label",
        ),
        (good("", None).value("label", 1), "given twice"),
        (
            RecordDraft::new("train").value("label", 0),
            "expected image, found nothing",
        ),
        (
            good("", None).key(vec![b'k'; 70_000]),
            "the longest is 65535",
        ),
    ] {
        let error = writer.write(draft).unwrap_err();
        assert!(
            matches!(error, Error::Sample(_)) && error.to_string().contains(said),
            "{error}"
        );
    }
    let mut wrong = RecordDraft::new("../etc");
    wrong = wrong.value("label", 0);
    let error = writer.write(wrong).unwrap_err().to_string();
    assert!(error.contains("split \"../etc\""), "{error}");
    // A sample without a label gets -1, and one without a key its number.
    writer.write(good("label", None)).unwrap();
    let error = writer.write(good("points", None)).unwrap_err();
    assert!(
        error.to_string().contains("an earlier sample has its key"),
        "{error}"
    );
    writer.write(good("points", None).key("other")).unwrap();
    assert_eq!(writer.close().unwrap().records(), 2);
    assert!(matches!(writer.close().unwrap_err(), Error::Closed { .. }));
    assert!(matches!(
        writer.write(good("", None)).unwrap_err(),
        Error::Closed { .. }
    ));
    let dataset = Dataset::open(dir.path().join("a")).unwrap();
    let train = dataset.split("train").unwrap();
    assert_eq!((train.label(0), train.label(1)), (Some(-1), Some(0)));
}

#[test]
fn labels_of_every_kind_are_stored_with_the_label_base() {
    let dir = tempfile::tempdir().unwrap();
    let columns = [
        ("label", "label"),
        ("tags", "labels"),
        ("boxes", "boxes"),
        ("age", "int"),
    ];
    let mut options = WriterOptions::new(dir.path().join("a").as_path(), schema(&columns));
    (options.label_base, options.shard_records) = (1, Some(1));
    let sample = || {
        RecordDraft::new("train")
            .value("label", 4)
            .value("tags", vec![0i64, 2])
            .value("age", 9)
            .value(
                "boxes",
                DraftValue::Boxes {
                    boxes: vec![[0.0; 4]; 2],
                    labels: vec![-1, 5],
                },
            )
    };
    let summary = write(options, vec![sample(), sample()]).unwrap();
    assert_eq!(summary.splits[0].shards, 2);
    let dataset = Dataset::open(dir.path().join("a")).unwrap();
    assert_eq!(dataset.split("train").unwrap().key(1).unwrap(), b"00000001");
    value(&dataset, "train", 1, "label", &|value| {
        assert_eq!(value, ColumnValue::Int(5))
    });
    value(&dataset, "train", 1, "tags", &|value| {
        assert_eq!(value, ColumnValue::Ints(vec![1, 3]));
    });
    value(&dataset, "train", 1, "age", &|value| {
        assert_eq!(value, ColumnValue::Int(9))
    });
    value(&dataset, "train", 1, "boxes", &|value| {
        let ColumnValue::Boxes { labels, .. } = value else {
            panic!("boxes are boxes")
        };
        assert_eq!(labels, [-1, 6]);
    });
}

#[test]
fn pixels_are_stored_as_jpeg_if_requested() {
    let dir = tempfile::tempdir().unwrap();
    let columns = schema(&[("image", "image"), ("mask", "mask")]);
    let mut options = WriterOptions::new(dir.path().join("a").as_path(), columns);
    options.image_encoding = ImageEncoding::Jpeg { quality: 90 };
    let pixels = |format| {
        let data = noise(1, 64 * 48 * SampleFormat::pixel_bytes(format));
        DraftPixels::new(64, 48, format, data).unwrap()
    };
    let sample = |format| {
        let draft = RecordDraft::new("train").value("image", pixels(format));
        draft.value("mask", pixels(SampleFormat::Gray8))
    };
    let samples = vec![sample(SampleFormat::Rgb8), sample(SampleFormat::Gray8)];
    write(options, samples).unwrap();
    let dataset = Dataset::open(dir.path().join("a")).unwrap();
    for (number, channels) in [(0, 3), (1, 1)] {
        let probe = |column, name, channels| {
            value(&dataset, "train", number, column, &|value| {
                let ColumnValue::Bytes(image) = value else {
                    panic!("an image is bytes")
                };
                let probe = forebay_image::probe(image, &Limits::default()).unwrap();
                assert_eq!((probe.format.name(), probe.channels), (name, channels));
            });
        };
        probe("image", "JPEG", channels);
        probe("mask", "PNG", 1);
    }
    assert!(dataset.manifest().pack.contains_key("seek_point_images"));
}

#[test]
fn contradictory_options_and_empty_datasets_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = || writer_options(&dir.path().join("a"), DatasetFormat::TfRecord);
    let refused = |change: &dyn Fn(&mut WriterOptions)| {
        let mut options = good();
        change(&mut options);
        let error = DatasetWriter::create(options, &Cancel::new()).unwrap_err();
        assert!(matches!(error, Error::Options(_)), "{error}");
    };
    refused(&|o| o.schema = Schema::default());
    refused(&|o| o.schema = schema(&[("image/seek_points", "bytes")]));
    refused(&|o| o.label_base = 2);
    refused(&|o| o.shard_bytes = 0);
    refused(&|o| o.shard_records = Some(0));
    refused(&|o| o.image_encoding = ImageEncoding::Jpeg { quality: 0 });
    refused(&|o| (o.resume, o.overwrite) = (true, true));
    let error = write(good(), Vec::new()).unwrap_err();
    assert!(
        error.to_string().contains("no sample was written"),
        "{error}"
    );
    let _one = DatasetWriter::create(good(), &Cancel::new()).unwrap();
    let two = DatasetWriter::create(good(), &Cancel::new()).unwrap_err();
    assert!(
        matches!(two, Error::Store(forebay_store::Error::Locked { .. })),
        "{two}"
    );
}
