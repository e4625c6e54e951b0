//! Chunks of the package `litdata` (testdata/formats-golden/litdata, made by tools/golden/make_golden_litdata.py), and damaged
//! ones.

use crate::records::{RecordFormat, RecordInput, RecordSource};
use forebay_image::{Decoder, Limits};
use forebay_shard::ExampleView;
use forebay_shard::schema::ColumnValue;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats-golden/litdata");
    root.join(name)
}

fn open(dir: &Path, change: impl Fn(&mut RecordInput)) -> crate::Result<RecordSource> {
    let mut input = RecordInput::new(dir);
    change(&mut input);
    RecordFormat::LITDATA.open(&input)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a split, starting at record `first` of each file. Returns the number of records.
fn read_all(source: &RecordSource, first: u64) -> crate::Result<u64> {
    let mut count = 0;
    for file in source.splits.iter().flat_map(|split| &split.files) {
        let mut reader = file.read(first.min(file.records())..file.records())?;
        while let Some(record) = reader.next_record()? {
            ExampleView::parse(record.bytes).unwrap();
            count += 1;
        }
    }
    Ok(count)
}

fn check_record(source: &RecordSource, record: &[u8], expected: &Value) {
    let example = ExampleView::parse(record).unwrap();
    let read = |name: &str| {
        let column = source.facts.schema.column(name).unwrap();
        column.read(example).unwrap().unwrap()
    };
    let image = example.bytes("image").unwrap().unwrap();
    let hash = blake3::hash(image).to_hex();
    assert_eq!(hash.as_str(), expected["image_blake3"].as_str().unwrap());
    for (name, told) in [("nested/caption", "caption"), ("raw", "raw")] {
        let ColumnValue::Bytes(bytes) = read(name) else {
            panic!("{name} is neither text nor bytes");
        };
        match name {
            "raw" => assert_eq!(json!(hex(bytes)), expected[told]),
            _ => assert_eq!(json!(std::str::from_utf8(bytes).unwrap()), expected[told]),
        }
    }
    assert_eq!(
        read("flag"),
        ColumnValue::Int(expected["flag"].as_i64().unwrap())
    );
    for name in [
        "matrix",
        "flat",
        "tensor",
        "vector",
        "flags",
        "nested/score",
    ] {
        let ColumnValue::Tensor { shape, bytes } = read(name) else {
            panic!("{name} is no tensor");
        };
        if name == "nested/score" {
            assert_eq!(
                (json!(hex(bytes)), shape.len()),
                (expected["score"].clone(), 0)
            );
            continue;
        }
        assert_eq!(json!(shape), expected[name]["shape"], "{name}");
        assert_eq!(json!(hex(bytes)), expected[name]["bytes"], "{name}");
    }
}

#[test]
fn items_of_litdata_are_read_however_they_are_compressed() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(golden("expected.json")).unwrap()).unwrap();
    let expected = expected.as_array().unwrap();
    for place in ["plain", "file", "frames", "items"] {
        let source = open(&golden(place), |_| ()).unwrap();
        let mut number = 0;
        for file in &source.splits[0].files {
            // Start at each item, to cover the items at the beginning of frames.
            for first in (0..file.records()).rev() {
                let mut reader = file.read(first..file.records()).unwrap();
                for at in first..file.records() {
                    let record = reader.next_record().unwrap().unwrap();
                    let expected = &expected[number + at as usize];
                    assert_eq!(record.number, at);
                    assert_eq!(record.key, expected["key"].as_str().unwrap().as_bytes());
                    assert_eq!(record.label, expected["label"].as_i64());
                    check_record(&source, record.bytes, expected);
                }
                assert!(reader.next_record().unwrap().is_none());
            }
            number += file.records() as usize;
        }
        assert_eq!(number, expected.len(), "{place}");
        let types = source.facts.schema.columns().iter();
        let types: Vec<String> = types
            .map(|c| format!("{}: {}", c.name, c.column_type))
            .collect();
        assert_eq!(
            types,
            [
                "image: image",
                "label: label",
                "nested/caption: text",
                "nested/score: tensor[float64]",
                "flag: int",
                "raw: bytes",
                "matrix: tensor[*,*,float32]",
                "flat: tensor[*,int16]",
                "tensor: tensor[*,*,int64]",
                "vector: tensor[*,float64]",
                "flags: tensor[*,*,uint8]",
            ],
            "{place}"
        );
    }
}

