//! Databases that LMDB wrote (testdata/formats-golden/lmdb, made by tools/golden/make_golden_lmdb.py), and damaged ones.

use super::write::Sink;
use crate::records::sink::RecordSink;
use crate::records::{RecordFormat, RecordInput, RecordSource, SourceRecord};
use forebay_image::{Decoder, Limits};
use forebay_shard::{ExampleBuilder, ExampleView};
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats-golden/lmdb")
}

fn open(path: &Path) -> crate::Result<RecordSource> {
    RecordFormat::LMDB.open(&RecordInput::new(path))
}

/// Key, label and image of a record.
type Row = (String, Option<i64>, Vec<u8>);

fn rows(source: &RecordSource, first: u64) -> crate::Result<Vec<Row>> {
    let mut found = Vec::new();
    let image = &source.facts.record_features.image;
    for file in source.splits.iter().flat_map(|split| &split.files) {
        let mut reader = file.read(first..file.records())?;
        while let Some(record) = reader.next_record()? {
            let example = ExampleView::parse(record.bytes).unwrap();
            let image = example.bytes(image).ok().flatten().unwrap_or_default();
            let key = String::from_utf8_lossy(record.key).into_owned();
            found.push((key, record.label, image.to_vec()));
        }
    }
    Ok(found)
}

#[test]
fn encoded_images_are_read_by_their_keys() {
    assert_eq!(
        RecordFormat::detect(&["data.mdb", "lock.mdb"]).unwrap().1,
        "data.mdb"
    );
    assert_eq!(RecordFormat::detect(&["lock.mdb"]), None);
    let source = open(&corpus().join("images_val_lmdb")).unwrap();
    assert_eq!(source.splits[0].name, "val");
    let found = rows(&source, 0).unwrap();
    // Two levels of pages, and values both inside nodes and on overflow pages.
    assert_eq!(found.len(), 120);
    for (number, (key, label, image)) in found.iter().enumerate() {
        assert_eq!((key.clone(), *label), (format!("{number:08}"), None));
        assert!(image.starts_with(b"\x89PNG"));
        assert_eq!(image.last(), Some(&(number as u8)));
        let expected = if number % 7 == 0 { 5000 } else { 100 + number };
        assert_eq!(image.len(), expected);
    }
    assert_eq!(rows(&source, 119).unwrap(), found[119..]);
    let file = &source.splits[0].files[0];
    assert_eq!((file.record_bytes(1), file.record_bytes(120)), (101, 0));
    // The parent directory also has a database that is a single file.
    let names: Vec<_> = open(&corpus())
        .unwrap()
        .splits
        .into_iter()
        .map(|s| s.name)
        .collect();
    assert_eq!(names, ["train"]);
}

#[test]
fn datums_of_caffe_are_pixels_with_blue_first() {
    let source = open(&corpus().join("caffe.mdb")).unwrap();
    let found = rows(&source, 0).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    for (number, (key, label, image)) in found.iter().enumerate() {
        let number = number as u8;
        assert_eq!(
            (key.clone(), *label),
            (format!("{number:05}"), Some(i64::from(number) - 1))
        );
        let pixels = decoder.decode(image).unwrap();
        assert_eq!((pixels.width, pixels.height), (2, 1));
        assert_eq!(pixels.data[..3], [number + 20, number + 10, number]);
    }
    assert_eq!(found.len(), 3);
}

#[test]
fn databases_without_records_are_named() {
    for (name, said) in [
        ("pickled", "would execute what they say"),
        ("named", "a database with a name"),
        ("other", "neither an encoded image"),
        ("empty", "it has no records"),
    ] {
        let error = open(&corpus().join("refused").join(format!("{name}.lmdb"))).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(said) && error.contains(name), "{error}");
    }
}

/// Writes records with these keys and values to a file.
fn write(path: &Path, records: &[(Vec<u8>, Vec<u8>)]) -> Vec<Option<String>> {
    let scratch = || Ok(tempfile::tempfile().unwrap());
    let mut writer = Sink.begin(5, &scratch).unwrap();
    let mut out = std::fs::File::create(path).unwrap();
    let mut changed = Vec::new();
    for (key, bytes) in records {
        let record = SourceRecord {
            number: 0,
            bytes,
            label: None,
            key,
        };
        changed.push(writer.append(&record, &mut out).unwrap().new_key);
    }
    writer.finish("", &mut out).unwrap();
    changed
}

fn example(number: usize, len: usize) -> Vec<u8> {
    let mut image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    image.resize(image.len() + len, number as u8);
    let mut builder = ExampleBuilder::new();
    builder
        .add_bytes("image/encoded", &image)
        .add_int64("label", number as i64);
    builder.to_vec()
}

