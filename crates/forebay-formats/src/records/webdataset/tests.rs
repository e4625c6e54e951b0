use super::*;
use crate::records::{OnBadRecord, RecordFormat};
use forebay_shard::ExampleView;
use forebay_shard::schema::ColumnValue;
use std::io::Write;
use std::path::PathBuf;

const JPEG: &[u8] = b"\xff\xd8\xff\xe0 picture";

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = ::tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Writes these files to a directory, and returns it with the options for reading it.
fn place(files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, RecordInput) {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let input = RecordInput::new(dir.path());
    (dir, input)
}

fn open(input: &RecordInput) -> Result<RecordSource> {
    RecordFormat::WEBDATASET.open(input)
}

type Sample = (String, Option<i64>, Vec<u8>);

/// Returns the key, label and record of each sample of a split, or why it cannot be read.
fn samples(split: &RecordSplit) -> Vec<Result<Sample, String>> {
    let mut all = Vec::new();
    for file in &split.files {
        let mut reader = file.read(0..file.records()).unwrap();
        loop {
            all.push(match reader.next_record() {
                Ok(None) => break,
                Ok(Some(record)) => {
                    let key = String::from_utf8(record.key.to_vec()).unwrap();
                    Ok((key, record.label, record.bytes.to_vec()))
                }
                Err(error) => Err(error.to_string()),
            });
        }
    }
    all
}

fn npy(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let shape = [numbers.len() as u64];
    let number = forebay_shard::schema::NumberType::Float32;
    super::super::npy::NpyHeader::encode(number, &shape, &mut bytes).unwrap();
    numbers
        .iter()
        .for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes
}

#[test]
fn members_are_columns_of_samples() {
    let (one, two) = (npy(&[1.0, 2.0]), npy(&[3.0]));
    let first = tar(&[
        ("a/1.cls", b"3\n"),
        ("a/1.JPG", JPEG),
        ("a/1.txt", "größer".as_bytes()),
        ("a/1.emb.npy", &one),
        ("__meta__/notes.txt", b"x"),
        ("README", b"x"),
    ]);
    let second = tar(&[
        ("a/2.png", JPEG),
        ("a/2.json", b"{}"),
        ("a/2.emb.npy", &two),
        ("a/2.cls", b"-1"),
    ]);
    let (_dir, input) = place(&[("x-0.tar", first), ("x-1.tar", second), ("y.bin", vec![])]);
    let source = open(&input).unwrap();
    let columns = source.facts.schema.columns().iter();
    let columns: Vec<String> = columns
        .map(|c| format!("{}: {}", c.name, c.column_type))
        .collect();
    assert_eq!(
        columns,
        [
            "image: image",
            "label: label",
            "emb.npy: tensor[*,float32]",
            "json: bytes",
            "txt: text"
        ]
    );
    assert_eq!(
        (source.splits.len(), source.splits[0].name.as_str()),
        (1, "train")
    );
    let found: Vec<_> = samples(&source.splits[0])
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!((found[0].0.as_str(), found[0].1), ("a/1.JPG", Some(3)));
    assert_eq!((found[1].0.as_str(), found[1].1), ("a/2.png", Some(-1)));
    let example = ExampleView::parse(&found[0].2).unwrap();
    assert_eq!(example.bytes("image/encoded").unwrap(), Some(JPEG));
    assert_eq!(example.int64("image/class/label").unwrap(), Some(3));
    let read = |name| {
        source
            .facts
            .schema
            .column(name)
            .unwrap()
            .read(example)
            .unwrap()
    };
    assert_eq!(read("txt"), Some(ColumnValue::Bytes("größer".as_bytes())));
    let Some(ColumnValue::Tensor { shape, bytes }) = read("emb.npy") else {
        panic!("no tensor");
    };
    assert_eq!((shape, bytes.len()), (vec![2], 8));
    assert_eq!(read("json"), None);
}

