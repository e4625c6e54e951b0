use super::*;
use crate::Reason;
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

/// The package `mosaicml-streaming` wrote these files: `tools/golden/make_golden_formats.py`.
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

/// Copies the plain golden shards with a changed index.
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
        ("is no name of a file", &|index| {
            index["shards"][0]["raw_data"]["basename"] = json!("a/../../x.mds");
        }),
        ("is no name of a file", &|index| {
            index["shards"][0]["raw_data"]["basename"] = json!("/a/x.mds");
        }),
        ("is no name of a file", &|index| {
            index["shards"][0]["raw_data"]["basename"] = json!("a\\x.mds");
        }),
        ("is no name of a file", &|index| {
            index["shards"][0]["raw_data"]["basename"] = json!("a//x.mds");
        }),
        ("two columns have one name", &|index| {
            index["shards"][0]["column_names"][0] = json!("label");
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
        ("the column \"other\" is not in the first file", &|index| {
            let last = index["shards"].as_array().unwrap().len() - 1;
            index["shards"][last]["column_names"][0] = json!("other");
        }),
        ("drop_feature caption", &|index| {
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

/// Sets the encoding and the size of a column in all shards.
fn encodings(index: &mut Value, name: &str, encoding: Value, size: Value) {
    for shard in index["shards"].as_array_mut().unwrap() {
        let names = shard["column_names"].as_array().unwrap();
        let at = names.iter().position(|known| known == name).unwrap();
        shard["column_encodings"][at] = encoding.clone();
        shard["column_sizes"][at] = size.clone();
    }
}

#[test]
fn damaged_shards_are_refused_with_the_offset() {
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

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n picture";

/// Writes a shard with these columns (an image, an int and a text, in any order) and returns its entry in an index.
fn shard(dir: &Path, name: &str, columns: &[(&str, &str)], rows: &[(&[u8], i64)]) -> Value {
    let mut samples = Vec::new();
    for (image, label) in rows {
        let (mut head, mut data) = (Vec::new(), Vec::new());
        for (_, encoding) in columns {
            let value = match *encoding {
                "int" => label.to_le_bytes().to_vec(),
                "str" => format!("text {label}").into_bytes(),
                _ => image.to_vec(),
            };
            if *encoding != "int" {
                head.extend((value.len() as u32).to_le_bytes());
            }
            data.extend(value);
        }
        samples.push([head, data].concat());
    }
    let mut offset = 4 + 4 * (samples.len() as u32 + 1);
    let mut bytes = (samples.len() as u32).to_le_bytes().to_vec();
    bytes.extend(offset.to_le_bytes());
    for sample in &samples {
        offset += sample.len() as u32;
        bytes.extend(offset.to_le_bytes());
    }
    bytes.extend(samples.concat());
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, &bytes).unwrap();
    let sizes = columns
        .iter()
        .map(|(_, encoding)| (*encoding == "int").then_some(8));
    json!({
        "format": "mds", "version": 2, "compression": null, "samples": rows.len(), "zip_data": null,
        "column_names": columns.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "column_encodings": columns.iter().map(|(_, encoding)| encoding).collect::<Vec<_>>(),
        "column_sizes": sizes.collect::<Vec<_>>(),
        "raw_data": {"basename": name, "bytes": bytes.len()},
    })
}

fn write_index(dir: &Path, shards: &[Value]) {
    let index = json!({"version": 2, "shards": shards});
    std::fs::write(dir.join(INDEX), index.to_string()).unwrap();
}

const COLUMNS: [(&str, &str); 3] = [("image", "jpeg"), ("label", "int"), ("text", "str")];

/// Returns the label and the text of each record, or why the record is damaged.
fn read(source: &RecordSource) -> Vec<std::result::Result<(i64, String), String>> {
    let mut all = Vec::new();
    for file in source.splits.iter().flat_map(|split| &split.files) {
        let mut reader = file.read(0..file.records()).unwrap();
        loop {
            all.push(match reader.next_record() {
                Ok(None) => break,
                Ok(Some(record)) => {
                    let example = ExampleView::parse(record.bytes).unwrap();
                    let text = example.bytes("text").unwrap().unwrap();
                    let text = String::from_utf8(text.to_vec()).unwrap();
                    Ok((record.label.unwrap(), text))
                }
                Err(crate::Error::Record { what, .. }) => Err(what),
                Err(error) => panic!("{error}"),
            });
        }
    }
    all
}

/// The index has the paths that `merge_index` of Streaming writes.
#[test]
fn merged_indexes_name_shards_in_directories() {
    let dir = tempfile::tempdir().unwrap();
    let mut shards = Vec::new();
    for part in 0..2 {
        let name = format!("part.0000{part}/train/shard.00000.mds");
        shards.push(shard(
            dir.path(),
            &name,
            &COLUMNS,
            &[(PNG, part), (PNG, part + 5)],
        ));
    }
    write_index(dir.path(), &shards);
    let source = open(dir.path(), |_| ()).unwrap();
    let labels: Vec<i64> = read(&source)
        .into_iter()
        .map(|row| row.unwrap().0)
        .collect();
    assert_eq!(labels, [0, 5, 1, 6]);
    assert_eq!(source.facts.findings, []);
}

#[test]
fn columns_agree_by_name_whatever_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let [image, label, text] = COLUMNS;
    let first = shard(dir.path(), "a.mds", &COLUMNS, &[(PNG, 3)]);
    let second = shard(dir.path(), "b.mds", &[text, label, image], &[(PNG, 4)]);
    write_index(dir.path(), &[first.clone(), second]);
    let source = open(dir.path(), |_| ()).unwrap();
    let expected = [(3, "text 3".to_owned()), (4, "text 4".to_owned())];
    assert_eq!(read(&source), expected.map(Ok));
    for (columns, said) in [
        (&[text, image][..], "the column \"label\" is missing"),
        (
            &[image, label, ("text", "bytes")],
            "the column \"text\" has another type",
        ),
    ] {
        let second = shard(dir.path(), "b.mds", columns, &[(PNG, 4)]);
        write_index(dir.path(), &[first.clone(), second]);
        let error = open(dir.path(), |_| ()).unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("b.mds"), "{error}");
    }
}

#[test]
fn empty_images_are_bad_records_also_at_the_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let rows = [(&b""[..], 0), (PNG, 1), (b"<html>", 2), (PNG, 3)];
    write_index(dir.path(), &[shard(dir.path(), "a.mds", &COLUMNS, &rows)]);
    let found = read(&open(dir.path(), |_| ()).unwrap());
    let bad = |at: usize| found[at].clone().unwrap_err();
    assert!(bad(0).contains("the image is empty"), "{}", bad(0));
    assert!(bad(2).contains("6 bytes are no image"), "{}", bad(2));
    assert_eq!((found[1].is_ok(), found[3].is_ok()), (true, true));
}

#[test]
fn shards_that_no_index_names_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let train = dir.path().join("train");
    let shards = [shard(&train, "a.mds", &COLUMNS, &[(PNG, 1)])];
    write_index(&train, &shards);
    shard(&train, "b.mds", &COLUMNS, &[(PNG, 1)]);
    shard(dir.path(), "val/c.mds", &COLUMNS, &[(PNG, 1)]);
    // The same shard, compressed.
    std::fs::write(train.join("a.mds.zstd"), "").unwrap();
    let source = open(dir.path(), |_| ()).unwrap();
    let findings = source.facts.findings.iter();
    let found: Vec<_> = findings
        .map(|finding| (finding.path.as_str(), finding.reason))
        .collect();
    let expected = ["train/b.mds", "val/c.mds"].map(|path| (path, Reason::NotIndexed));
    assert_eq!(found, expected);
    // With a named split, other splits are not searched for unlisted shards.
    let source = open(dir.path(), |input| input.split = Some("train".to_owned()));
    assert_eq!(source.unwrap().facts.findings.len(), 1);
}

#[test]
fn splits_without_samples_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (split, rows) in [("train", &[(PNG, 1)][..]), ("val", &[])] {
        let dir = dir.path().join(split);
        write_index(&dir, &[shard(&dir, "a.mds", &COLUMNS, rows)]);
    }
    let checked = |dir: &Path| open(dir, |_| ()).unwrap().check_splits();
    let error = checked(dir.path()).unwrap_err();
    assert!(
        error.contains("the split \"val\" has no records"),
        "{error}"
    );
    let error = checked(&dir.path().join("val")).unwrap_err();
    assert!(error.contains("no records"), "{error}");
    assert_eq!(checked(&dir.path().join("train")), Ok(()));
}
