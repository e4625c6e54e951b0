//! Files of NumPy and safetensors (testdata/formats-golden/arrays, made by tools/golden/make_golden_arrays.py), and damaged
//! files.

use crate::records::{
    ForeignRecords, RecordFormat, RecordInput, RecordSource, SinkError, SinkOptions,
};
use forebay_image::{Decoder, Limits, probe};
use forebay_shard::ExampleView;
use forebay_shard::schema::ColumnValue;
use serde_json::Value;
use std::path::{Path, PathBuf};

pub(in crate::records) fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats-golden/arrays")
}

fn format_of(path: &Path) -> RecordFormat {
    match path.extension().and_then(|end| end.to_str()) {
        Some("safetensors") => RecordFormat::SAFETENSORS,
        Some("h5" | "hdf5") => RecordFormat::HDF5,
        _ => RecordFormat::NPZ,
    }
}

pub(in crate::records) fn open_with(
    path: &Path,
    features: ForeignRecords,
    dropped: &[&str],
) -> crate::Result<RecordSource> {
    let mut input = RecordInput::new(path);
    input.features = features;
    input.drop_features = dropped.iter().map(|name| (*name).to_owned()).collect();
    format_of(path).open(&input)
}

pub(in crate::records) fn open(path: &Path) -> crate::Result<RecordSource> {
    open_with(path, ForeignRecords::default(), &[])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Key, label, and columns by name of a record, formatted as in `expected.json`.
pub(in crate::records) type Row = (String, Option<i64>, Vec<(String, String)>);

pub(in crate::records) fn rows(
    source: &RecordSource,
    split: usize,
    first: u64,
) -> crate::Result<Vec<Row>> {
    let mut found = Vec::new();
    let schema = source.facts.columns();
    let mut decoder = Decoder::new(Limits::default());
    for file in &source.splits[split].files {
        let mut reader = file.read(first..file.records())?;
        while let Some(record) = reader.next_record()? {
            let example = ExampleView::parse(record.bytes).unwrap();
            let mut columns = Vec::new();
            for column in schema.columns() {
                let value = column.read(example).unwrap();
                let text = match value {
                    Some(ColumnValue::Bytes(image)) if column.name == "image" => {
                        let pixels = decoder.decode(image).unwrap();
                        let is_gray = probe(image, decoder.limits()).unwrap().channels == 1;
                        let step = if is_gray { 3 } else { 1 };
                        let data: Vec<u8> = pixels.data.iter().step_by(step).copied().collect();
                        hex(&data)
                    }
                    Some(ColumnValue::Bytes(bytes)) => match column.name.as_str() {
                        "caption" => String::from_utf8(bytes.to_vec()).unwrap(),
                        _ => hex(bytes),
                    },
                    Some(ColumnValue::Int(value)) => value.to_string(),
                    Some(ColumnValue::Float(value)) => hex(&value.to_le_bytes()),
                    Some(ColumnValue::Tensor { bytes, .. }) => hex(bytes),
                    other => format!("{other:?}"),
                };
                columns.push((column.name.clone(), text));
            }
            let key = String::from_utf8(record.key.to_vec()).unwrap();
            found.push((key, record.label, columns));
        }
    }
    Ok(found)
}

/// Returns the rows of `expected.json` as records with the same arrays.
pub(in crate::records) fn expected(with_texts: bool) -> Vec<Row> {
    let text = std::fs::read_to_string(corpus().join("expected.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let labels = [2, 0, -1, 1, 2];
    let row = |number: usize| {
        let of = |name: &str| all[name][number].as_str().unwrap().to_owned();
        let mut names = vec![
            "big",
            "count",
            "embedding",
            "flag",
            "half",
            "images",
            "labels",
            "score",
        ];
        if with_texts {
            names.extend(["caption", "code", "swapped"]);
        }
        names.sort_unstable();
        let value = |name: &str| match name {
            "labels" => labels[number].to_string(),
            "count" => (number + 250).to_string(),
            "flag" => u8::from(number.is_multiple_of(2)).to_string(),
            "swapped" => (number as i64 - 2).to_string(),
            "code" => of(name).trim_end_matches("00").to_owned(),
            name => of(name),
        };
        let column = |name: &str| match name {
            "images" => "image".to_owned(),
            "labels" => "label".to_owned(),
            name => name.to_owned(),
        };
        let key = if with_texts {
            of("keys")
        } else {
            String::new()
        };
        let columns = names.iter().map(|name| (column(name), value(name)));
        (key, Some(labels[number]), columns.collect())
    };
    (0..5).map(row).collect()
}

#[test]
fn files_of_other_tools_read_as_their_libraries_do() {
    for (name, with_texts) in [
        ("stored.npz", true),
        ("deflated.npz", true),
        ("npy", true),
        ("numbers.safetensors", false),
    ] {
        let source = open(&corpus().join(name)).unwrap();
        assert_eq!(source.splits[0].name, "train");
        let all = expected(with_texts);
        for first in 0..=all.len() {
            let found = rows(&source, 0, first as u64).unwrap();
            assert_eq!(found, all[first..], "{name} from {first}");
        }
        let file = &source.splits[0].files[0];
        assert!(file.record_bytes(4) > 72 && file.record_bytes(5) == 0);
    }
}

#[test]
fn names_of_arrays_tell_splits() {
    let source = open(&corpus().join("splits.npz")).unwrap();
    let names: Vec<&str> = source
        .splits
        .iter()
        .map(|split| split.name.as_str())
        .collect();
    assert_eq!(names, ["test", "train"]);
    let of_red = |row: &Row| -> String {
        let pixels = row.2.iter().find(|(name, _)| name == "image").unwrap();
        let pairs: Vec<char> = pixels.1.chars().collect();
        pairs.chunks(6).flat_map(|rgb| rgb[..2].iter()).collect()
    };
    let expected = expected(false);
    for (split, count) in [(0, 2), (1, 5)] {
        let found = rows(&source, split, 0).unwrap();
        assert_eq!(found.len(), count);
        for (row, whole) in found.iter().zip(&expected) {
            assert_eq!(row.1, whole.1);
            assert_eq!(row.2[0], ("image".to_owned(), of_red(whole)));
        }
    }
}

#[test]
fn channels_may_come_first() {
    let source = open(&corpus().join("planar.npz")).unwrap();
    for (row, whole) in rows(&source, 0, 0).unwrap().iter().zip(&expected(false)) {
        assert_eq!(row.1, whole.1);
        assert_eq!(
            Some(&row.2[0]),
            whole.2.iter().find(|(name, _)| name == "image")
        );
    }
}

#[test]
fn arrays_that_records_cannot_hold_are_named() {
    for (name, said) in [
        ("object", "would execute what they say"),
        ("complex", "\"<c8\""),
        ("fortran", "numpy.ascontiguousarray"),
        (
            "mean",
            "has not one row for each of the 5 records of \"images\"",
        ),
        ("record", "a structured type"),
    ] {
        let path = corpus().join(format!("refused_{name}.npz"));
        let error = open(&path).unwrap_err().to_string();
        let advice = format!("drop_feature {name} leaves it out");
        assert!(error.contains(said) && error.contains(&advice), "{error}");
        let source = open_with(&path, ForeignRecords::default(), &[name]).unwrap();
        assert_eq!(rows(&source, 0, 0).unwrap().len(), 5, "{name}");
    }
}

#[test]
fn options_choose_arrays() {
    let path = corpus().join("stored.npz");
    let mut features = ForeignRecords {
        label_feature: Some("count".to_owned()),
        key_feature: Some("caption".to_owned()),
        ..ForeignRecords::default()
    };
    let source = open_with(&path, features.clone(), &["labels"]).unwrap();
    let (key, label, _) = rows(&source, 0, 1).unwrap().remove(0);
    assert_eq!((key.as_str(), label), ("one", Some(251)));
    for (name, option) in [
        ("half", "no label can be read from \"half\""),
        ("no", "label_feature no"),
    ] {
        features.label_feature = Some(name.to_owned());
        let error = open_with(&path, features.clone(), &[]).unwrap_err();
        assert!(error.to_string().contains(option), "{error}");
    }
    features.label_feature = None;
    features.image_feature = Some("embedding".to_owned());
    let error = open_with(&path, features.clone(), &[]).unwrap_err();
    assert!(
        error.to_string().contains("image_feature embedding"),
        "{error}"
    );
    let error = open_with(&path, ForeignRecords::default(), &["images"]).unwrap_err();
    assert!(
        error.to_string().contains("no array holds images"),
        "{error}"
    );
    features.image_feature = None;
    features.without_images = true;
    let source = open_with(&path, features, &["images"]).unwrap();
    assert_eq!(rows(&source, 0, 0).unwrap().len(), 5);
}

#[test]
fn labels_below_the_first_are_refused() {
    let features = ForeignRecords {
        label_base: Some(1),
        ..ForeignRecords::default()
    };
    let source = open_with(&corpus().join("stored.npz"), features, &[]).unwrap();
    let error = rows(&source, 0, 0).unwrap_err().to_string();
    assert!(
        error.contains("record 1") && error.contains("its label is 0"),
        "{error}"
    );
}

/// Changes one byte of each file at a time: it must be read, or refused with its name, without a panic.
#[test]
fn damaged_files_are_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    for (name, least) in [
        ("stored.npz", 100),
        ("deflated.npz", 100),
        ("numbers.safetensors", 10),
    ] {
        let bytes = std::fs::read(corpus().join(name)).unwrap();
        let path = dir.path().join(name);
        let mut refused = 0;
        let mut check = |damaged: &[u8]| {
            std::fs::write(&path, damaged).unwrap();
            if let Err(error) = open(&path).and_then(|source| read_all(&source)) {
                assert!(error.to_string().contains(name), "{error}");
                refused += 1;
            }
        };
        for at in (0..bytes.len()).step_by(17) {
            for change in [0x01, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                check(&damaged);
            }
        }
        for len in (0..bytes.len()).step_by(23) {
            check(&bytes[..len]);
        }
        assert!(refused > least, "{name}: {refused}");
    }
}

pub(in crate::records) fn read_all(source: &RecordSource) -> crate::Result<()> {
    for file in source.splits.iter().flat_map(|split| &split.files) {
        let mut reader = file.read(0..file.records())?;
        while reader.next_record()?.is_some() {}
    }
    Ok(())
}

#[test]
fn headers_that_claim_too_much_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    for (header, said) in [
        (
            r#"{"images":{"dtype":"U8","shape":[4294967296,4294967296,3],"data_offsets":[0,12]}}"#,
            "has not 12 bytes",
        ),
        (
            r#"{"images":{"dtype":"U8","shape":[2,2,3],"data_offsets":[0,99]}}"#,
            "outside of the file",
        ),
        (
            r#"{"images":{"dtype":"U8","shape":[2,2,3],"data_offsets":[0,12]},"images":{"dtype":"U8","shape":[0],"data_offsets":[12,12]}}"#,
            "two of this name",
        ),
        (
            r#"{"a":{"dtype":"U8","shape":[9223372036854775807,0],"data_offsets":[0,0]},"i":{"dtype":"U8","shape":[1,2,2,3],"data_offsets":[0,12]}}"#,
            "has not one row",
        ),
        (
            r#"{"i":{"dtype":"U8","shape":[1,2,2,3],"data_offsets":[0,11]}}"#,
            "has not 11 bytes",
        ),
        (
            r#"{"i":{"dtype":"U8","shape":[1,2,2,3],"data_offsets":[0,12],"more":1}}"#,
            "unknown field",
        ),
        ("{", "header is damaged"),
    ] {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([7; 12]);
        std::fs::write(&path, &bytes).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("a.safetensors"),
            "{error}"
        );
    }
    std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    assert!(open(&path).unwrap_err().to_string().contains("a header of"));
    // Without images and with rows of no bytes, an empty file could claim any number of rows.
    let header = r#"{"a":{"dtype":"U8","shape":[9223372036854775807,0],"data_offsets":[0,0]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let features = ForeignRecords {
        without_images: true,
        ..ForeignRecords::default()
    };
    let error = open_with(&path, features, &[]).unwrap_err().to_string();
    assert!(error.contains("rows in"), "{error}");
}