#[test]
fn compressed_tars_and_named_ones_are_read_in_part() {
    let names: Vec<String> = (0..50).map(|n| format!("{n:03}.jpg")).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), JPEG)).collect();
    let plain = tar(&members);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&plain).unwrap();
    let zst = zstd::encode_all(plain.as_slice(), 1).unwrap();
    let files = [
        ("a-0.tar", plain),
        ("a-1.tar.gz", gz.finish().unwrap()),
        ("b-0.tar.zst", zst),
    ];
    let (dir, mut input) = place(&files);
    let splits = open(&input).unwrap().splits;
    assert_eq!(
        splits.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(),
        ["a", "b"]
    );
    for file in splits.iter().flat_map(|split| &split.files) {
        assert_eq!((file.records(), file.record_bytes(60)), (50, 0));
        let mut reader = file.read(40..42).unwrap();
        for number in [40, 41] {
            let record = reader.next_record().unwrap().unwrap();
            assert_eq!(record.number, number);
            assert_eq!(record.key, names[number as usize].as_bytes());
        }
        assert!(reader.next_record().unwrap().is_none());
    }
    input.files = vec![dir.path().join("b-0.tar.zst").as_path().into()];
    let splits = open(&input).unwrap().splits;
    assert_eq!((splits.len(), splits[0].files.len()), (1, 1));
    input.files = vec![dir.path().join("c.tar").as_path().into()];
    assert!(open(&input).unwrap_err().to_string().contains("c.tar"));
}

#[test]
fn damaged_samples_are_refused_or_left_out() {
    let good: (&str, &[u8]) = ("0.jpg", JPEG);
    let cut = {
        let mut bytes = tar(&[good, ("1.jpg", JPEG), ("2.jpg", &[b'x'; 3000])]);
        bytes.truncate(512 * 7);
        bytes
    };
    let no_end = {
        let mut bytes = tar(&[good]);
        bytes.truncate(1024);
        bytes
    };
    let cases: &[(&str, Vec<u8>, u64)] = &[
        (
            "the sample has a member \"jpg\" already",
            tar(&[good, ("1.jpg", JPEG), ("1.jpg", JPEG)]),
            1,
        ),
        (
            "is there already",
            tar(&[good, ("1.jpg", JPEG), ("0.cls", b"1")]),
            2,
        ),
        (
            "has another image",
            tar(&[good, ("1.jpg", JPEG), ("1.png", JPEG)]),
            1,
        ),
        ("it has no image", tar(&[good, ("1.cls", b"1")]), 1),
        ("offset 2048: ", cut, 1),
        ("has no end mark", no_end, 1),
    ];
    for (what, bytes, whole) in cases {
        let (_dir, mut input) = place(&[("x.tar", bytes.clone())]);
        let error = open(&input).unwrap_err().to_string();
        assert!(
            error.contains(what) && error.contains("x.tar"),
            "{what}: {error}"
        );
        assert!(error.contains("offset "), "{error}");
        input.on_bad_record = OnBadRecord::Skip;
        let source = open(&input).unwrap();
        assert_eq!(source.splits[0].files[0].records(), *whole, "{what}");
        assert!(!source.facts.findings.is_empty(), "{what}");
    }
}

#[test]
fn invalid_values_are_reported_with_their_offset() {
    let files = tar(&[
        ("0.jpg", JPEG),
        ("0.cls", b"1"),
        ("1.jpg", JPEG),
        ("1.cls", b"cat"),
        ("2.jpg", JPEG),
        ("2.cls", b"2"),
        ("2.txt", b"\xff"),
    ]);
    let (_dir, input) = place(&[("x.tar", files)]);
    let found = samples(&open(&input).unwrap().splits[0]);
    let error = found[1].as_ref().unwrap_err();
    assert!(
        error.contains("record 1: member \"cls\" of sample \"1.jpg\" at offset 3584: a label is"),
        "{error}"
    );
    let error = found[2].as_ref().unwrap_err();
    assert!(
        error.contains("\"txt\"") && error.contains("UTF-8"),
        "{error}"
    );
}

