//! Hierarchies of the package `zarr` (testdata/formats-golden/zarr, made by tools/golden/make_golden_zarr.py), and damaged
//! ones.

use crate::records::arrays::tests::{Row, expected, read_all, rows};
use crate::records::{RecordFormat, RecordInput, RecordSource};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

pub(in crate::records) fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats-golden/zarr")
}

fn open_with(path: &Path, dropped: &[&str]) -> crate::Result<RecordSource> {
    let mut input = RecordInput::new(path);
    input.drop_features = dropped.iter().map(|name| (*name).to_owned()).collect();
    RecordFormat::ZARR.open(&input)
}

fn open(path: &Path) -> crate::Result<RecordSource> {
    open_with(path, &[])
}

fn column(rows: &[Row], name: &str) -> Vec<String> {
    let of = |row: &Row| {
        let found = row.2.iter().find(|(column, _)| column == name);
        found.unwrap().1.clone()
    };
    rows.iter().map(of).collect()
}

#[test]
fn stores_are_detected_by_their_metadata_and_names() {
    for names in [
        &["images", "zarr.json"][..],
        &[".zgroup"],
        &["a.zarr"],
        &["train-00000.zarr.zip"],
    ] {
        assert_eq!(RecordFormat::detect(names).unwrap().0.name(), "zarr");
    }
    assert_eq!(RecordFormat::detect(&["a.zip", "b.zarrs"]), None);
}

#[test]
fn both_versions_read_as_the_package_does() {
    for name in ["v2.zarr", "v3.zarr.zip", "shards.zarr.zip"] {
        let source = open(&corpus().join(name)).unwrap();
        let all = expected(true);
        for first in 0..=all.len() {
            let found = rows(&source, 0, first as u64).unwrap();
            assert_eq!(found, all[first..], "{name} from {first}");
        }
    }
}

#[test]
fn groups_are_splits() {
    let source = open(&corpus().join("splits.zarr")).unwrap();
    let names: Vec<&str> = source
        .splits
        .iter()
        .map(|split| split.name.as_str())
        .collect();
    assert_eq!(names, ["train", "val"]);
    for (split, count) in [(0, 5), (1, 2)] {
        let found = rows(&source, split, 0).unwrap();
        let all = expected(false);
        assert_eq!(column(&found, "image"), column(&all, "image")[..count]);
    }
}

#[test]
fn missing_chunks_have_the_fill_value() {
    let source = open(&corpus().join("fill.zarr")).unwrap();
    let found = rows(&source, 0, 0).unwrap();
    let labels: Vec<_> = found.iter().map(|row| row.1.unwrap()).collect();
    assert_eq!(labels, [7, 7, 1, 2, 7]);
    assert_eq!(column(&found, "one"), ["0000c03f"; 5]);
    assert_eq!(column(&found, "word"), ["65535"; 5]);
    assert_eq!(column(&found, "nan"), ["000000000000f87f"; 5]);
    let pair = column(&found, "pair");
    assert_eq!(pair[0], "ff".repeat(12));
    assert_eq!(pair[1], "ffffffff05000000ffffffff");
    // Also when reading starts in the middle of a chunk.
    assert_eq!(rows(&source, 0, 3).unwrap(), found[3..]);
}

#[test]
fn codecs_and_types_that_are_not_read_are_named() {
    let path = corpus().join("refused.zarr");
    let mut dropped = Vec::new();
    for (name, said) in [
        ("complex", "\"<c8\", which no column holds"),
        ("delta", "has the filter \"delta\", which is not read"),
        ("lzma", "has the codec \"lzma\", which is not read: blosc, "),
    ] {
        let error = open_with(&path, &dropped).unwrap_err().to_string();
        let advice = format!("drop_feature {name} leaves it out");
        assert!(error.contains(said) && error.contains(&advice), "{error}");
        dropped.push(name);
    }
    assert_eq!(
        rows(&open_with(&path, &dropped).unwrap(), 0, 0)
            .unwrap()
            .len(),
        5
    );
}