#[test]
fn written_databases_have_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("train-00000.lmdb");
    for count in [0, 1, 2, 3, 9, 150, 2000] {
        for len in [0, 10, 1900, 2100, 9000] {
            if count * len > 400_000 {
                continue;
            }
            let records: Vec<_> = (0..count)
                .map(|n| (format!("k/{n}").into_bytes(), example(n, len)))
                .collect();
            assert!(write(&path, &records).iter().all(Option::is_none));
            if count == 0 {
                let error = open(&path).unwrap_err().to_string();
                assert!(error.contains("it has no records"), "{error}");
                continue;
            }
            let source = open(&path).unwrap();
            let found = rows(&source, 0).unwrap();
            assert_eq!(found.len(), count, "{count} {len}");
            for (number, (row, record)) in found.iter().zip(&records).enumerate() {
                // Without the conversion's facts, the number stays a part of the key.
                assert_eq!(row.0, format!("{:010}/k/{number}", number + 5));
                assert_eq!(row.1, Some(number as i64));
                let example = ExampleView::parse(&record.1).unwrap();
                assert_eq!(
                    Some(row.2.as_slice()),
                    example.bytes("image/encoded").unwrap()
                );
            }
        }
    }
    let long = [(vec![b'x'; 600], example(0, 1))];
    let changed = write(&path, &long).remove(0).unwrap();
    assert_eq!(changed.len(), 500);
    assert_eq!(rows(&open(&path).unwrap(), 0).unwrap()[0].0.len(), 511);
}

/// Changes one byte of each file at a time: it must be read, or refused with its name, without a panic.
#[test]
fn damaged_files_are_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.lmdb");
    let records: Vec<_> = (0..60)
        .map(|n| (b"key".to_vec(), example(n, 90 * n)))
        .collect();
    write(&path, &records);
    let bytes = std::fs::read(&path).unwrap();
    let mut refused = 0;
    let mut check = |damaged: &[u8]| {
        std::fs::write(&path, damaged).unwrap();
        if let Err(error) = open(&path).and_then(|source| rows(&source, 0)) {
            assert!(error.to_string().contains("damaged.lmdb"), "{error}");
            refused += 1;
        }
    };
    // The meta pages, the nodes at the ends of pages, and all page headers.
    for page in 0..bytes.len() / 4096 {
        for at in (0..48).chain((60..4096).step_by(61)) {
            for change in [0x01, 0x80] {
                let mut damaged = bytes.clone();
                damaged[page * 4096 + at] ^= change;
                if page < 3 || at < 20 {
                    check(&damaged);
                }
            }
        }
    }
    for len in (0..bytes.len()).step_by(1500) {
        check(&bytes[..len]);
    }
    assert!(refused > 200, "{refused}");
}

/// A branch that is its own child, and a leaf that replaces all others, are errors.
#[test]
fn trees_with_cycles_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cycle.lmdb");
    let records: Vec<_> = (0..60)
        .map(|n| (b"key".to_vec(), example(n, 500)))
        .collect();
    write(&path, &records);
    let bytes = std::fs::read(&path).unwrap();
    let root = u64::from_le_bytes(bytes[128..136].try_into().unwrap());
    let page = root as usize * 4096;
    let nodes = (usize::from(bytes[page + 12]) - 16) / 2;
    assert!(nodes > 2);
    for target in [root, root - 1] {
        let mut damaged = bytes.clone();
        for node in 0..nodes {
            let at = page + 16 + 2 * node;
            let offset = usize::from(u16::from_le_bytes([damaged[at], damaged[at + 1]]));
            damaged[page + offset..page + offset + 4]
                .copy_from_slice(&(target as u32).to_le_bytes());
        }
        std::fs::write(&path, damaged).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("in the tree twice"), "{error}");
    }
}

/// Children of a branch in another order, and meta pages that point to the state before the first transaction.
#[test]
fn swapped_leaves_and_lost_roots_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("swapped.lmdb");
    let records: Vec<_> = (0..60)
        .map(|n| (b"key".to_vec(), example(n, 500)))
        .collect();
    write(&path, &records);
    let bytes = std::fs::read(&path).unwrap();
    let root = u64::from_le_bytes(bytes[128..136].try_into().unwrap()) as usize * 4096;
    let child = |node: usize| {
        let at = root + 16 + 2 * node;
        root + usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
    };
    let mut swapped = bytes.clone();
    let (first, second) = (child(0), child(1));
    swapped[first..first + 4].copy_from_slice(&bytes[second..second + 4]);
    swapped[second..second + 4].copy_from_slice(&bytes[first..first + 4]);
    std::fs::write(&path, &swapped).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(
        error.contains("does not follow the one before it"),
        "{error}"
    );

    let mut deeper = bytes.clone();
    for meta in [94, 4096 + 94] {
        deeper[meta] += 1;
    }
    std::fs::write(&path, &deeper).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("the metadata says"), "{error}");

    let mut lost = bytes;
    for meta in [0, 4096] {
        lost[meta + 120..meta + 128].fill(0);
        lost[meta + 128..meta + 136].fill(0xff);
    }
    std::fs::write(&path, &lost).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("it has no records"), "{error}");
}
