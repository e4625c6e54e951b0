//! Files that the package `array_record` wrote (testdata/formats-golden/array_record, made by
//! tools/golden/make_golden_array_record.py), and damaged files.

use super::riegeli::hash;
use crate::records::{
    OnBadRecord, RecordFormat, RecordInput, RecordSource, SinkOptions, SourceRecord,
};
use flate2::read::GzDecoder;
use forebay_shard::ExampleBuilder;
use forebay_shard::mapped::ExtentStart;
use std::io::Read;
use std::path::Path;

fn golden(name: &str) -> Vec<u8> {
    let corpus =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats-golden/array_record");
    let file = std::fs::File::open(corpus.join(format!("{name}.gz"))).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

fn golden_records() -> Vec<Vec<u8>> {
    let bytes = golden("records.bin");
    let mut rest = bytes.as_slice();
    let mut records = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk::<4>() {
        let (record, after) = after.split_at(u32::from_le_bytes(*len) as usize);
        records.push(record.to_vec());
        rest = after;
    }
    records
}

fn open(path: &Path) -> crate::Result<RecordSource> {
    RecordFormat::ARRAY_RECORD.open(&RecordInput::new(path))
}

/// Key, label and bytes of each record.
type Row = (Vec<u8>, Option<i64>, Vec<u8>);

fn rows(source: &RecordSource, first: u64) -> crate::Result<Vec<Row>> {
    let mut found = Vec::new();
    for file in source.splits.iter().flat_map(|split| &split.files) {
        let mut reader = file.read(first..file.records())?;
        while let Some(record) = reader.next_record()? {
            found.push((record.key.to_vec(), record.label, record.bytes.to_vec()));
        }
    }
    Ok(found)
}

fn expected() -> Vec<Row> {
    let records = golden_records().into_iter().enumerate();
    let row = |(number, record)| {
        (
            format!("k/{number}").into_bytes(),
            Some(number as i64 % 3),
            record,
        )
    };
    records.map(row).collect()
}

#[test]
fn files_of_the_package_are_read_from_any_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mnist-val.array_record-00000-of-00001");
    assert_eq!(
        RecordFormat::detect(&["mnist-val.array_record-00000-of-00001"])
            .unwrap()
            .0
            .name(),
        "arrayrecord"
    );
    for name in ["default", "plain", "groups", "brotli", "snappy"] {
        std::fs::write(&path, golden(&format!("{name}.array_record"))).unwrap();
        let source = open(dir.path()).unwrap();
        assert_eq!(source.splits[0].name, "val");
        for first in 0..=7 {
            assert!(
                rows(&source, first).unwrap() == expected()[first as usize..],
                "{name} {first}"
            );
        }
        let is_plain = ["plain", "groups"].contains(&name);
        let refusal = source.splits[0].files[0].in_place_refusal();
        assert_eq!(refusal.is_none(), is_plain, "{name}: {refusal:?}");
    }
    std::fs::write(&path, golden("empty.array_record")).unwrap();
    assert_eq!(rows(&open(dir.path()).unwrap(), 0).unwrap(), []);
    std::fs::write(&path, golden("transposed.array_record")).unwrap();
    let error = open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("`transpose:false`"), "{error}");
}

#[test]
fn records_are_mapped_between_the_headers_of_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.array_record");
    for name in ["plain", "groups"] {
        let bytes = golden(&format!("{name}.array_record"));
        std::fs::write(&path, &bytes).unwrap();
        let source = open(&path).unwrap();
        let file = &source.splits[0].files[0];
        let mut reader = file.read(0..7).unwrap();
        let mut extents = Vec::new();
        let (mut mapped, mut all) = (0, 0);
        while let Some(record) = reader.next_mapped(&mut extents).unwrap() {
            all += record.bytes.len();
            for extent in &extents {
                let ExtentStart::File(offset) = extent.start else {
                    panic!("nothing is compressed");
                };
                let there = &bytes[offset as usize..][..extent.record.len()];
                assert!(there == &record.bytes[extent.record.clone()]);
                mapped += extent.record.len();
            }
        }
        assert!(mapped + 100 > all, "{mapped} of {all}");
    }
}

fn write(records: &[Row], codec: &str) -> Vec<u8> {
    let options = SinkOptions {
        compression: codec.parse().unwrap(),
        ..SinkOptions::default()
    };
    let source = open_golden();
    let sink = RecordFormat::ARRAY_RECORD
        .create(&source.facts, &options)
        .unwrap();
    assert_eq!(
        sink.file_name("val", 1, 2),
        "val-00001-of-00002.array_record"
    );
    let mut writer = sink.begin(0, &|| unreachable!()).unwrap();
    let mut out = Vec::new();
    for (number, (key, label, bytes)) in (0..).zip(records) {
        let record = SourceRecord {
            number,
            bytes,
            label: *label,
            key,
        };
        writer.append(&record, &mut out).unwrap();
    }
    writer.finish("x", &mut out).unwrap();
    out
}

