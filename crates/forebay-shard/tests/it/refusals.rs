//! Readers refuse files that they do not support or that do not belong together, with errors that
//! name the location and the reason.

use std::path::Path;

use forebay_shard::checksum::crc32c;
use forebay_shard::example::FeatureKind;
use forebay_shard::manifest::{
    ClassEntry, EpochOrder, FILE_NAME, FeatureEntry, ShardEntry, SplitEntry,
};
use forebay_shard::{
    Dataset, Error, Manifest, RecordMeta, Shard, ShardFormat, ShardSummary, indexed, tfrecord,
};

fn tfrecord(records: &[&[u8]]) -> (Vec<u8>, ShardSummary) {
    let mut writer = tfrecord::WriterBuilder::new().from_writer(Vec::new(), "shard");
    for record in records {
        writer.append(record, &RecordMeta::new(1, b"key")).unwrap();
    }
    writer.finish().unwrap()
}

fn indexed(records: &[&[u8]]) -> (Vec<u8>, ShardSummary) {
    let mut writer = indexed::WriterBuilder::new()
        .from_writer(Vec::new(), "shard")
        .unwrap();
    for record in records {
        writer.append(record, &RecordMeta::new(1, b"key")).unwrap();
    }
    writer.finish().unwrap()
}

fn open(bytes: &[u8]) -> Result<Shard, Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("train-00000-of-00001.fbs");
    std::fs::write(&path, bytes).unwrap();
    let options = Shard::options().format(ShardFormat::Indexed, None);
    options.open(&path)
}

/// Changes a field of the trailer and corrects its checksum.
fn trailer(bytes: &mut [u8], field: usize, value: u32) {
    let at = bytes.len() - 64;
    bytes[at + field..at + field + 4].copy_from_slice(&value.to_le_bytes());
    let crc = crc32c(&bytes[at..at + 52]).to_le_bytes();
    bytes[at + 52..at + 56].copy_from_slice(&crc);
}

#[test]
fn unknown_versions_and_features() {
    let (file, _) = indexed(&[b"a"]);
    let mut newer = file.clone();
    trailer(&mut newer, 28, 2);
    let error = open(&newer).unwrap_err();
    assert!(matches!(
        error,
        Error::Version {
            what: "shard",
            found: 2,
            supported: 1,
            ..
        }
    ));
    assert!(
        error.to_string().contains("a newer forebay wrote it"),
        "{error}"
    );

    let mut needs = file.clone();
    trailer(&mut needs, 36, 0x8000_0001);
    let error = open(&needs).unwrap_err();
    assert!(matches!(error, Error::Feature { what: "shard", .. }));
    assert!(
        error.to_string().contains("feature bits 0x80000000"),
        "{error}"
    );

    let mut compatible = file;
    trailer(&mut compatible, 32, 0x8000_0001);
    assert_eq!(open(&compatible).unwrap().len(), 1);
}

