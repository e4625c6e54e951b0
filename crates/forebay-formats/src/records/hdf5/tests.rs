//! Files of h5py (testdata/formats-golden/arrays, made by tools/make_golden_arrays.py), and damaged ones.

use crate::records::arrays::tests::{corpus, expected, open, open_with, read_all, rows};
use crate::records::{ForeignRecords, RecordFormat};

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
        let advice = format!("--drop-feature {name} leaves it out");
        // Types are looked at before the numbers of rows.
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
    // Zeros that h5py compressed by a filter of its own.
    assert_eq!(found[4].2[1], ("lzf".to_owned(), "00".repeat(64 * 8)));
}

/// Every file with one byte changed is read or refused with its name, and never panics.
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
