//! Columns: batches have the values of their records, whatever the transform and the order.

use std::path::Path;

use forebay_batch::{Batch, BatchColumn, ColumnKind, FLAG_FAILED, FLAG_PADDING, digest};
use forebay_image::{BatchTransform, EvalTransform, Mixing, Output, Transform};
use forebay_loader::{LabelBase, Loader, Mix, OnError, Options, Shuffle};
use forebay_shard::manifest::{Manifest, ShardEntry, SplitEntry};
use forebay_shard::schema::FeatureEntry;
use forebay_shard::{
    Column, ColumnValue, Dataset, ExampleBuilder, RecordMeta, Schema, ShardFormat, Split, indexed,
};

use crate::dataset::{key, picture};

/// The columns of the records, with their types.
const COLUMNS: [(&str, &str); 15] = [
    ("image", "image"),
    ("label", "label"),
    ("class2", "label"),
    ("age", "int"),
    ("score", "float"),
    ("tags", "labels"),
    ("pair", "vector[2]"),
    ("ids", "vector[*,int64]"),
    ("cloud", "tensor[*,2,float32]"),
    ("grid", "tensor[*,*,int16]"),
    ("flags", "tensor[3,bool]"),
    ("caption", "text"),
    ("raw", "bytes"),
    ("boxes", "boxes"),
    ("points", "keypoints"),
];
/// The columns that a transform does not change.
const PLAIN: [&str; 12] = [
    "caption", "image", "label", "class2", "age", "score", "tags", "pair", "ids", "cloud", "grid",
    "flags",
];

fn schema() -> Schema {
    let column = |(name, text): &(&str, &str)| Column::new(*name, text.parse().unwrap());
    Schema::new(COLUMNS.iter().map(column).collect()).unwrap()
}

/// The values of a record, as in the arrays of a batch: the number of rows, and the bytes of each array.
#[derive(Debug, Clone, PartialEq)]
struct Value(usize, Vec<Vec<u8>>);

fn i64s(values: impl IntoIterator<Item = i64>) -> Vec<u8> {
    values.into_iter().flat_map(i64::to_le_bytes).collect()
}

fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

fn caption(i: u64) -> String {
    "été ".repeat((i * 7 % 40) as usize)
}

/// Stored labels count from 1; every fifth record has none.
fn label(i: u64) -> Option<i64> {
    (i % 5 != 4).then_some(i as i64 % 10 + 1)
}

fn tags(i: u64) -> Vec<i64> {
    (0..i as i64 % 4)
        .map(|tag| if tag == 2 { -1 } else { tag + 1 })
        .collect()
}

fn boxes(i: u64) -> Vec<[f32; 4]> {
    (0..i % 3)
        .map(|n| [0.0, 0.25 * n as f32, 0.5, 1.0])
        .collect()
}

fn cloud(i: u64) -> Vec<f32> {
    (0..i % 4 * 2)
        .map(|at| at as f32 + i as f32 / 8.0)
        .collect()
}

fn grid(i: u64) -> ([u64; 2], Vec<u8>) {
    let shape = [i % 3, 1 + i % 2];
    let numbers = 0..(shape[0] * shape[1]) as i16;
    (
        shape,
        numbers.flat_map(|n| (n - i as i16).to_le_bytes()).collect(),
    )
}

/// Returns width and height of [`picture`].
fn size(i: u64) -> [f32; 2] {
    [8.0 + (i % 5) as f32 * 3.0, 8.0 + (i % 3) as f32 * 7.0]
}