fn open_golden() -> RecordSource {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.array_record");
    std::fs::write(&path, golden("plain.array_record")).unwrap();
    open(&path).unwrap()
}

/// The package does not append keys to records, so only files without records can be compared byte for byte.
#[test]
fn files_without_records_are_those_of_the_package() {
    let mut found = write(&[], "none");
    let mut expected = golden("empty.array_record");
    // The options field differs, because the package compresses the list of chunks.
    assert_eq!(found.len(), expected.len());
    assert_eq!(found[..64], expected[..64]);
    for file in [&mut found, &mut expected] {
        file.drain(..1 << 16);
    }
    assert!(found == expected);
}

#[test]
fn written_files_are_read_as_those_of_the_package() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.array_record");
    for codec in ["none", "zstd:3"] {
        std::fs::write(&path, write(&expected(), codec)).unwrap();
        let source = open(&path).unwrap();
        let found = rows(&source, 0).unwrap();
        assert_eq!(found.len(), 7);
        for (found, expected) in found.iter().zip(expected()) {
            // Without the conversion's facts, the key stays a feature of the record.
            assert!(found.2.starts_with(&expected.2) && found.2.len() > expected.2.len());
            assert_eq!((&found.0, found.1), (&expected.0, expected.1));
        }
    }
}

#[test]
fn records_that_are_not_examples_are_refused() {
    let sink = RecordFormat::ARRAY_RECORD
        .create(&open_golden().facts, &SinkOptions::default())
        .unwrap();
    let mut writer = sink.begin(0, &|| unreachable!()).unwrap();
    let record = SourceRecord {
        number: 0,
        bytes: b"\xff\xff",
        label: None,
        key: b"",
    };
    let error = writer
        .append(&record, &mut Vec::new())
        .unwrap_err()
        .to_string();
    assert!(error.contains("no tensorflow.Example"), "{error}");
}

#[test]
fn a_damaged_chunk_is_one_bad_record() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.array_record");
    let mut bytes = golden("plain.array_record");
    // Inside the data of the fourth record.
    bytes[150_000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let mut input = RecordInput::new(path.as_path());
    input.on_bad_record = OnBadRecord::Skip;
    let source = RecordFormat::ARRAY_RECORD.open(&input).unwrap();
    let file = &source.splits[0].files[0];
    let mut reader = file.read(0..7).unwrap();
    let mut bad = Vec::new();
    for number in 0..7 {
        match reader.next_record() {
            Ok(record) => assert_eq!(record.unwrap().number, number),
            Err(error) => bad.push((number, error.to_string())),
        }
    }
    let [(3, error)] = &bad[..] else {
        panic!("{bad:?}");
    };
    assert!(
        error.contains("a.array_record: record 3: offset ") && error.contains("hash"),
        "{error}"
    );
}

/// Changes bytes, with and without corrected hashes: each file must be read, or refused with its name.
#[test]
fn damaged_files_are_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.array_record");
    let mut refused = 0;
    let mut check = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        if let Err(error) = open(&path).and_then(|source| rows(&source, 0)) {
            assert!(error.to_string().contains("a.array_record"), "{error}");
            refused += 1;
        }
    };
    for name in ["default", "brotli", "snappy"] {
        let whole = golden(&format!("{name}.array_record"));
        for len in [0, 1, 65_535, 65_536, 65_537, 131_071] {
            check(&whole[..len]);
        }
        // Only the records, the list and the postscript; the rest is padding.
        for at in (64..1000).chain(65_536..65_660) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            check(&damaged);
        }
    }
    // A list of chunks with excessive counts and correct hashes.
    let mut example = ExampleBuilder::new();
    example.add_bytes("x", b"y");
    let whole = write(&[(Vec::new(), None, example.to_vec())], "none");
    let list = whole.len() - (2 << 16);
    let start = (64..list + 1000)
        .find(|at| whole[*at..].starts_with(b"\x08\x40\x10"))
        .unwrap();
    let header = (0..start)
        .rev()
        .find(|at| hash(&whole[at + 8..at + 40]).to_le_bytes() == whole[*at..at + 8])
        .unwrap();
    for (at, value) in [(start + 1, 0x7f), (start + 3, 0x7f), (start + 5, 0x7f)] {
        let mut damaged = whole.clone();
        damaged[at] = value;
        let size =
            u64::from_le_bytes(damaged[header + 8..header + 16].try_into().unwrap()) as usize;
        let sum = hash(&damaged[header + 40..header + 40 + size]);
        damaged[header + 16..header + 24].copy_from_slice(&sum.to_le_bytes());
        let sum = hash(&damaged[header + 8..header + 40]);
        damaged[header..header + 8].copy_from_slice(&sum.to_le_bytes());
        check(&damaged);
    }
    assert!(refused > 400, "{refused}");
}