#[test]
fn other_files_for_an_indexed_shard() {
    let (file, _) = indexed(&[b"a", b"bb"]);
    for (bytes, expected) in [
        (
            &b""[..],
            "file length of an indexed shard (.fbs): expected 192 bytes or more, found 0",
        ),
        (&[b'x'; 500][..], "at byte 492: magic of the trailer"),
        (&file[..file.len() - 1], "magic of the trailer"),
        (&tfrecord(&[&[0; 400]]).0[..], "magic of the trailer"),
    ] {
        let error = open(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

fn write(root: &Path, name: &str, (file, summary): &(Vec<u8>, ShardSummary)) -> ShardEntry {
    std::fs::write(root.join(name), file).unwrap();
    if !name.ends_with(".fbs") {
        std::fs::create_dir_all(root.join("index")).unwrap();
        let fbi = summary.to_fbi().unwrap();
        std::fs::write(root.join("index").join(format!("{name}.fbi")), fbi).unwrap();
    }
    ShardEntry {
        name: name.to_owned(),
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    }
}

#[test]
fn shards_that_do_not_match_the_manifest() {
    type Write = fn(&[&[u8]]) -> (Vec<u8>, ShardSummary);
    let formats: [(ShardFormat, &str, Write); 2] = [
        (ShardFormat::TfRecord, "train-00000-of-00001", tfrecord),
        (ShardFormat::Indexed, "train-00000-of-00001.fbs", indexed),
    ];
    for (format, name, make) in formats {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let entry = write(root, name, &make(&[b"one", b"two"]));
        let manifest = Manifest::new(format, 1, vec![SplitEntry::new("train", vec![entry])]);
        std::fs::write(root.join(FILE_NAME), manifest.to_json().unwrap()).unwrap();
        assert_eq!(
            Dataset::open(root).unwrap().split("train").unwrap().len(),
            2
        );

        // First equal numbers and lengths of records with other bytes, then another number.
        for (records, expected) in [
            (
                &[&b"one"[..], b"TWO"][..],
                "crc32c in the shard's index, against the manifest",
            ),
            (
                &[b"one", b"two", b""],
                "bytes of the shard, against the manifest",
            ),
        ] {
            write(root, name, &make(records));
            let error = Dataset::open(root).unwrap().split("train").unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
        std::fs::remove_file(root.join(name)).unwrap();
        let error = Dataset::open(root).unwrap().split("train").unwrap_err();
        assert!(
            error.to_string().contains(&format!("{name}: cannot open")),
            "{error}"
        );
        let error = Dataset::open(root).unwrap().split("test").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("there is no split \"test\": it has train"),
            "{error}"
        );
    }
}

#[test]
fn a_stale_index() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shard");
    write(directory.path(), "shard", &tfrecord(&[b"one", b"two"]));
    std::fs::write(&path, tfrecord(&[b"one"]).0).unwrap();
    let error = Shard::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("its index is stale, or another file's"),
        "{error}"
    );
    // The file has the same length, but other frame offsets than the index.
    std::fs::write(&path, tfrecord(&[b"o", b"twotw"]).0).unwrap();
    let shard = Shard::open(&path).unwrap();
    let error = shard.read(0, &mut Vec::new()).unwrap_err().to_string();
    let expected = "record 0 at byte 0: record length: expected 3 as the index says, found 1";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn lengths_beyond_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let long = vec![7; 1000];
    let options = Shard::options().max_record(999);
    for (name, format, made) in [
        ("a", ShardFormat::TfRecord, tfrecord(&[b"one", &long])),
        ("b.fbs", ShardFormat::Indexed, indexed(&[b"one", &long])),
    ] {
        write(directory.path(), name, &made);
        let path = directory.path().join(name);
        for sidecar in [None, forebay_shard::find_sidecar(&path)] {
            let opened = options
                .clone()
                .format(format, sidecar.as_deref())
                .open(&path);
            let error = opened.unwrap_err();
            assert_eq!(error.corruption().unwrap().record, Some(1), "{error}");
        }
    }
    let mut reader = tfrecord::ReaderBuilder::new();
    let mut reader = reader
        .max_record(999)
        .from_path(directory.path().join("a"))
        .unwrap();
    reader.next_record().unwrap().unwrap();
    let error = reader.next_record().unwrap_err().to_string();
    assert!(
        error.contains("record 1 at byte 19: record length"),
        "{error}"
    );
    assert!(
        error.contains("at most 999 bytes (max_record), found 1000"),
        "{error}"
    );
}

#[test]
fn a_frame_longer_than_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shard");
    let file = tfrecord(&[&[1; 1 << 20]]).0;
    std::fs::write(&path, &file[..1000]).unwrap();
    let mut reader = tfrecord::Reader::from_path(&path).unwrap();
    let error = reader.next_record().unwrap_err().to_string();
    assert!(
        error.contains("at most the 984 bytes that remain, found 1048576"),
        "{error}"
    );
}

#[test]
fn records_that_cannot_be_written() {
    let mut writer = tfrecord::WriterBuilder::new().from_writer(Vec::new(), "shard");
    let long = vec![b'k'; 65_536];
    writer
        .append(b"dropped", &RecordMeta::new(1, &long))
        .unwrap_err();
    writer
        .append(b"dropped", &RecordMeta::new(i64::MIN, b""))
        .unwrap_err();
    writer.commit(&RecordMeta::default()).unwrap_err();
    writer.begin().push(b"given up");
    writer
        .append(b"kept", &RecordMeta::new(1, &long[..65_535]))
        .unwrap();
    let (file, summary) = writer.finish().unwrap();
    assert_eq!((file.len(), summary.records), (20, 1));
}

/// Returns the manifest with a corrected checksum, so that only the tested problem remains.
fn sealed(json: &str) -> String {
    let Some((rest, end)) = json.rsplit_once("  \"crc32c\": \"") else {
        return json.to_owned();
    };
    let end = &end[8..];
    let with = |sum: u32| format!("{rest}  \"crc32c\": \"{sum:08x}{end}");
    with(crc32c(with(0).as_bytes()))
}

/// Returns a manifest with every kind of field.
fn full_manifest() -> String {
    let shard = ShardEntry {
        name: "train-00000-of-00001".to_owned(),
        records: 1,
        bytes: 20,
        crc32c: 0xabc,
        blake3: Some("0123456789abcdef".repeat(4)),
    };
    let split = SplitEntry::new("train", vec![shard]);
    let mut manifest = Manifest::new(ShardFormat::TfRecord, 1, vec![split]);
    manifest.sample_fingerprint = Some("0123456789abcdef".repeat(2));
    manifest.order = Some(EpochOrder {
        block_records: [("train".to_owned(), 64)].into(),
    });
    manifest.features = vec![FeatureEntry {
        name: "image/encoded".to_owned(),
        kind: FeatureKind::Bytes,
        shape: vec![None],
    }];
    manifest.classes = vec![ClassEntry {
        name: "n01440764".to_owned(),
        text: Some("tench, Tinca tinca".to_owned()),
    }];
    manifest.pack = [
        ("seed".to_owned(), 7.into()),
        ("tool".to_owned(), "pack".into()),
    ]
    .into();
    manifest.to_json().unwrap()
}

