use super::*;
use crate::records::RecordFormat;
use forebay_shard::ExampleView;
use forebay_shard::schema::ColumnValue;
use serde_json::{Value, json};
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats-golden");
    root.join(name)
}

fn open(dir: &Path, change: impl Fn(&mut RecordInput)) -> Result<RecordSource> {
    let mut input = RecordInput::new(dir);
    change(&mut input);
    RecordFormat::MDS.open(&input)
}

/// The package `mosaicml-streaming` wrote the files: `tools/make_golden_formats.py`.
#[test]
fn samples_of_streaming_are_read() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(golden("mds/expected.json")).unwrap()).unwrap();
    let expected = expected.as_array().unwrap();
    for place in ["mds/plain", "mds/zstd"] {
        let source = open(&golden(place), |_| ()).unwrap();
        let mut number = 0;
        for file in &source.splits[0].files {
            let mut reader = file.read(0..file.records()).unwrap();
            while let Some(record) = reader.next_record().unwrap() {
                let expected = &expected[number];
                number += 1;
                assert_eq!(record.key, expected["key"].as_str().unwrap().as_bytes());
                assert_eq!(record.label, expected["label"].as_i64());
                let example = ExampleView::parse(record.bytes).unwrap();
                let image = example.bytes("image").unwrap().unwrap();
                let hash = blake3::hash(image).to_hex();
                assert_eq!(hash.as_str(), expected["image_blake3"].as_str().unwrap());
                let read = |name: &str| {
                    let column = source.facts.schema.column(name).unwrap();
                    column.read(example).unwrap().unwrap()
                };
                assert_eq!(
                    read("caption"),
                    ColumnValue::Bytes(expected["caption"].as_str().unwrap().as_bytes())
                );
                assert_eq!(
                    read("small"),
                    ColumnValue::Int(expected["small"].as_i64().unwrap())
                );
                assert_eq!(
                    read("score"),
                    ColumnValue::Float(expected["score"].as_f64().unwrap() as f32)
                );
                for name in ["fixed", "ragged", "any"] {
                    let ColumnValue::Tensor { shape, bytes } = read(name) else {
                        panic!("{name} is no tensor");
                    };
                    assert_eq!(json!(shape), expected[name]["shape"], "{name}");
                    let hash = blake3::hash(bytes).to_hex();
                    assert_eq!(hash.as_str(), expected[name]["blake3"].as_str().unwrap());
                }
            }
        }
        assert_eq!(number, expected.len(), "{place}");
        let types = source.facts.schema.columns().iter();
        let types: Vec<String> = types
            .map(|c| format!("{}: {}", c.name, c.column_type))
            .collect();
        assert_eq!(
            types,
            [
                "any: tensor[*,int16]",
                "caption: text",
                "fixed: tensor[2,3,float32]",
                "image: image",
                "label: label",
                "ragged: tensor[*,*,uint8]",
                "score: float",
                "small: int"
            ]
        );
    }
}

type Change<'a> = &'a dyn Fn(&mut Value);

/// A copy of the plain golden shards, with the index changed.
fn changed(change: impl Fn(&mut Value)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden("mds/plain")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    let path = dir.path().join(INDEX);
    let mut index: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut index);
    std::fs::write(&path, index.to_string()).unwrap();
    dir
}