#[test]
fn pickles_and_sources_without_images_are_refused() {
    let (_dir, mut input) = place(&[("x.tar", tar(&[("0.jpg", JPEG), ("0.pyd", b"x")]))]);
    let error = open(&input).unwrap_err().to_string();
    assert!(error.contains("drop_feature pyd"), "{error}");
    input.drop_features.insert("pyd".to_owned());
    assert_eq!(open(&input).unwrap().facts.schema.columns().len(), 1);

    let (_dir, mut input) = place(&[("x.tar", tar(&[("0.txt", b"a"), ("0.tiff2", b"b")]))]);
    let error = open(&input).unwrap_err().to_string();
    assert!(error.contains("allow_no_image"), "{error}");
    input.features.without_images = true;
    assert_eq!(samples(&open(&input).unwrap().splits[0]).len(), 1);
    let (_dir, input) = place(&[]);
    assert!(open(&input).unwrap_err().to_string().contains("no tars"));
    let (_dir, input) = place(&[("x.tar", b"not a tar".to_vec())]);
    assert!(open(&input).unwrap_err().to_string().contains("no tar"));
}

/// The `webdataset` package wrote these files: `tools/golden/make_golden_formats.py`.
#[test]
fn samples_of_the_webdataset_package_are_read() {
    let root =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/formats-golden/webdataset");
    let expected: serde_json::Value =
        serde_json::from_slice(&std::fs::read(root.join("expected.json")).unwrap()).unwrap();
    let source = open(&RecordInput::new(root.as_path())).unwrap();
    let found: Vec<_> = samples(&source.splits[0])
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let expected = expected.as_array().unwrap();
    assert_eq!(found.len(), expected.len());
    for ((key, label, record), expected) in found.iter().zip(expected) {
        assert_eq!(key, expected["key"].as_str().unwrap());
        assert_eq!(*label, expected["label"].as_i64());
        let example = ExampleView::parse(record).unwrap();
        let image = example.bytes("image/encoded").unwrap().unwrap();
        assert_eq!(
            blake3::hash(image).to_hex().as_str(),
            expected["image_blake3"].as_str().unwrap()
        );
        let text = example.bytes("txt").unwrap().unwrap();
        assert_eq!(text, expected["txt"].as_str().unwrap().as_bytes());
        let json: serde_json::Value =
            serde_json::from_slice(example.bytes("json").unwrap().unwrap()).unwrap();
        assert_eq!(json, expected["json"]);
        let column = source.facts.schema.column("emb.npy").unwrap();
        let Some(ColumnValue::Tensor { shape, bytes }) = column.read(example).unwrap() else {
            panic!("no tensor");
        };
        let numbers = bytes
            .chunks_exact(4)
            .map(|w| f32::from_le_bytes(w.try_into().unwrap()));
        assert_eq!(serde_json::json!(shape), expected["shape"]);
        assert_eq!(
            serde_json::json!(numbers.collect::<Vec<_>>()),
            expected["emb"]
        );
    }
}

/// A member whose name is only an extension belongs to no sample; files of operating systems are ignored.
#[test]
fn members_without_a_name_are_bad_members() {
    for name in [".jpg", "dir/.JPG", "dir/.cls"] {
        let bytes = tar(&[
            ("1.jpg", JPEG),
            (name, JPEG),
            ("._1.jpg", b"x"),
            (".DS_Store", b"x"),
        ]);
        let (_dir, mut input) = place(&[("a.tar", bytes)]);
        let error = open(&input).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("no name"), "{error}");
        input.on_bad_record = OnBadRecord::Skip;
        let source = open(&input).unwrap();
        let left_out = source.facts.findings.iter();
        let left_out = left_out.filter(|found| found.action.leaves_out());
        assert_eq!(left_out.count(), 1);
        assert_eq!(samples(&source.splits[0]).len(), 1);
    }
}