/// Returns the expected values of a record in a batch, with labels that count from 0.
fn expected(i: u64, name: &str) -> Value {
    let shifted = |label: i64| if label < 0 { label } else { label - 1 };
    let bytes = |bytes: &[u8]| Value(bytes.len(), vec![bytes.to_vec()]);
    match name {
        "image" => bytes(&picture(i)),
        "label" | "class2" => Value(1, vec![i64s([label(i).map_or(-1, shifted)])]),
        "age" => Value(1, vec![i64s([i as i64 - 50])]),
        "score" => Value(1, vec![f32s([i as f32 / 4.0])]),
        "tags" => Value(tags(i).len(), vec![i64s(tags(i).into_iter().map(shifted))]),
        "pair" => Value(1, vec![f32s([i as f32, -1.0])]),
        "ids" => Value((i % 6) as usize, vec![i64s(0..i as i64 % 6)]),
        "cloud" => Value(cloud(i).len() / 2, vec![f32s(cloud(i))]),
        "grid" => {
            let (shape, numbers) = grid(i);
            let sides = i64s(shape.map(|side| side as i64));
            Value(numbers.len() / 2, vec![numbers, sides])
        }
        "flags" => Value(1, vec![vec![1, (i % 2) as u8, 0]]),
        "caption" => bytes(caption(i).as_bytes()),
        "raw" => bytes(&i.to_le_bytes()[..(i % 9).min(8) as usize]),
        "boxes" => {
            let [w, h] = size(i);
            let rows = boxes(i)
                .into_iter()
                .flat_map(|b| [b[0] * w, b[1] * h, b[2] * w, b[3] * h]);
            let labels = i64s((0..boxes(i).len() as i64).map(|n| n + 2));
            Value(boxes(i).len(), vec![f32s(rows), labels])
        }
        "points" => {
            let [w, h] = size(i);
            Value(1, vec![f32s([0.5 * w, 0.125 * h]), i64s([2])])
        }
        other => panic!("{other}"),
    }
}

/// Encodes a record that lacks the column `without`.
fn record(i: u64, without: &str) -> Vec<u8> {
    let (image, text, (shape, numbers)) = (picture(i), caption(i), grid(i));
    let raw = i.to_le_bytes();
    let points: Vec<u8> = f32s(cloud(i));
    let flags = [1, (i % 2) as u8, 0];
    let values: Vec<Option<ColumnValue<'_>>> = COLUMNS
        .iter()
        .map(|(name, _)| {
            Some(match *name {
                "image" => ColumnValue::Bytes(&image),
                "label" | "class2" => ColumnValue::Int(label(i)?),
                "age" => ColumnValue::Int(i as i64 - 50),
                "score" => ColumnValue::Float(i as f32 / 4.0),
                "tags" => ColumnValue::Ints(tags(i)),
                "pair" => ColumnValue::Floats(vec![i as f32, -1.0]),
                "ids" => ColumnValue::Ints((0..i as i64 % 6).collect()),
                "cloud" => ColumnValue::Tensor {
                    shape: vec![cloud(i).len() as u64 / 2, 2],
                    bytes: &points,
                },
                "grid" => ColumnValue::Tensor {
                    shape: shape.to_vec(),
                    bytes: &numbers,
                },
                "flags" => ColumnValue::Tensor {
                    shape: vec![3],
                    bytes: &flags,
                },
                "caption" => ColumnValue::Bytes(text.as_bytes()),
                "raw" => ColumnValue::Bytes(&raw[..(i % 9).min(8) as usize]),
                "boxes" => ColumnValue::Boxes {
                    boxes: boxes(i),
                    labels: (0..boxes(i).len() as i64).map(|n| n + 3).collect(),
                },
                _ => ColumnValue::Keypoints {
                    points: vec![[0.5, 0.125]],
                    visibility: vec![2],
                },
            })
        })
        .collect();
    let schema = schema();
    let features: Vec<Vec<FeatureEntry>> = schema.columns().iter().map(Column::features).collect();
    let mut builder = ExampleBuilder::new();
    for ((column, features), value) in schema.columns().iter().zip(&features).zip(&values) {
        if let Some(value) = value.as_ref().filter(|_| column.name != without) {
            column.add(features, value, &mut builder).unwrap();
        }
    }
    builder.to_vec()
}