#[test]
fn pillow_pixels_become_images_and_directories_splits() {
    let source = open(&golden("splits"), |input| {
        input.features.label_feature = Some("1".to_owned());
    })
    .unwrap();
    let names: Vec<&str> = source
        .splits
        .iter()
        .map(|split| split.name.as_str())
        .collect();
    assert_eq!(names, ["train", "val"]);
    let mut decoder = Decoder::new(Limits::default());
    for (split, count) in source.splits.iter().zip([3, 2]) {
        let file = &split.files[0];
        assert_eq!(file.records(), count);
        let mut reader = file.read(0..count).unwrap();
        for number in 0..count {
            let record = reader.next_record().unwrap().unwrap();
            assert_eq!(record.label, Some((number % 3) as i64));
            let example = ExampleView::parse(record.bytes).unwrap();
            let image = decoder
                .decode(example.bytes("0").unwrap().unwrap())
                .unwrap();
            assert_eq!((image.width, image.height), (8, 6));
            let pixels: Vec<u8> = (0..144)
                .map(|at: u8| at.wrapping_add(number as u8 * 20))
                .collect();
            assert_eq!(image.data, pixels);
        }
    }
    let gray = open(&golden("gray"), |_| ()).unwrap();
    let mut reader = gray.splits[0].files[0].read(1..2).unwrap();
    let record = reader.next_record().unwrap().unwrap();
    let example = ExampleView::parse(record.bytes).unwrap();
    let image = decoder
        .decode(example.bytes("0").unwrap().unwrap())
        .unwrap();
    assert_eq!(image.data[..6], [20, 20, 20, 23, 23, 23]);
}

#[test]
fn leaves_that_are_not_read_are_named() {
    let error = |name: &str| {
        let read = open(&golden(name), |_| ()).and_then(|source| read_all(&source, 0));
        read.unwrap_err().to_string()
    };
    let pickled = error("refused-pickle");
    assert!(
        pickled.contains("leaf \"object\": it is pickled")
            && pickled.contains("drop_feature object"),
        "{pickled}"
    );
    let kept = open(&golden("refused-pickle"), |input| {
        input.drop_features.insert("object".to_owned());
    });
    assert_eq!(read_all(&kept.unwrap(), 0).unwrap(), 1);
    let mode = error("refused-mode");
    assert!(
        mode.contains("leaf \"0\": pixels of mode \"CMYK\"") && mode.contains("chunk-0-0.bin"),
        "{mode}"
    );
    let arrow = error("refused-arrow");
    assert!(
        arrow.contains("chunk-0-0.bin: its items are rows of Arrow"),
        "{arrow}"
    );
}

#[test]
fn litdata_is_detected_before_mds_by_its_chunks() {
    for names in [
        &["chunk-0-0.bin", "index.json"][..],
        &["index.json", "chunk-12-3.zstd.bin"],
        &["train/index.json", "train/chunk-0-0.bin"],
        &["a.parquet", "index.json"],
        &["README.md", "train/a.parquet", "train/index.json"],
    ] {
        assert_eq!(RecordFormat::detect(names).unwrap().0.name(), "litdata");
    }
    assert_eq!(
        RecordFormat::detect(&["index.json"]).unwrap().0.name(),
        "mds"
    );
    assert_eq!(RecordFormat::detect(&["model.bin"]), None);
    // An index for other purposes, in another directory.
    let parquet = RecordFormat::detect(&["a.parquet", "my-index.json", "x/notes.json"]);
    assert_eq!(parquet.unwrap().0.name(), "parquet");
}