#[test]
fn members_of_no_sample_are_counted() {
    let bytes = tar(&[
        ("1.jpg", JPEG),
        ("Thumbs.db", b"x"),
        ("__MACOSX/._1.jpg", b"x"),
        ("README", b"x"),
        ("__meta__/cover.jpg", JPEG),
        ("a/2", JPEG),
    ]);
    let (_dir, mut input) = place(&[("a.tar", bytes)]);
    let error = open(&input).unwrap_err().to_string();
    assert!(error.contains("\"a/2\": it is an image without"), "{error}");
    input.on_bad_record = OnBadRecord::Skip;
    let findings = open(&input).unwrap().facts.findings;
    let found: Vec<_> = findings
        .iter()
        .map(|f| (&*f.path, f.action, f.reason))
        .collect();
    let ignored = |path, reason| (path, Action::Ignored, reason);
    let expected = [
        ignored("a.tar/Thumbs.db", Reason::System),
        ignored("a.tar/__MACOSX/._1.jpg", Reason::System),
        ignored("a.tar/README", Reason::NoSample),
        ignored("a.tar/__meta__/cover.jpg", Reason::NoSample),
        ("a.tar/a/2", Action::Skipped, Reason::BadRecord),
    ];
    assert_eq!(found, expected);
}

#[test]
fn many_members_of_no_sample_are_listed_in_part() {
    let names: Vec<String> = (0..1_200).map(|n| format!("x{n}")).collect();
    let mut members: Vec<(&str, &[u8])> = vec![("1.jpg", JPEG)];
    members.extend(names.iter().map(|name| (name.as_str(), &b"x"[..])));
    let (_dir, input) = place(&[("a.tar", tar(&members))]);
    let findings = open(&input).unwrap().facts.findings;
    let files: u32 = findings.iter().map(|found| found.files).sum();
    assert_eq!((findings.len(), files), (1_001, 1_200));
}

/// WebDataset splits such names at the first dot.
#[test]
fn samples_with_dots_in_names_are_read_by_an_option() {
    let names: Vec<String> = (0..3).map(|n| format!("IMG_2024.01.0{n}")).collect();
    let members: Vec<(String, &[u8])> = names
        .iter()
        .flat_map(|name| [(format!("{name}.JPG"), JPEG), (format!("{name}.txt"), b"x")])
        .collect();
    let members: Vec<(&str, &[u8])> = members.iter().map(|(n, b)| (n.as_str(), *b)).collect();
    let (_dir, mut input) = place(&[("a.tar", tar(&members))]);
    let error = open(&input).unwrap_err().to_string();
    for said in [
        "WebDataset cuts a name at its first dot",
        "IMG_2024.01.00.jpg is a member \"01.00.jpg\" of the sample \"IMG_2024\"",
        "image_feature jpg cuts the names at their last dots",
    ] {
        assert!(error.contains(said), "{error}");
    }
    input.features.image_feature = Some("jpg".to_owned());
    let source = open(&input).unwrap();
    let found = samples(&source.splits[0]);
    let keys: Vec<String> = found.into_iter().map(|sample| sample.unwrap().0).collect();
    let expected: Vec<String> = names.iter().map(|name| format!("{name}.JPG")).collect();
    assert_eq!(keys, expected);
    assert!(source.facts.schema.column("txt").is_some());
}

/// There are more names with dots than columns are allowed.
#[test]
fn many_names_with_dots_are_read_by_an_option() {
    let names: Vec<String> = (0..300).map(|n| format!("a.{n}.png")).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), JPEG)).collect();
    let (_dir, mut input) = place(&[("a.tar", tar(&members))]);
    let error = open(&input).unwrap_err().to_string();
    assert!(error.contains("image_feature png"), "{error}");
    input.features.image_feature = Some("png".to_owned());
    assert_eq!(samples(&open(&input).unwrap().splits[0]).len(), 300);
}