/// Writes all records of a source to a file.
pub(in crate::records) fn write(source: &RecordSource, path: &Path) -> Result<(), SinkError> {
    let mut options = SinkOptions::default();
    let mut reader = source.splits[0].files[0].read(0..1).unwrap();
    options.first_record = reader
        .next_record()
        .unwrap()
        .map(|record| record.bytes.to_vec());
    let sink = format_of(path).create(&source.facts, &options);
    let sink = sink.map_err(SinkError::Record)?;
    let scratch = || Ok(tempfile::tempfile().unwrap());
    let mut writer = sink.begin(0, &scratch).unwrap();
    let mut out = std::fs::File::create(path)?;
    for file in &source.splits[0].files {
        let mut reader = file.read(0..file.records()).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            writer.append(&record, &mut out)?;
        }
    }
    writer.finish("", &mut out).map(|_| ())
}

#[test]
fn written_files_have_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(&corpus().join("stored.npz")).unwrap();
    for name in ["a.npz", "a.safetensors"] {
        let path = dir.path().join(name);
        write(&source, &path).unwrap();
        let again = open(&path).unwrap();
        let mut expected = rows(&source, 0, 0).unwrap();
        if name == "a.safetensors" {
            // Without the conversion's facts, texts are read as bytes.
            for (key, _, columns) in &mut expected {
                key.clear();
                let caption = columns.iter_mut().find(|(name, _)| name == "caption");
                let caption = caption.unwrap();
                caption.1 = hex(caption.1.as_bytes());
            }
        }
        let mut found = rows(&again, 0, 0).unwrap();
        for (_, _, columns) in &mut found {
            columns.retain(|(name, _)| name != "keys");
            if let Some(caption) = columns.iter_mut().find(|(name, _)| name == "caption")
                && name == "a.safetensors"
            {
                caption.1 = hex(caption.1.as_bytes());
            }
        }
        assert_eq!(found, expected, "{name}");
        let second = dir.path().join(format!("2{name}"));
        write(&source, &second).unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&second).unwrap());
    }
}

