//! Files of h5py (testdata/formats-golden/arrays, made by tools/golden/make_golden_arrays.py), and damaged files.

use crate::records::arrays::tests::{corpus, expected, open, open_with, read_all, rows, write};
use crate::records::{ForeignRecords, RecordFormat, SinkOptions, SourceRecord};
use forebay_shard::ExampleBuilder;
use forebay_shard::schema::{Column, ColumnType, Schema};

#[test]
fn files_of_h5py_read_as_h5py_does() {
    assert_eq!(RecordFormat::detect(&["a.hdf5"]).unwrap().0.name(), "hdf5");
    for name in ["plain.h5", "chunked.h5", "latest.h5"] {
        let source = open(&corpus().join(name)).unwrap();
        let all = expected(true);
        for first in 0..=all.len() {
            let found = rows(&source, 0, first as u64).unwrap();
            assert_eq!(found, all[first..], "{name} from {first}");
        }
    }
}

#[test]
fn groups_are_splits_and_encoded_images_stay_as_they_are() {
    let source = open(&corpus().join("splits.hdf5")).unwrap();
    let names: Vec<&str> = source
        .splits
        .iter()
        .map(|split| split.name.as_str())
        .collect();
    assert_eq!(names, ["train", "val"]);
    for (split, count) in [(0, 5), (1, 2)] {
        let found = rows(&source, split, 0).unwrap();
        assert_eq!(found.len(), count);
        for (row, whole) in found.iter().zip(&expected(false)) {
            assert_eq!(row.1, whole.1);
            assert_eq!(
                Some(&row.2[0]),
                whole.2.iter().find(|(name, _)| name == "image")
            );
        }
        assert!(source.splits[split].files[0].record_bytes(0) > 500);
    }
}

#[test]
fn datasets_that_records_cannot_hold_are_named() {
    let path = corpus().join("refused.h5");
    let mut dropped = Vec::new();
    for (name, said) in [
        ("list", "has not one row for each of the 5 records"),
        ("pair", "has a compound type"),
        ("when", "no column holds"),
    ] {
        let error = open_with(&path, ForeignRecords::default(), &dropped).unwrap_err();
        let error = error.to_string();
        let advice = format!("drop_feature {name} leaves it out");
        // Types are checked before the numbers of rows.
        if name == "list" {
            dropped.extend(["pair", "when"]);
            let error = open_with(&path, ForeignRecords::default(), &dropped).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
            dropped.clear();
            continue;
        }
        assert!(error.contains(said) && error.contains(&advice), "{error}");
        dropped.push(name);
    }
    dropped.push("list");
    let source = open_with(&path, ForeignRecords::default(), &dropped).unwrap();
    let found = rows(&source, 0, 0).unwrap();
    assert_eq!(found.len(), 5);
    // Zeros that h5py compressed with LZF.
    assert_eq!(found[4].2[1], ("lzf".to_owned(), "00".repeat(64 * 8)));
}

/// Changes one byte of each file at a time: it must be read, or refused with its name, without a panic.
#[test]
fn damaged_files_are_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    let mut refused = 0;
    for name in ["plain.h5", "latest.h5", "splits.hdf5"] {
        let bytes = std::fs::read(corpus().join(name)).unwrap();
        let path = dir.path().join(name);
        let mut check = |damaged: &[u8]| {
            std::fs::write(&path, damaged).unwrap();
            if let Err(error) = open(&path).and_then(|source| read_all(&source)) {
                assert!(error.to_string().contains(name), "{error}");
                refused += 1;
            }
        };
        for at in (0..bytes.len()).step_by(29) {
            let mut damaged = bytes.clone();
            damaged[at] ^= if at % 2 == 0 { 0x01 } else { 0x80 };
            check(&damaged);
        }
        for len in (0..bytes.len()).step_by(509) {
            check(&bytes[..len]);
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn written_files_have_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&corpus().join("stored.npz")).unwrap();
    let path = dir.path().join("a.h5");
    write(&source, &path).unwrap();
    let again = open(&path).unwrap();
    let mut found = rows(&again, 0, 0).unwrap();
    for (_, _, columns) in &mut found {
        columns.retain(|(name, _)| name != "keys");
    }
    assert_eq!(found, rows(&source, 0, 0).unwrap());
    let second = dir.path().join("b.h5");
    write(&source, &second).unwrap();
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&second).unwrap());
    // Each file with one changed byte must be read, or refused with its name.
    let bytes = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..bytes.len()).step_by(31) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x80;
        std::fs::write(&second, damaged).unwrap();
        if let Err(error) = open(&second).and_then(|source| read_all(&source)) {
            assert!(error.to_string().contains("b.h5"), "{error}");
            refused += 1;
        }
    }
    assert!(refused > 20, "{refused}");
}