#[test]
fn every_changed_byte_of_a_manifest_is_found() {
    let path = Path::new("forebay.json");
    let json = full_manifest().into_bytes();
    Manifest::parse(path, &json).unwrap();
    let mut changed = json.clone();
    for at in 0..json.len() {
        for flip in 1..=255 {
            changed[at] = json[at] ^ flip;
            let parsed = Manifest::parse(path, &changed);
            assert!(
                parsed.is_err(),
                "byte {at} as {:#04x} was not found",
                changed[at]
            );
        }
        changed[at] = json[at];
    }
    for len in 0..json.len() {
        Manifest::parse(path, &json[..len]).unwrap_err();
    }
    changed.push(b'\n');
    Manifest::parse(path, &changed).unwrap_err();
}

#[test]
fn a_wrong_manifest_checksum_is_reported_with_both_values() {
    let json = full_manifest();
    let sum = json.rsplit('"').nth(1).unwrap();
    let changed = json.replace("tench", "trout");
    let error = Manifest::parse(Path::new("d/forebay.json"), changed.as_bytes());
    let error = error.unwrap_err().to_string();
    let expected = format!(
        "d/forebay.json: crc32c of the manifest (it was changed by hand or damaged): expected {sum}, found "
    );
    assert!(error.starts_with(&expected), "{error}");
    // No other checksum covers the description of a class, so the changed manifest is valid.
    Manifest::parse(Path::new("forebay.json"), sealed(&changed).as_bytes()).unwrap();
}

#[test]
fn manifests() {
    let path = Path::new("forebay.json");
    let shard = |name: &str| ShardEntry {
        name: name.to_owned(),
        records: 1,
        bytes: 20,
        crc32c: 0xabc,
        blake3: None,
    };
    let split = SplitEntry::new("train", vec![shard("train-00000-of-00001")]);
    let manifest = Manifest::new(ShardFormat::TfRecord, 1, vec![split.clone()]);
    let json = manifest.to_json().unwrap();
    let parsed = Manifest::parse(path, json.as_bytes()).unwrap();
    assert_eq!(parsed.to_json().unwrap(), json);
    assert_eq!(parsed.fingerprint, manifest.fingerprint());
    assert!(json.contains("\"crc32c\": \"00000abc\"") && json.ends_with("}\n"));

    for (from, to, expected) in [
        (
            "forebay-dataset",
            "other",
            "format: expected \"forebay-dataset\", found \"other\"",
        ),
        (
            "\"version\": 2",
            "\"version\": 3",
            "manifest version 3 is not known",
        ),
        (
            "\"version\": 2",
            "\"version\": 0",
            "manifest version 0 is not known",
        ),
        (
            "\"version\": 2",
            "\"version\": 2, \"requires\": [\"x\"]",
            "the manifest needs x",
        ),
        (
            "00000abc",
            "00000abd",
            "fingerprint (the manifest was changed by hand or damaged)",
        ),
        ("00000abc", "abc", "eight digits"),
        ("\"records\": 1,", "\"records\": 2,", "fingerprint"),
        (
            "train-00000-of-00001",
            "../secret",
            "a name is a plain file name",
        ),
        (
            "train-00000-of-00001",
            ".hidden",
            "a name is a plain file name",
        ),
        (
            "\"label_base\": 1",
            "\"label_base\": 7",
            "label_base: expected 0 or 1, found 7",
        ),
        (
            "\"label_base\": 1",
            "\"label_base\": 1, \"order\": {\"block_records\": {\"train\": 3}}",
            "expected a power of two",
        ),
        (
            "\"label_base\": 1",
            "\"label_base\": 1, \"order\": {\"block_records\": {\"test\": 2}}",
            "order: there is no split \"test\"",
        ),
        (
            "\"label_base\": 1",
            "\"label_base\": 1, \"sample_fingerprint\": \"x\"",
            "sample_fingerprint is not 32 digits",
        ),
        ("{", "[", "is not a manifest"),
    ] {
        let changed = json.replace(from, to);
        assert_ne!(changed, json, "{from}");
        let changed = sealed(&changed);
        let error = Manifest::parse(path, changed.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    let twice = SplitEntry::new("test", vec![shard("train-00000-of-00001")]);
    let twice = Manifest::new(ShardFormat::TfRecord, 1, vec![split, twice]);
    assert!(
        twice
            .to_json()
            .unwrap_err()
            .to_string()
            .contains("is there twice")
    );
}