#[test]
fn indexes_that_do_not_fit_their_shards_are_refused() {
    let cases: &[(&str, Change<'_>)] = &[
        ("version 3 is not read", &|index| {
            index["version"] = json!(3)
        }),
        ("is no name of a file", &|index| {
            index["shards"][0]["raw_data"]["basename"] = json!("../x.mds");
        }),
        ("are missing, the first one is gone.mds", &|index| {
            index["shards"][0]["raw_data"]["basename"] = json!("gone.mds");
        }),
        ("bytes, and index.json says 5", &|index| {
            index["shards"][0]["raw_data"]["bytes"] = json!(5)
        }),
        ("samples, and index.json says 4294967295", &|index| {
            index["shards"][0]["samples"] = json!(u32::MAX);
        }),
        ("columns, ", &|index| {
            index["shards"][0]["column_sizes"] = json!([8])
        }),
        ("its columns are others", &|index| {
            let last = index["shards"].as_array().unwrap().len() - 1;
            index["shards"][last]["column_names"][0] = json!("other");
        }),
        ("--drop-feature caption", &|index| {
            encodings(index, "caption", json!("pkl"), Value::Null)
        }),
        ("raw pixels", &|index| {
            encodings(index, "image", json!("pil"), Value::Null)
        }),
        ("index.json says Some(16)", &|index| {
            encodings(index, "label", json!("int"), json!(16))
        }),
        ("column \"score\"", &|index| {
            encodings(index, "score", json!("float32"), Value::Null)
        }),
    ];
    for (what, change) in cases {
        let dir = changed(change);
        let error = open(dir.path(), |_| ()).unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
    }
    let dropped = changed(|index| encodings(index, "caption", json!("pkl"), Value::Null));
    let source = open(dropped.path(), |input| {
        input.drop_features.insert("caption".to_owned());
    });
    assert!(source.unwrap().facts.schema.column("caption").is_none());
}

/// Sets encoding and size of a column in all shards.
fn encodings(index: &mut Value, name: &str, encoding: Value, size: Value) {
    for shard in index["shards"].as_array_mut().unwrap() {
        let names = shard["column_names"].as_array().unwrap();
        let at = names.iter().position(|known| known == name).unwrap();
        shard["column_encodings"][at] = encoding.clone();
        shard["column_sizes"][at] = size.clone();
    }
}

#[test]
fn damaged_shards_are_refused_at_their_places() {
    let name = "shard.00000.mds";
    let whole = std::fs::read(golden("mds/plain").join(name)).unwrap();
    for (at, bytes, what) in [
        (0, u32::MAX.to_le_bytes(), "offset 0: 4294967295 samples"),
        (4, 0u32.to_le_bytes(), "sample 0 begins at 0"),
        (8, u32::MAX.to_le_bytes(), "sample 1 begins at 4294967295"),
    ] {
        let dir = changed(|_| ());
        let mut damaged = whole.clone();
        damaged[at..at + 4].copy_from_slice(&bytes);
        std::fs::write(dir.path().join(name), damaged).unwrap();
        let error = open(dir.path(), |_| ()).unwrap_err().to_string();
        assert!(
            error.contains(what) && error.contains(name),
            "{what}: {error}"
        );
    }
    // The sizes of the columns of the second sample.
    let dir = changed(|_| ());
    let mut damaged = whole.clone();
    let second = u32::from_le_bytes(whole[8..12].try_into().unwrap()) as usize;
    damaged[second..second + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    std::fs::write(dir.path().join(name), damaged).unwrap();
    let source = open(dir.path(), |_| ()).unwrap();
    let file = &source.splits[0].files[0];
    let mut reader = file.read(0..file.records()).unwrap();
    assert!(reader.next_record().unwrap().is_some());
    let error = reader.next_record().unwrap_err().to_string();
    assert!(
        error.contains("record 1: ") && error.contains("shorter than its columns"),
        "{error}"
    );
    drop(reader);
    let mut cut = whole.clone();
    cut.truncate(whole.len() - 1);
    std::fs::write(dir.path().join(name), cut).unwrap();
    assert!(open(dir.path(), |_| ()).is_err());
}

#[test]
fn shards_and_files_that_are_named_twice_are_refused() {
    let dir = changed(|index| {
        let first = index["shards"][0].clone();
        index["shards"].as_array_mut().unwrap().push(first);
    });
    let error = open(dir.path(), |_| ()).unwrap_err().to_string();
    assert!(error.contains("is listed twice"), "{error}");
    let files = ["a.parquet", "b.parquet", "./a.parquet"];
    let mut input = RecordInput::new(dir.path());
    input.files = files.map(|name| Location::parse(name).unwrap()).to_vec();
    let error = RecordFormat::PARQUET.open(&input).unwrap_err().to_string();
    assert!(error.contains("a.parquet: it is named twice"), "{error}");
}