#[test]
fn samples_without_the_chosen_image_are_bad_records() {
    let members: [(&str, &[u8]); 3] = [("0.l.jpg", JPEG), ("0.r.jpg", JPEG), ("1.r.jpg", JPEG)];
    let (_dir, mut input) = place(&[("a.tar", tar(&members))]);
    let error = open(&input).unwrap_err().to_string();
    assert!(
        error.contains("image_feature names one of these"),
        "{error}"
    );
    input.features.image_feature = Some("l.jpg".to_owned());
    let error = open(&input).unwrap_err().to_string();
    assert!(
        error.contains("it has no image, and other samples have one"),
        "{error}"
    );
    input.on_bad_record = OnBadRecord::Skip;
    let source = open(&input).unwrap();
    assert_eq!(samples(&source.splits[0]).len(), 1);
    assert_eq!(source.facts.findings.len(), 1);
}

#[test]
fn members_that_are_not_images_are_bad_records() {
    let members: [(&str, &[u8]); 3] = [("0.jpg", b""), ("1.jpg", b"<html>"), ("2.jpg", JPEG)];
    let (_dir, mut input) = place(&[("a.tar", tar(&members))]);
    let found = samples(&open(&input).unwrap().splits[0]);
    let error = found[0].as_ref().unwrap_err();
    assert!(error.contains("offset 512: the image is empty"), "{error}");
    let error = found[1].as_ref().unwrap_err();
    assert!(error.contains("its 6 bytes are no image"), "{error}");
    assert!(found[2].is_ok());
    input.features.without_images = true;
    assert!(samples(&open(&input).unwrap().splits[0])[0].is_ok());
}

#[test]
fn arrays_of_another_type_in_another_tar_are_refused() {
    let mut other = Vec::new();
    let number = forebay_shard::schema::NumberType::Int64;
    super::super::npy::NpyHeader::encode(number, &[1], &mut other).unwrap();
    other.extend(7i64.to_le_bytes());
    let of = |array: &[u8]| tar(&[("0.jpg", JPEG), ("0.emb.npy", array)]);
    let files = [("a-0.tar", of(&npy(&[1.0]))), ("a-1.tar", of(&other))];
    let (_dir, mut input) = place(&files);
    let error = open(&input).unwrap_err().to_string();
    for said in ["a-1.tar", "\"emb.npy\"", "a-0.tar", "drop_feature emb.npy"] {
        assert!(error.contains(said), "{said}: {error}");
    }
    input.drop_features.insert("emb.npy".to_owned());
    assert!(open(&input).is_ok());
}

#[test]
fn tars_without_samples_are_no_split() {
    let files = [
        ("train-0.tar", tar(&[("0.jpg", JPEG)])),
        ("val-0.tar", tar(&[])),
    ];
    let (_dir, input) = place(&files);
    let error = open(&input).unwrap().check_splits().unwrap_err();
    assert!(
        error.contains("the split \"val\" has no records"),
        "{error}"
    );
}

#[test]
fn a_tar_after_a_tar_is_read_other_bytes_are_reported() {
    let one = tar(&[("0.jpg", JPEG), ("0.cls", b"0")]);
    let two = tar(&[("1.jpg", JPEG), ("1.cls", b"1")]);
    let joined = [&one[..], &two].concat();
    let (_dir, input) = place(&[("x.tar", joined.clone())]);
    let source = open(&input).unwrap();
    let keys: Vec<_> = samples(&source.splits[0])
        .into_iter()
        .map(|sample| sample.unwrap().0)
        .collect();
    assert_eq!(keys, ["0.jpg", "1.jpg"]);
    assert!(source.facts.findings.is_empty());
    let (_dir, input) = place(&[("x.tar", [&joined[..], b"more"].concat())]);
    let findings = open(&input).unwrap().facts.findings;
    let [found] = &findings[..] else {
        panic!("{findings:?}");
    };
    let text = found.to_string();
    assert!(text.starts_with("x.tar: bytes behind"), "{text}");
    assert!(text.contains(&format!("offset {}", joined.len())), "{text}");
}