/// Writes records as the only split, `train`, with this schema.
pub(super) fn write(root: &Path, records: impl Iterator<Item = Vec<u8>>, columns: Schema) -> Split {
    let path = root.join("train-00000-of-00001.fbs");
    let file = std::fs::File::create(&path).unwrap();
    let mut builder = indexed::WriterBuilder::new();
    builder.block_bytes(5000);
    let mut writer = builder.from_writer(file, &path).unwrap();
    for (i, record) in (0..).zip(records) {
        let (key, label) = (key(i), label(i).unwrap_or(-1));
        writer
            .append(&record, &RecordMeta::new(label, key.as_bytes()))
            .unwrap();
    }
    let (_, summary) = writer.finish().unwrap();
    let shard = ShardEntry {
        name: "train-00000-of-00001.fbs".to_owned(),
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let splits = vec![SplitEntry::new("train", vec![shard])];
    let mut manifest = Manifest::new(ShardFormat::Indexed, 1, splits);
    manifest.columns = columns;
    std::fs::write(root.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
    Dataset::open(root).unwrap().split("train").unwrap()
}

/// Writes a dataset of 60 records of which record 21 lacks the column `without`.
fn split(without: &str) -> (tempfile::TempDir, Split) {
    let directory = tempfile::tempdir().unwrap();
    let lacking = |i| record(i, if i == 21 { without } else { "" });
    let split = write(directory.path(), (0..60).map(lacking), schema());
    (directory, split)
}

pub(super) fn options(transform: Transform, columns: &[&str]) -> Options {
    let mut options = Options::new(8, transform);
    options.threads = 3;
    options.columns = columns.iter().map(|&name| name.to_owned()).collect();
    options
}

fn eval() -> Transform {
    Transform::Eval(EvalTransform::new(7, 6))
}

pub(super) fn epoch(loader: &mut Loader) -> Vec<Batch> {
    let mut batches = Vec::new();
    while let Some(batch) = loader.next_batch().unwrap() {
        batch.check().unwrap();
        batches.push(batch);
    }
    batches
}

/// Returns the values of sample `i` in a column.
fn value(batch: &Batch, column: &BatchColumn, i: usize) -> Value {
    let range = |by_sample: bool| match &column.offsets {
        Some(offsets) if !by_sample => offsets[i] as usize..offsets[i + 1] as usize,
        _ => i..i + 1,
    };
    let arrays = column.arrays.iter().enumerate().map(|(number, array)| {
        let row = array
            .bytes()
            .unwrap()
            .checked_div(array.shape[0])
            .unwrap_or(0);
        let rows = range(column.kind == ColumnKind::Tensors && number == 1);
        batch.array(array).unwrap()[rows.start * row..rows.end * row].to_vec()
    });
    Value(range(false).len(), arrays.collect())
}

fn check(batch: &Batch, names: &[&str]) {
    let found: Vec<&str> = batch
        .columns
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    assert_eq!(found, names);
    for column in &batch.columns {
        for (i, &sample) in batch.samples.iter().enumerate() {
            let expected = expected(sample, &column.name);
            assert_eq!(
                value(batch, column, i),
                expected,
                "{} of {sample}",
                column.name
            );
        }
    }
}

#[test]
fn every_type_of_column_is_read() {
    let (_directory, split) = split("");
    let all: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    for (transform, names) in [(Transform::KeepEncoded, &all[..]), (eval(), &PLAIN[..])] {
        let mut options = options(transform, names);
        options.sampling.repeats = 2;
        options.drop_last = false;
        let mut loader = Loader::new(split.clone(), options).unwrap();
        for _ in 0..2 {
            let batches = epoch(&mut loader);
            assert_eq!(batches.len(), 15);
            batches.iter().for_each(|batch| check(batch, names));
        }
    }
}

#[test]
fn batches_are_those_without_columns() {
    let (_directory, split) = split("");
    let epoch_of = |columns: &[&str], threads, transform| {
        let mut options = options(transform, columns);
        options.threads = threads;
        options.drop_last = false;
        epoch(&mut Loader::new(split.clone(), options).unwrap())
    };
    for transform in [eval(), Transform::KeepEncoded] {
        let plain = epoch_of(&[], 2, transform.clone());
        // The image makes columns much larger than the space that is reserved for them at first.
        let with = epoch_of(&PLAIN, 2, transform.clone());
        let again = epoch_of(&PLAIN, 1, transform.clone());
        assert_eq!(plain.len(), 8);
        for ((plain, with), again) in plain.iter().zip(&with).zip(&again) {
            assert_eq!(plain.payload[..], *with.images());
            assert_eq!(
                with.payload[..],
                again.payload[..],
                "the same bytes with one thread"
            );
            assert_eq!(
                (&plain.labels, &plain.samples),
                (&with.labels, &with.samples)
            );
            assert_eq!((plain.digest, &plain.flags), (with.digest, &with.flags));
            assert!(plain.columns.is_empty());
        }
        let padding = with[7].flags.iter().filter(|&&flag| flag == FLAG_PADDING);
        assert_eq!(padding.count(), 4);
    }
}

#[test]
fn a_resumed_loader_continues_with_its_columns() {
    let (_directory, split) = split("");
    let options = options(eval(), &["caption", "age"]);
    let all = epoch(&mut Loader::new(split.clone(), options.clone()).unwrap());
    let mut moved = Loader::new(split, options).unwrap();
    moved.next_batch().unwrap();
    moved.seek(0, 24).unwrap();
    for (batch, other) in epoch(&mut moved).iter().zip(&all[3..]) {
        assert_eq!(batch.payload[..], other.payload[..]);
        assert_eq!(batch.columns, other.columns);
    }
}

#[test]
fn label_columns_use_the_label_base_of_batches() {
    let (_directory, split) = split("");
    for (base, by) in [(LabelBase::One, 1), (LabelBase::Stored, 1)] {
        let mut options = options(Transform::KeepEncoded, &["label", "tags", "boxes"]);
        options.label_base = base;
        for batch in epoch(&mut Loader::new(split.clone(), options).unwrap()) {
            for (i, &sample) in batch.samples.iter().enumerate() {
                let labels = |name: &str, array: usize| {
                    let column = batch.column(name).unwrap();
                    value(&batch, column, i).1[array].clone()
                };
                assert_eq!(labels("label", 0), i64s([batch.labels[i]]));
                assert_eq!(labels("tags", 0), i64s(tags(sample)));
                let of_boxes = (0..boxes(sample).len() as i64).map(|n| n + 2 + by);
                assert_eq!(labels("boxes", 1), i64s(of_boxes));
            }
        }
    }
    // Labels below the first class count as damage in columns too.
    let directory = tempfile::tempdir().unwrap();
    let zero = |i: u64| {
        let mut builder = ExampleBuilder::new();
        let image = picture(i);
        builder
            .add_bytes("image/encoded", &image)
            .add_int64s("tags", &[0]);
        builder.to_vec()
    };
    let split = write(directory.path(), (0..8).map(zero), schema());
    let mut loader = Loader::new(split, options(eval(), &["tags"])).unwrap();
    let error = loader.next_batch().unwrap_err().to_string();
    assert!(
        error.contains("column \"tags\": label 0 is below 1"),
        "{error}"
    );
}

#[test]
fn missing_values_are_empty_or_errors() {
    // Lists, text and labels may be missing.
    for name in ["tags", "ids", "cloud", "grid", "caption", "raw", "class2"] {
        let (_directory, split) = split(name);
        let mut options = options(Transform::KeepEncoded, &[name]);
        options.shuffle = Shuffle::NONE;
        let batches = epoch(&mut Loader::new(split, options).unwrap());
        let column = &batches[2].columns[0];
        let Value(rows, arrays) = value(&batches[2], column, 5);
        match name {
            "class2" => assert_eq!(arrays, [i64s([-1])]),
            "grid" => assert_eq!((rows, arrays), (0, vec![vec![], i64s([0, 0])])),
            _ => assert_eq!((rows, arrays), (0, vec![vec![]])),
        }
    }
    for name in ["age", "score", "pair", "flags"] {
        let (_directory, split) = split(name);
        let load = |on_error| {
            let mut options = options(eval(), &[name, "caption"]);
            options.shuffle = Shuffle::NONE;
            options.on_error = on_error;
            Loader::new(split.clone(), options).unwrap()
        };
        let mut loader = load(OnError::Raise);
        loader.seek(0, 16).unwrap();
        let error = loader.next_batch().unwrap_err().to_string();
        let said = format!("(class1/21.png): column {name:?}: the record has no value");
        assert!(error.contains(&said), "{error}");

        let batches = epoch(&mut load(OnError::Skip));
        assert_eq!(batches[2].flags[5], FLAG_FAILED);
        assert_eq!(batches[2].samples[5], 22);
        check(&batches[2], &[name, "caption"]);

        let batch = &epoch(&mut load(OnError::Zero))[2];
        assert_eq!((batch.flags[5], batch.labels[5]), (FLAG_FAILED, -1));
        let Value(_, arrays) = value(batch, &batch.columns[0], 5);
        assert!(arrays[0].iter().all(|&byte| byte == 0));
        assert_eq!(value(batch, &batch.columns[1], 5), Value(0, vec![vec![]]));
        assert_eq!(value(batch, &batch.columns[1], 4), expected(20, "caption"));
    }
}

#[test]
fn a_batch_without_a_good_sample_has_no_values() {
    let directory = tempfile::tempdir().unwrap();
    let split = write(directory.path(), (0..8).map(|_| b"\xff".to_vec()), schema());
    for on_error in [OnError::Skip, OnError::Zero] {
        let mut options = options(eval(), &PLAIN);
        options.on_error = on_error;
        let batch = Loader::new(split.clone(), options)
            .unwrap()
            .next_batch()
            .unwrap()
            .unwrap();
        batch.check().unwrap();
        assert_eq!(batch.flags, [FLAG_FAILED; 8]);
        let label = value(&batch, batch.column("label").unwrap(), 3);
        assert_eq!(label, Value(1, vec![i64s([-1])]));
        assert!(
            batch
                .payload
                .iter()
                .filter(|&&byte| byte != 0)
                .all(|&byte| byte == 0xff)
        );
    }
}

#[test]
fn damaged_columns_are_damaged_samples() {
    let directory = tempfile::tempdir().unwrap();
    let damaged = |i: u64| {
        let image = picture(i);
        let mut builder = ExampleBuilder::new();
        builder.add_bytes("image/encoded", &image);
        builder
            .add_bytes("caption", b"\xff")
            .add_bytes("flags", &[1, 2, 0]);
        builder.to_vec()
    };
    let split = write(directory.path(), (0..8).map(damaged), schema());
    for (name, said) in [
        ("caption", "column caption: byte 0 is not UTF-8"),
        ("flags", "byte 1 of a bool tensor is 2, expected 0 or 1"),
    ] {
        let mut loader = Loader::new(split.clone(), options(eval(), &[name])).unwrap();
        let error = loader.next_batch().unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert!(
            error.contains("record ") && error.contains(".fbs"),
            "{error}"
        );
    }
}

#[test]
fn unknown_columns_are_refused() {
    let (_directory, split) = split("");
    let refused = |transform, columns: &[&str], said: &str| {
        let error = Loader::new(split.clone(), options(transform, columns))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("option columns"), "{error}");
        assert!(error.contains(said), "{error}");
    };
    refused(
        eval(),
        &["captoin"],
        r#"is "captoin": expected columns of the dataset: "image", "label""#,
    );
    refused(eval(), &["age", "age"], "each name once");
    let many: Vec<String> = (0..300).map(|i| format!("c{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    refused(eval(), &many, "at most 256");
    let directory = tempfile::tempdir().unwrap();
    let huge = vec![Column::new(
        "huge",
        "vector[9999999999999]".parse().unwrap(),
    )];
    let split = write(
        directory.path(),
        (0..8).map(|i| record(i, "")),
        Schema::new(huge).unwrap(),
    );
    let error = Loader::new(split, options(eval(), &["huge"]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("more than 1073741824 bytes"), "{error}");
}

#[test]
fn datasets_of_a_mix_must_agree_about_their_columns() {
    let (_a, first) = split("");
    let directory = tempfile::tempdir().unwrap();
    let column = |name: &str, text: &str| Column::new(name, text.parse().unwrap());
    let renamed = Column {
        feature: "pair".to_owned(),
        ..column("double", "vector[2]")
    };
    let other = Schema::new(vec![
        column("caption", "bytes"),
        column("age", "int"),
        renamed,
    ])
    .unwrap();
    let second = write(directory.path(), (0..60).map(|i| record(i, "")), other);
    let mix = Mix::new(vec![first, second]);
    let load = |columns: &[&str]| Loader::mixed(&mix, options(eval(), columns));
    for batch in epoch(&mut load(&["age"]).unwrap()) {
        for (i, &sample) in batch.samples.iter().enumerate() {
            assert_eq!(
                value(&batch, &batch.columns[0], i),
                expected(sample % 60, "age")
            );
        }
    }
    let error = load(&["caption"]).unwrap_err().to_string();
    assert!(
        error.contains("text in the first, and bytes in number 2"),
        "{error}"
    );
    let error = load(&["score"]).unwrap_err().to_string();
    assert!(
        error.contains(r#"dataset number 2 of the mix: "caption", "age", "double""#),
        "{error}"
    );
}

/// Writes records with two captions, a JSON object, two boxes and their polygons.
fn nested(root: &Path, json: &'static str) -> Split {
    let column = |name: &str, text: &str| Column::new(name, text.parse().unwrap());
    let schema = Schema::new(vec![
        column("image", "image"),
        column("meta", "bytes"),
        column("boxes", "boxes"),
        column("captions", "texts"),
        column("outlines", "polygons"),
    ]);
    let schema = schema.unwrap();
    let records = (0..16).map(|i| {
        let (image, [w, h]) = (picture(i), size(i));
        let outline = format!("[[0, 0, {}, 0, {}, {h}], [1.5, 2]]", w / 2.0, w / 2.0);
        let values = [
            ColumnValue::Bytes(&image),
            ColumnValue::Bytes(json.as_bytes()),
            ColumnValue::Boxes {
                boxes: vec![[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]],
                labels: vec![1, 2],
            },
            ColumnValue::List(vec!["\"é\"\n".as_bytes(), b""][..(i % 3) as usize].to_vec()),
            ColumnValue::List(vec![outline.as_bytes(), b"{\"counts\": []}"]),
        ];
        let features: Vec<_> = schema.columns().iter().map(Column::features).collect();
        let mut builder = ExampleBuilder::new();
        for ((column, features), value) in schema.columns().iter().zip(&features).zip(&values) {
            let lacks = i == 5 && column.name != "image";
            if !lacks && (column.name != "captions" || i % 3 > 0) {
                column.add(features, value, &mut builder).unwrap();
            }
        }
        builder.to_vec()
    });
    let records: Vec<Vec<u8>> = records.collect();
    write(root, records.into_iter(), schema.clone())
}

/// Returns the JSON of sample `i` in a column.
pub(super) fn json(batch: &Batch, name: &str, i: usize) -> serde_json::Value {
    let column = batch.column(name).unwrap();
    assert_eq!(column.kind, ColumnKind::Json);
    serde_json::from_slice(&value(batch, column, i).1[0]).unwrap()
}

#[test]
fn lists_of_text_polygons_and_json_are_json() {
    use serde_json::json as of;
    let directory = tempfile::tempdir().unwrap();
    let split = nested(directory.path(), r#"{"a": [1, "é"]}"#);
    let names = ["captions", "outlines", "meta:json", "meta"];
    let mut options = options(Transform::KeepEncoded, &names);
    options.shuffle = Shuffle::NONE;
    for batch in epoch(&mut Loader::new(split, options).unwrap()) {
        for (i, &sample) in batch.samples.iter().enumerate() {
            let half = size(sample)[0] / 2.0;
            let outline = of!([0.0, 0.0, half, 0.0, half, size(sample)[1]]);
            let (captions, outlines, meta) = match sample {
                5 => (of!([]), of!([]), of!(null)),
                _ => {
                    let captions = of!(["\"é\"\n", ""]).as_array().unwrap().clone();
                    let captions = of!(captions[..(sample % 3) as usize]);
                    (
                        captions,
                        of!([[outline, [1.5, 2.0]], []]),
                        of!({"a": [1, "é"]}),
                    )
                }
            };
            assert_eq!(json(&batch, "captions", i), captions);
            assert_eq!(json(&batch, "outlines", i), outlines);
            assert_eq!(json(&batch, "meta:json", i), meta);
            assert_eq!(batch.column("meta").unwrap().kind, ColumnKind::Bytes);
        }
    }
}

#[test]
fn hostile_json_is_a_damaged_sample() {
    let deep: &'static str = Box::leak(("[".repeat(100) + &"]".repeat(100)).into_boxed_str());
    for (text, said) in [
        (
            deep,
            "column \"meta:json\": column meta:json: no valid JSON: lists and objects nest deeper",
        ),
        (
            "{\"a\": }",
            "column \"meta:json\": column meta:json: no valid JSON: expected value",
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let split = nested(directory.path(), text);
        let mut options = options(eval(), &["meta:json", "captions"]);
        let error = Loader::new(split.clone(), options.clone())
            .unwrap()
            .next_batch();
        let error = error.unwrap_err().to_string();
        assert!(error.contains(said) && error.contains(".fbs"), "{error}");
        options.on_error = OnError::Zero;
        options.drop_last = false;
        for batch in epoch(&mut Loader::new(split, options).unwrap()) {
            for (i, &sample) in batch.samples.iter().enumerate() {
                assert_eq!(batch.flags[i] == FLAG_FAILED, sample != 5);
                assert!(json(&batch, "meta:json", i).is_null());
                assert_eq!(json(&batch, "captions", i), serde_json::json!([]));
            }
        }
    }
}

#[test]
fn mixing_leaves_columns_alone() {
    let (_directory, split) = split("");
    let mut options = options(eval(), &["caption", "label"]);
    let mixup = BatchTransform::new(vec![(Mixing::Mixup { alpha: 0.5 }, 1.0)]).unwrap();
    options.batch_transform = Some(mixup);
    options.output = Output {
        dtype: forebay_image::Dtype::Float32,
        ..Output::default()
    };
    let mut loader = Loader::new(split, options).unwrap();
    for batch in epoch(&mut loader) {
        assert!(batch.mixed.is_some());
        check(&batch, &["caption", "label"]);
        let found = digest::batch(batch.position.., &batch.samples, &batch.flags);
        assert_eq!(batch.digest, found);
    }
}