/// The index decides which rows are read, and in which order.
#[cfg(feature = "formats")]
#[test]
fn parquet_rows_are_read_in_the_order_of_the_index() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(golden("expected.json")).unwrap()).unwrap();
    let reversed = changed("parquet", |index| {
        index["chunks"].as_array_mut().unwrap().reverse();
    });
    // A file that is not in the index is not part of the dataset.
    let one = changed("parquet", |index| {
        index["chunks"].as_array_mut().unwrap().pop();
    });
    for (dir, order) in [
        (golden("parquet"), vec![0, 1, 2, 3, 4, 5, 6]),
        (reversed.path().to_owned(), vec![4, 5, 6, 0, 1, 2, 3]),
        (one.path().to_owned(), vec![0, 1, 2, 3]),
    ] {
        let source = open(&dir, |_| ()).unwrap();
        assert_eq!(source.splits[0].name, "train");
        let mut order = order.into_iter();
        for file in &source.splits[0].files {
            let mut reader = file.read(0..file.records()).unwrap();
            while let Some(record) = reader.next_record().unwrap() {
                let expected = &expected[order.next().unwrap()];
                assert_eq!(record.key, expected["key"].as_str().unwrap().as_bytes());
                assert_eq!(record.label, expected["label"].as_i64());
                let example = ExampleView::parse(record.bytes).unwrap();
                let image = blake3::hash(example.bytes("image/encoded").unwrap().unwrap());
                assert_eq!(json!(image.to_hex().as_str()), expected["image_blake3"]);
                let caption = example.bytes("caption").unwrap().unwrap();
                assert_eq!(
                    json!(std::str::from_utf8(caption).unwrap()),
                    expected["caption"]
                );
            }
        }
        assert_eq!(order.next(), None);
    }
    let split = open(&golden("parquet"), |input| {
        input.split = Some("val".to_owned())
    });
    assert_eq!(split.unwrap().splits[0].name, "val");
}

#[cfg(feature = "formats")]
#[test]
fn indexes_that_do_not_fit_parquet_files_are_refused() {
    for (pointer, value, said) in [
        (
            "/chunks/1/chunk_size",
            json!(4),
            "part-4.parquet has 3 rows",
        ),
        (
            "/chunks/0/chunk_bytes",
            json!(9),
            "says 4 rows in 9 bytes: index",
        ),
        (
            "/chunks/0/filename",
            json!("../x.parquet"),
            "is no name of a file",
        ),
        (
            "/chunks/0/filename",
            json!("x.parquet"),
            "x.parquet is not beside it",
        ),
        ("/chunks/1/filename", json!("index.json"), "index.json"),
        ("/chunks", json!([]), "no Parquet files"),
    ] {
        let dir = changed("parquet", |index| {
            *index.pointer_mut(pointer).unwrap() = value.clone();
        });
        let error = open(dir.path(), |_| ()).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    // One split of each kind.
    let both = tempfile::tempdir().unwrap();
    for (split, name) in [("train", "parquet"), ("val", "plain")] {
        let files = changed(name, |_| ());
        std::fs::rename(files.path(), both.path().join(split)).unwrap();
    }
    let error = open(both.path(), |_| ()).unwrap_err().to_string();
    assert!(error.contains("of another kind than those"), "{error}");
}

/// Copies golden chunks with a changed index.
fn changed(name: &str, change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join("index.json");
    let mut index: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut index);
    std::fs::write(&path, index.to_string()).unwrap();
    dir
}