/// Writes a store with one array of bytes, with changed metadata and this chunk.
fn store(dir: &Path, change: impl FnOnce(&mut Value), chunk: &[u8]) -> PathBuf {
    let path = dir.join("x.zarr");
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(path.join("c/0/0/0")).unwrap();
    let mut json = json!({
        "zarr_format": 3, "node_type": "array", "shape": [2, 3, 4, 3], "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3, 4, 3]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
        "codecs": [{"name": "bytes"}, {"name": "zstd"}],
    });
    change(&mut json);
    std::fs::write(path.join("zarr.json"), json.to_string()).unwrap();
    std::fs::write(path.join("c/0/0/0/0"), chunk).unwrap();
    path
}

fn error_of(path: &Path) -> String {
    let read = open(path).and_then(|source| read_all(&source));
    read.unwrap_err().to_string()
}

#[test]
fn damaged_stores_are_refused_with_the_chunk() {
    let dir = tempfile::tempdir().unwrap();
    let zstd = |bytes: &[u8]| zstd::bulk::compress(bytes, 1).unwrap();
    let whole = zstd(&[9; 72]);
    let path = store(dir.path(), |_| {}, &whole);
    assert_eq!(
        rows(&open(&path).unwrap(), 0, 1).unwrap()[0].2[0].1,
        "09".repeat(36)
    );
    for (chunk, said) in [
        (
            &whole[..whole.len() - 3],
            "chunk \"c/0/0/0/0\": its zstd is damaged",
        ),
        (
            &zstd(&[9; 71]),
            "chunk \"c/0/0/0/0\": it has 71 bytes, and its array says 72",
        ),
        // A chunk that expands far beyond the size in its array's metadata.
        (&zstd(&vec![0; 64 << 20]), "it has more than"),
    ] {
        let error = error_of(&store(dir.path(), |_| {}, chunk));
        assert!(error.contains(said) && error.contains("x.zarr"), "{error}");
    }
    let set = |pointer: &'static str, value: Value| {
        move |json: &mut Value| *json.pointer_mut(pointer).unwrap() = value
    };
    let grid = "/chunk_grid/configuration/chunk_shape";
    for (pointer, value, said) in [
        ("/shape", json!([1u64 << 62, 3, 4, 3]), "rows in"),
        (
            "/shape",
            json!([2, 1u64 << 40, 1u64 << 40, 3]),
            "chunks side by side",
        ),
        (grid, json!([2, 3, 4]), "which do not fit"),
        (grid, json!([2, 3, 0, 3]), "which do not fit"),
        (grid, json!([1u64 << 60, 3, 4, 3]), "larger than 1 GiB"),
        ("/codecs", json!([]), "do not make bytes"),
        (
            "/codecs",
            json!([{"name": "transpose", "configuration": {"order": [0, 1, 2, 2]}}, "bytes"]),
            "none of its dimensions",
        ),
        (
            "/codecs",
            json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 2, 4, 3], "codecs": ["bytes"], "index_codecs": ["bytes"]}}]),
            "no whole chunks",
        ),
        (
            "/codecs",
            json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 1, 1, 1], "codecs": ["bytes"], "index_codecs": ["bytes"]}}]),
            "its index 1152",
        ),
        ("/zarr_format", json!(4), "version of Zarr"),
    ] {
        let error = error_of(&store(dir.path(), set(pointer, value), &whole));
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn zips_with_any_byte_changed_are_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.zarr.zip");
    let mut refused = 0;
    for name in ["v3.zarr.zip", "shards.zarr.zip"] {
        let bytes = std::fs::read(corpus().join(name)).unwrap();
        for at in (0..bytes.len()).step_by(41) {
            let mut damaged = bytes.clone();
            damaged[at] ^= if at % 2 == 0 { 0x01 } else { 0x80 };
            std::fs::write(&path, &damaged).unwrap();
            if let Err(error) = open(&path).and_then(|source| read_all(&source)) {
                assert!(error.to_string().contains("a.zarr.zip"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 200, "{refused}");
}