#[test]
fn images_of_several_sizes_or_kinds_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats");
    let record = |name: &str| {
        let image = std::fs::read(images.join(name)).unwrap();
        let mut builder = forebay_shard::ExampleBuilder::new();
        builder
            .add_bytes("image/encoded", &image)
            .add_int64("image/class/label", 0);
        builder.to_vec()
    };
    let source = open_with(&corpus().join("planar.npz"), ForeignRecords::default(), &[]).unwrap();
    for (first, second, said) in [
        ("rgb.png", "large-420.jpg", "images of one size"),
        ("grey.png", "rgb.png", "the first one is gray"),
    ] {
        let (first, second) = (record(first), record(second));
        let options = SinkOptions {
            first_record: Some(first.clone()),
            ..SinkOptions::default()
        };
        let sink = RecordFormat::NPZ.create(&source.facts, &options).unwrap();
        let scratch = || Ok(tempfile::tempfile_in(dir.path()).unwrap());
        let mut writer = sink.begin(0, &scratch).unwrap();
        let of = |bytes| crate::records::SourceRecord {
            number: 0,
            bytes,
            label: Some(0),
            key: b"",
        };
        let mut out = std::io::sink();
        writer.append(&of(&first), &mut out).unwrap();
        let error = writer.append(&of(&second), &mut out).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}