/// Empty texts, texts larger than a heap, and more texts than one heap holds; features in groups; and a file without records.
#[test]
fn texts_of_any_length_and_groups_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut facts = open(&corpus().join("planar.npz")).unwrap().facts;
    let mut nested = Column::new("object/name", ColumnType::Text);
    nested.feature = "object/name".to_owned();
    let mut caption = Column::new("caption", ColumnType::Text);
    caption.feature = "caption".to_owned();
    let image = Column::new("image", ColumnType::Image);
    let label = Column::new("label", ColumnType::Label);
    facts.record_features = forebay_shard::example::RecordFeatures::default();
    facts.schema = Schema::new(vec![image, label, caption, nested]).unwrap();
    facts.features = facts.schema.features();
    let png = forebay_image::encode_png(&[7; 2 * 3 * 3], 2, 3);
    let text = |number: usize| match number {
        40 => "long ü".repeat(3000),
        number => "t".repeat(number * 5 % 97),
    };
    let record = |number: usize| {
        let (caption, name) = (text(number), number.to_string());
        let mut builder = ExampleBuilder::new();
        builder
            .add_bytes("image/encoded", &png)
            .add_int64("image/class/label", 3)
            .add_bytes("caption", caption.as_bytes())
            .add_bytes("object/name", name.as_bytes());
        builder.to_vec()
    };
    let options = SinkOptions {
        first_record: Some(record(0)),
        ..SinkOptions::default()
    };
    let sink = RecordFormat::HDF5.create(&facts, &options).unwrap();
    for count in [0, 1, 300] {
        let path = dir.path().join(format!("{count}.h5"));
        let scratch = || Ok(tempfile::tempfile_in(dir.path()).unwrap());
        let mut writer = sink.begin(0, &scratch).unwrap();
        let mut out = std::fs::File::create(&path).unwrap();
        for number in 0..count {
            let (bytes, key) = (record(number), format!("k/{number}"));
            let record = SourceRecord {
                number: number as u64,
                bytes: &bytes,
                label: Some(3),
                key: key.as_bytes(),
            };
            writer.append(&record, &mut out).unwrap();
        }
        writer.finish("", &mut out).unwrap();
        let source = open(&path).unwrap();
        let found = rows(&source, 0, 0).unwrap();
        assert_eq!(found.len(), count);
        for (number, (key, label, columns)) in found.iter().enumerate() {
            assert_eq!((key.as_str(), *label), (&*format!("k/{number}"), Some(3)));
            let column = |name: &str| &columns.iter().find(|(known, _)| known == name).unwrap().1;
            assert_eq!(*column("caption"), text(number));
            let digits = number.to_string();
            let digits: String = digits.bytes().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(*column("object/name"), digits);
        }
    }
    // Another feature has the same name as a group.
    let mut inside = Column::new("caption/x", ColumnType::Int);
    inside.feature = "caption/x".to_owned();
    let mut columns = facts.schema.columns().to_vec();
    columns.push(inside);
    facts.schema = Schema::new(columns).unwrap();
    facts.features = facts.schema.features();
    let sink = RecordFormat::HDF5.create(&facts, &SinkOptions::default());
    let scratch = || Ok(tempfile::tempfile_in(dir.path()).unwrap());
    let finished = sink
        .unwrap()
        .begin(0, &scratch)
        .unwrap()
        .finish("", &mut std::io::sink());
    let error = finished.unwrap_err().to_string();
    assert!(
        error.contains("\"caption/x\" lies in another array"),
        "{error}"
    );
}

/// Returns a file that claims far more bytes than it has, or has links (testdata/hostile, made by
/// tools/golden/make_hostile_files.py).
fn hostile(name: &str) -> std::path::PathBuf {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("../../testdata/hostile").join(name)
}

#[test]
fn rows_and_chunks_of_small_files_are_bounded() {
    for (name, said) in [
        ("row.h5", "a row of the array \"images\""),
        ("chunk.h5", "dataset \"images\": the chunks of 1000 rows"),
    ] {
        let read = open(&hostile(name)).and_then(|source| read_all(&source));
        let error = read.unwrap_err().to_string();
        assert!(error.contains(said) && error.contains(name), "{error}");
    }
}

#[test]
fn links_are_followed_named_or_refused() {
    let source = open(&hostile("links.h5")).unwrap();
    let labels: Vec<_> = rows(&source, 0, 0)
        .unwrap()
        .iter()
        .map(|row| row.1)
        .collect();
    assert_eq!(labels, [Some(0), Some(1)]);
    let named: Vec<String> = source
        .facts
        .findings
        .iter()
        .map(ToString::to_string)
        .collect();
    let said = named.join("\n");
    assert_eq!(named.len(), 2, "{said}");
    assert!(
        said.contains("links.h5: gone") && said.contains("\"/nowhere\""),
        "{said}"
    );
    assert!(
        said.contains("links.h5: far") && said.contains("\"other.h5\""),
        "{said}"
    );
    let without = open_with(
        &hostile("links.h5"),
        ForeignRecords::default(),
        &["gone", "far"],
    );
    assert!(without.unwrap().facts.findings.is_empty());
    let error = open(&hostile("loop.h5")).unwrap_err().to_string();
    assert!(error.contains("a link to a group that it is in"), "{error}");
}
