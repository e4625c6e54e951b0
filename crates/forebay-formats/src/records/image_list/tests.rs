//! Small image lists that the tests write.

use super::image_list;
use crate::records::{OnBadRecord, RecordFormat, RecordInput, RecordSource};
use forebay_shard::ExampleView;
use forebay_shard::schema::ColumnValue;
use std::path::Path;

fn write(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn open(root: &Path, split: Option<&str>, dropped: &[&str]) -> crate::Result<RecordSource> {
    let mut input = RecordInput::new(root);
    input.split = split.map(str::to_owned);
    input.drop_features = dropped.iter().map(|name| (*name).to_owned()).collect();
    RecordFormat::IMAGE_LIST.open(&input)
}

/// Returns the key, the label and the columns, formatted, of each record of a split.
fn records(source: &RecordSource, split: &str) -> Vec<(String, Option<i64>, Vec<String>)> {
    let mut found = Vec::new();
    let split = source.splits.iter().find(|known| known.name == split);
    for file in &split.unwrap().files {
        let mut reader = file.read(0..file.records()).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            let example = ExampleView::parse(record.bytes).unwrap();
            let schema = source.facts.columns();
            let text = schema.columns().iter().map(|column| {
                let value = match column.read(example).unwrap() {
                    Some(ColumnValue::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
                    value => format!("{value:?}"),
                };
                format!("{} {}: {value}", column.name, column.column_type)
            });
            let key = String::from_utf8(record.key.to_vec()).unwrap();
            found.push((key, record.label, text.collect()));
        }
    }
    found
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn imagefolder_has_a_list_for_each_split() {
    let dir = tempfile::tempdir().unwrap();
    for (split, name) in [("train", "a"), ("validation", "b")] {
        write(
            &dir.path().join(split).join(format!("{name}.jpg")),
            "II*\0 image",
        );
        let list =
            format!("{{\"file_name\": \"{name}.jpg\", \"text\": \"é{name}\", \"n\": 1.5}}\n");
        write(&dir.path().join(split).join("metadata.jsonl"), &list);
    }
    let source = open(dir.path(), None, &[]).unwrap();
    assert_eq!(source.splits.len(), 2);
    let expected = words(&[
        "image image: II*\0 image",
        "n float: Some(Float(1.5))",
        "text text: éb",
    ]);
    let found = records(&source, "validation");
    // Only captions: there are no labels.
    assert_eq!(found, [("b.jpg".to_owned(), None, expected)]);
    let source = open(dir.path(), Some("train"), &["n"]).unwrap();
    assert_eq!((source.splits.len(), source.facts.features.len()), (1, 2));
}

#[test]
fn classes_are_numbered_over_all_splits() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["1.jpg", "deep/2.jpg", "3.jpg"] {
        write(&dir.path().join(name), "II*\0 image");
    }
    let list = "path,label,split\n3.jpg,dog,val\ndeep/2.jpg,cat,train\n1.jpg,,train\n";
    write(&dir.path().join("mine.csv"), list);
    let source = open(&dir.path().join("mine.csv"), None, &[]).unwrap();
    let names = source.facts.classes.iter().map(|class| class.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["cat", "dog"]);
    let keys_and_labels = |split| {
        let found = records(&source, split).into_iter();
        found
            .map(|(key, label, _)| (key, label.unwrap()))
            .collect::<Vec<_>>()
    };
    // Records are in the order of the list.
    let train = [("deep/2.jpg".to_owned(), 0), ("1.jpg".to_owned(), -1)];
    assert_eq!(keys_and_labels("train"), train);
    assert_eq!(keys_and_labels("validation"), [("3.jpg".to_owned(), 1)]);
}

#[test]
fn several_lines_of_an_image_become_lists() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("1.jpg"), "II*\0 image");
    let list = "file_name,label,x\n1.jpg,4,0.5\n1.jpg,2,0.25\n";
    write(&dir.path().join("metadata.csv"), list);
    let source = open(dir.path(), None, &[]).unwrap();
    assert_eq!(
        records(&source, "train"),
        [(
            "1.jpg".to_owned(),
            Some(-1),
            words(&[
                "image image: II*\0 image",
                "label label: Some(Int(-1))",
                "image/object/class/label vector[*,int64]: Some(Ints([4, 2]))",
                "x vector[*]: Some(Floats([0.5, 0.25]))",
            ]),
        )]
    );
}