#[test]
fn indexes_that_do_not_fit_their_chunks_are_refused() {
    let deep = (0..20).fold(
        json!({"type": null}),
        |inner, _| json!({"type": "builtins.list", "context": "null", "children_spec": [inner]}),
    );
    let deep = json!([1, deep]).to_string();
    let cases: [(&str, Value, &str); 11] = [
        (
            "/chunks/0/filename",
            json!("../x.bin"),
            "is no name of a file",
        ),
        (
            "/chunks/1/filename",
            json!("gone.bin"),
            "gone.bin is missing",
        ),
        (
            "/chunks/0/chunk_bytes",
            json!(5),
            "bytes, and index.json says 5",
        ),
        (
            "/chunks/0/chunk_size",
            json!(4),
            "3 samples, and index.json says 4",
        ),
        (
            "/config/data_format",
            json!(["str"]),
            "12 leaves, and its data_format 1",
        ),
        ("/config/data_format", Value::Null, "no data_format"),
        ("/config/data_spec", json!("[1"), "no JSON"),
        (
            "/config/data_spec",
            json!(deep),
            "nest deeper than 32 levels",
        ),
        ("/config/compression", json!("lz4"), "\"lz4\" is not read"),
        (
            "/config/encryption",
            json!({"algorithm": "fernet"}),
            "encrypted",
        ),
        (
            "/config/item_loader",
            json!("TokensLoader"),
            "loader \"TokensLoader\"",
        ),
    ];
    for (pointer, value, said) in cases {
        let dir = changed("plain", |index| {
            *index.pointer_mut(pointer).unwrap() = value.clone();
        });
        let error = open(dir.path(), |_| ()).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    // Types of leaves that do not match the chunks.
    for (at, format, said) in [
        (6, "jpeg", Some("column \"raw\": the image is empty")),
        (2, "float", Some("is no whole number")),
        (2, "numpy", Some("column \"label\": an array of")),
        (
            2,
            "bool",
            Some("leaf \"label\": 8 bytes are no number of 1"),
        ),
        (
            8,
            "no_header_numpy:99",
            Some("of a type that no column holds"),
        ),
        (9, "numpy", Some("leaf \"tensor\": an array")),
        (9, "video:mp4", Some("values of \"video:mp4\" are not read")),
    ] {
        let dir = changed("plain", |index| {
            index["config"]["data_format"][at] = json!(format)
        });
        let read = open(dir.path(), |_| ()).and_then(|source| read_all(&source, 0));
        match said {
            None => assert_eq!(read.unwrap(), 7),
            Some(said) => {
                let error = read.unwrap_err().to_string();
                assert!(error.contains(said), "{said}: {error}");
            }
        }
    }
}

#[test]
fn damaged_chunks_are_refused_with_the_offset() {
    let name = "chunk-0-0.bin";
    let cases: [(&str, usize, &[u8], &str); 9] = [
        ("plain", 0, &[0xff; 4], "offset 0: 4294967295 samples"),
        ("plain", 4, &[0; 4], "offset 4: sample 0 begins at 0"),
        (
            "plain",
            8,
            &[0xff; 4],
            "offset 8: sample 1 begins at 4294967295",
        ),
        (
            "frames",
            0,
            &[0],
            "offset 0: these are no frames of version 1",
        ),
        (
            "frames",
            12,
            &[0xff; 4],
            "offset 12: 4294967295 items, and index.json says 3",
        ),
        ("frames", 20, &[0xff; 4], "in 4294967295 frames do not fit"),
        ("frames", 32, &[0xff; 4], "offset 32: a sample of 429496"),
        ("frames", 44, &[9], "offset 40: frame 0 does not follow"),
        (
            "frames",
            48,
            &[0xff; 8],
            "offset 40: frame 0 does not follow",
        ),
    ];
    for (place, at, bytes, said) in cases {
        let dir = changed(place, |_| ());
        let mut damaged = std::fs::read(golden(place).join(name)).unwrap();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(dir.path().join(name), damaged).unwrap();
        let error = open(dir.path(), |_| ()).unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains(name),
            "{said}: {error}"
        );
    }
    // The size of the first leaf of the second item.
    let dir = changed("plain", |_| ());
    let mut damaged = std::fs::read(golden("plain").join(name)).unwrap();
    let second = u32::from_le_bytes(damaged[8..12].try_into().unwrap()) as usize;
    damaged[second..second + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(dir.path().join(name), damaged).unwrap();
    let source = open(dir.path(), |_| ()).unwrap();
    let mut reader = source.splits[0].files[0].read(0..3).unwrap();
    assert!(reader.next_record().unwrap().is_some());
    let error = reader.next_record().unwrap_err().to_string();
    let said = format!("record 1: offset {second}: the sample is shorter");
    assert!(error.contains(&said), "{error}");
    // The next item is still found.
    assert_eq!(reader.next_record().unwrap().unwrap().key, b"k/2");
}

/// Changes one byte of each chunk at a time, or truncates it: it must be read, or refused with its name, without a panic.
#[test]
fn chunks_with_any_byte_changed_are_refused_or_read() {
    let mut refused = 0;
    for (place, name) in [
        ("plain", "chunk-0-1.bin"),
        ("file", "chunk-0-1.zstd.bin"),
        ("frames", "chunk-0-1.bin"),
        ("items", "chunk-0-1.bin"),
    ] {
        let dir = changed(place, |_| ());
        let bytes = std::fs::read(golden(place).join(name)).unwrap();
        let mut check = |damaged: &[u8]| {
            std::fs::write(dir.path().join(name), damaged).unwrap();
            let read = open(dir.path(), |_| ()).and_then(|source| read_all(&source, 0));
            if let Err(error) = read {
                assert!(error.to_string().contains(name), "{error}");
                refused += 1;
            }
        };
        for at in (0..bytes.len()).step_by(7) {
            let mut damaged = bytes.clone();
            damaged[at] ^= if at % 2 == 0 { 0x01 } else { 0x80 };
            check(&damaged);
        }
        for len in (0..bytes.len()).step_by(251) {
            check(&bytes[..len]);
        }
    }
    assert!(refused > 100, "{refused}");
}

/// Writes a split with an image and a number as leaves with these names and types, in this order.
fn write_split(dir: &Path, leaves: [(&str, &str); 2], image: &[u8], number: i64) {
    let values = leaves.map(|(_, format)| match format {
        "int" => number.to_le_bytes().to_vec(),
        _ => image.to_vec(),
    });
    let sizes = values
        .each_ref()
        .map(|value| (value.len() as u32).to_le_bytes());
    let item = [sizes.concat(), values.concat()].concat();
    let mut chunk = 1u32.to_le_bytes().to_vec();
    chunk.extend(12u32.to_le_bytes());
    chunk.extend((12 + item.len() as u32).to_le_bytes());
    chunk.extend(item);
    let keys = json!(leaves.map(|(name, _)| name)).to_string();
    let leaf = json!({"type": null, "context": null, "children_spec": []});
    let spec = json!({"type": "builtins.dict", "context": keys, "children_spec": [leaf, leaf]});
    let index = json!({
        "chunks": [{"filename": "chunk-0-0.bin", "chunk_bytes": chunk.len(), "chunk_size": 1}],
        "config": {
            "compression": null,
            "data_format": leaves.map(|(_, format)| format),
            "data_spec": json!([1, spec]).to_string(),
        },
    });
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("chunk-0-0.bin"), chunk).unwrap();
    std::fs::write(dir.join("index.json"), index.to_string()).unwrap();
}

