//! Compares with files that TensorFlow wrote (tools/golden/make_golden_tfrecords.py).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use forebay_shard::example::{FeatureKind, FeatureView};
use forebay_shard::tfrecord::{Compression, Reader, ReaderBuilder, WriterBuilder};
use forebay_shard::verify::{VerifyOptions, verify_shard};
use forebay_shard::{ExampleBuilder, ExampleView, Shard, index, tfrecord};
use prost::Message;
use serde_json::Value;

use crate::corpus::entries::tensorflow::Example;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tfrecord")
}

struct Golden {
    path: PathBuf,
    compression: Compression,
    records: Vec<Value>,
}

fn golden() -> Vec<Golden> {
    let json = std::fs::read(directory().join("expected.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let files = json["files"].as_array().unwrap().iter();
    files
        .map(|file| Golden {
            path: directory().join(format!("{}.tfrecord", file["name"].as_str().unwrap())),
            compression: file["compression"].as_str().unwrap().parse().unwrap(),
            records: file["records"].as_array().unwrap().clone(),
        })
        .collect()
}

fn records(path: &Path) -> Vec<Vec<u8>> {
    Reader::from_path(path)
        .unwrap()
        .records()
        .map(Result::unwrap)
        .collect()
}

#[test]
fn every_file_is_read_and_its_compression_detected() {
    let golden = golden();
    assert_eq!(golden.len(), 8);
    for file in golden {
        let mut reader = Reader::from_path(&file.path).unwrap();
        let mut record = Vec::new();
        for expected in &file.records {
            let info = reader.read_into(&mut record).unwrap().unwrap();
            assert_eq!(
                info.len,
                expected["bytes"].as_u64().unwrap(),
                "{}",
                file.path.display()
            );
            assert_eq!(record.len() as u64, info.len);
        }
        assert_eq!(reader.read_into(&mut record).unwrap(), None);
        assert_eq!(
            reader.compression(),
            Some(file.compression),
            "{}",
            file.path.display()
        );
        let report = verify_shard(&file.path, &VerifyOptions::default(), &|_| {}).unwrap();
        assert!(report.is_ok(), "{report}");
        assert_eq!(report.records, file.records.len() as u64);
    }
}

/// The values of a feature, as in expected.json.
fn values(feature: FeatureView<'_>) -> Vec<Value> {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    match feature.kind().unwrap() {
        FeatureKind::Bytes => feature
            .bytes_list()
            .unwrap()
            .into_iter()
            .map(|value| hex(value).into())
            .collect(),
        FeatureKind::Float => feature
            .floats()
            .unwrap()
            .into_iter()
            .map(|value| value.to_bits().into())
            .collect(),
        FeatureKind::Int64 => feature
            .int64s()
            .unwrap()
            .into_iter()
            .map(Value::from)
            .collect(),
        FeatureKind::Unset => Vec::new(),
    }
}

#[test]
fn every_feature_of_every_example_is_equal() {
    let mut features = 0;
    for file in golden() {
        for (bytes, expected) in records(&file.path).iter().zip(&file.records) {
            let Some(expected) = expected["features"].as_array() else {
                continue;
            };
            let example = ExampleView::parse(bytes).unwrap();
            assert_eq!(example.iter().count(), expected.len());
            for expected in expected {
                let feature = example.get(expected["name"].as_str().unwrap()).unwrap();
                let kind = feature.kind().unwrap().to_string();
                assert_eq!(
                    kind,
                    expected["kind"].as_str().unwrap(),
                    "{}",
                    feature.name()
                );
                assert_eq!(&values(feature), expected["values"].as_array().unwrap());
                features += 1;
            }
        }
    }
    assert_eq!(features, 3 * 5 * 15 + 13);
}

#[test]
fn examples_are_encoded_to_the_same_bytes() {
    let mut encoded = 0;
    for file in golden()
        .iter()
        .filter(|file| !file.path.ends_with("long-record.tfrecord"))
    {
        for bytes in records(&file.path) {
            let example = ExampleView::parse(&bytes).unwrap();
            let mut builder = ExampleBuilder::new();
            for feature in example.iter() {
                let name = feature.name();
                match feature.kind().unwrap() {
                    FeatureKind::Bytes => {
                        builder.add_bytes_list(name, &feature.bytes_list().unwrap());
                    }
                    FeatureKind::Float => {
                        builder.add_floats(name, &feature.floats().unwrap());
                    }
                    FeatureKind::Int64 => {
                        builder.add_int64s(name, &feature.int64s().unwrap());
                    }
                    FeatureKind::Unset => {
                        builder.add_unset(name);
                    }
                }
            }
            // Python's protobuf sorts a name after longer names that start with it; C++ and this crate sort it
            // before them.
            let names: Vec<_> = example.iter().map(FeatureView::name).collect();
            if names.is_sorted() {
                assert_eq!(builder.to_vec(), bytes);
                encoded += 1;
            }
            assert_eq!(builder.encoded_len(), bytes.len());
            assert_eq!(builder.to_vec().len(), bytes.len());
            // The generated types give the same result.
            let owned = Example::decode(&bytes[..]).unwrap();
            let again = Example::decode(&builder.to_vec()[..]);
            assert_eq!(owned, again.unwrap());
            let features = owned.features.unwrap().feature;
            assert!(features.keys().eq(names.iter().collect::<BTreeSet<_>>()));
        }
    }
    assert_eq!(encoded, 3 * 5 + 1);
}

#[test]
fn frames_and_text_indexes_are_written_to_the_same_bytes() {
    let plain = golden()
        .into_iter()
        .filter(|file| file.compression == Compression::None);
    for file in plain {
        let mut writer = WriterBuilder::new().from_writer(Vec::new(), "again");
        for record in records(&file.path) {
            writer.write(&record).unwrap();
        }
        let (bytes, summary) = writer.finish().unwrap();
        assert_eq!(
            bytes,
            std::fs::read(&file.path).unwrap(),
            "{}",
            file.path.display()
        );
        let idx = std::fs::read_to_string(file.path.with_extension("idx")).unwrap();
        assert_eq!(summary.to_idx().unwrap(), idx);
        let parsed = index::parse_idx(&file.path, idx.as_bytes(), bytes.len() as u64).unwrap();
        assert_eq!(parsed.to_idx(), idx);
        let (found, crc32c) = tfrecord::build_sidecar(&file.path, None, None, &|_| Ok(())).unwrap();
        assert_eq!((found.to_idx(), crc32c), (idx, summary.crc32c));
    }
}

#[test]
fn compressed_files_hold_the_same_records_without_an_index() {
    let plain = records(&directory().join("plain.tfrecord"));
    for (name, compression) in [("gzip", Compression::Gzip), ("zlib", Compression::Zlib)] {
        let path = directory().join(format!("{name}.tfrecord"));
        assert_eq!(records(&path), plain);
        let error = Shard::open(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!("compressed as a whole ({name})")),
            "{error}"
        );
        let error = tfrecord::build_sidecar(&path, None, None, &|_| Ok(()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("an index cannot point into it"), "{error}");

        // A file that this crate wrote is read again, with its compression detected.
        let mut builder = WriterBuilder::new();
        let mut writer = builder
            .compression(compression)
            .from_writer(Vec::new(), "again");
        for record in &plain {
            writer.write(record).unwrap();
        }
        let (bytes, summary) = writer.finish().unwrap();
        assert_eq!(summary.crc32c, forebay_shard::checksum::crc32c(&bytes));
        assert!(summary.index.is_none());
        let reader = ReaderBuilder::new().from_reader(&bytes[..], "again");
        assert_eq!(
            reader.records().map(Result::unwrap).collect::<Vec<_>>(),
            plain
        );
        // Every truncation is an error, not a shorter file, and so are bytes after the end.
        for len in 1..bytes.len() {
            let reader = ReaderBuilder::new().from_reader(&bytes[..len], "cut");
            assert!(
                reader.records().any(|record| record.is_err()),
                "{name} cut at {len}"
            );
        }
        let longer = [&bytes[..], b"x"].concat();
        let reader = ReaderBuilder::new().from_reader(&longer[..], "longer");
        assert!(
            reader.records().any(|record| record.is_err()),
            "{name} with a byte more"
        );
    }
}

#[test]
fn features_are_read_without_a_copy() {
    let record = &records(&directory().join("plain.tfrecord"))[3];
    let (image, label) = forebay_shard::image_and_label(record).unwrap();
    assert_eq!((image.len(), label), (206, Some(3)));
    assert!(record.as_ptr_range().contains(&image.as_ptr()));
}