#[test]
fn invalid_images_are_errors_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in [("1.jpg", "II*\0 image"), ("ü 2.jpg", "text"), ("3.jpg", "")] {
        write(&dir.path().join(name), content);
    }
    let list = "file_name,label\n1.jpg,0\nü 2.jpg,1\n3.jpg,2\n";
    write(&dir.path().join("metadata.csv"), list);
    let source = open(dir.path(), None, &[]).unwrap();
    let file = &source.splits[0].files[0];
    let mut reader = file.read(0..file.records()).unwrap();
    assert_eq!(reader.next_record().unwrap().unwrap().key, b"1.jpg");
    for (place, said) in [
        (
            "metadata.csv: record 1: line 3: ",
            " 2.jpg: its 4 bytes are no image",
        ),
        (
            "metadata.csv: record 2: line 4: ",
            "3.jpg: the image is empty",
        ),
    ] {
        let error = reader.next_record().unwrap_err();
        assert!(matches!(error, crate::Error::Record { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(place) && error.contains(said), "{error}");
    }
    assert!(reader.next_record().unwrap().is_none());
}

#[test]
fn lists_that_cannot_be_read_are_refused() {
    for (list, said) in [
        (
            "file_name,label\n2.jpg,1\n",
            "2.jpg: line 2: there is no such file",
        ),
        (
            "file_name,label\n../1.jpg,1\n",
            "line 2: the name leads out",
        ),
        (
            "file_name,label\n/etc/passwd,1\n",
            "line 2: the name is absolute",
        ),
        (
            "file_name,label\n1.jpg,-2\n",
            "line 2: the label -2 is negative",
        ),
        ("a,b\n1,2\n", "no column of paths"),
        ("", "no line"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("1.jpg"), "II*\0 image");
        write(&dir.path().join("metadata.csv"), list);
        let error = open(dir.path(), None, &[]).unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("metadata.csv"),
            "{error}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let error = open(dir.path(), None, &[]).unwrap_err().to_string();
    assert!(error.contains("there is no metadata.csv"), "{error}");
    for (split, list) in [
        ("train", "{\"file_name\": \"1.jpg\", \"n\": 1}"),
        ("test", "{\"file_name\": \"1.jpg\", \"n\": \"x\"}"),
    ] {
        write(&dir.path().join(split).join("1.jpg"), "II*\0 image");
        write(&dir.path().join(split).join("metadata.jsonl"), list);
    }
    let error = open(dir.path(), None, &[]).unwrap_err().to_string();
    assert!(error.contains("differ from those of"), "{error}");
    assert!(open(dir.path(), None, &["n"]).is_ok());
}

#[test]
fn lists_are_found_by_their_names() {
    for (names, expected) in [
        (&["a.jpg", "metadata.jsonl"][..], Some("metadata.jsonl")),
        (&["train", "train/metadata.csv"], Some("train/metadata.csv")),
        (&["dir/mine.tsv"], Some("dir/mine.tsv")),
        (&["a.jpg", "mine.csv"], None),
        (&["metadata.json"], None),
    ] {
        assert_eq!(image_list(names), expected);
        // Other tables may lie beside images, which are packed.
        assert_eq!(RecordFormat::detect(names), None);
    }
}

#[test]
fn missing_images_are_left_out_on_request() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("1.jpg"), "II*\0 image");
    let list = "file_name,label\n2.jpg,0\n1.jpg,1\n1.jpg/3.jpg,2\n";
    write(&dir.path().join("metadata.csv"), list);
    let mut input = RecordInput::new(dir.path());
    input.on_bad_record = OnBadRecord::Skip;
    let source = RecordFormat::IMAGE_LIST.open(&input).unwrap();
    assert_eq!(records(&source, "train")[0].0, "1.jpg");
    let findings = source.facts.findings.iter();
    let found: Vec<&str> = findings.map(|finding| finding.path.as_str()).collect();
    assert_eq!(found, ["2.jpg", "1.jpg/3.jpg"]);

    write(
        &dir.path().join("metadata.csv"),
        "file_name,label\n2.jpg,0\n",
    );
    let error = RecordFormat::IMAGE_LIST
        .open(&input)
        .unwrap_err()
        .to_string();
    assert!(error.contains("it lists no image"), "{error}");
}