#[test]
fn leaves_of_splits_agree_whatever_their_order() {
    let png = b"\x89PNG\r\n\x1a\n picture";
    let (image, label) = (("image", "jpeg"), ("label", "int"));
    let dir = tempfile::tempdir().unwrap();
    write_split(&dir.path().join("train"), [image, label], png, 3);
    write_split(&dir.path().join("val"), [label, image], png, 4);
    let source = open(dir.path(), |_| ()).unwrap();
    for (split, expected) in source.splits.iter().zip([3, 4]) {
        let mut reader = split.files[0].read(0..1).unwrap();
        let record = reader.next_record().unwrap().unwrap();
        assert_eq!(record.label, Some(expected));
        let example = ExampleView::parse(record.bytes).unwrap();
        assert_eq!(example.bytes("image").unwrap(), Some(&png[..]));
    }
    // Chunks that are in no index, and an empty image.
    std::fs::copy(
        dir.path().join("val/chunk-0-0.bin"),
        dir.path().join("val/chunk-0-1.bin"),
    )
    .unwrap();
    write_split(&dir.path().join("train"), [image, label], b"", 3);
    let source = open(dir.path(), |_| ()).unwrap();
    assert_eq!(source.facts.findings[0].path, "val/chunk-0-1.bin");
    let mut reader = source.splits[0].files[0].read(0..1).unwrap();
    let error = reader.next_record().unwrap_err();
    assert!(matches!(error, crate::Error::Record { .. }), "{error:?}");
    assert!(error.to_string().contains("the image is empty"), "{error}");

    write_split(&dir.path().join("val"), [("y", "int"), image], png, 4);
    let error = open(dir.path(), |_| ()).unwrap_err().to_string();
    let said = "the column \"y\" is not in the first file";
    assert!(error.contains(said) && error.contains("val"), "{error}");
}
