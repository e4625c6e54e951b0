//! Small OpenImages datasets that the tests write.

use crate::records::{OnBadRecord, RecordFormat, RecordInput, RecordSource};
use forebay_shard::ExampleView;
use forebay_shard::schema::ColumnValue;
use std::path::Path;

const HEADER: &str = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside";

fn write(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Writes two directories of a split with three images, one of them without boxes, and an image of another split.
fn dataset(root: &Path) {
    for name in [
        "train_0/a.jpg",
        "train_0/c.jpg",
        "train_f/b.jpg",
        "images/validation/d.png",
    ] {
        write(&root.join(name), &format!("II*\0 {name}"));
    }
    // The lines of one image are not adjacent.
    let lines = [
        "b,xclick,/m/02,1,0.25,0.75,0,1,1,0,0,0,-1",
        "a,xclick,/m/01,1,0,0.5,0.125,1,0,1,1,0,0",
        "b,xclick,/m/01,1,0.5,1,0.5,0.5,,0,0,1,0",
    ];
    let train = format!("{HEADER}\n{}\n", lines.join("\n"));
    write(&root.join("oidv6-train-annotations-bbox.csv"), &train);
    let validation = format!("{HEADER}\nd,xclick,/m/03,1,0,1,0,1,0,0,0,0,0\n");
    write(&root.join("validation-annotations-bbox.csv"), &validation);
}

fn input(root: &Path) -> RecordInput {
    RecordInput::new(root)
}

/// Returns the key and the columns, formatted, of each record of a split.
fn records(source: &RecordSource, split: usize) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for file in &source.splits[split].files {
        let mut reader = file.read(0..file.records()).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            let example = ExampleView::parse(record.bytes).unwrap();
            let columns = source.facts.schema.columns().iter();
            let text = columns.map(|column| match column.read(example).unwrap() {
                Some(ColumnValue::Bytes(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
                Some(ColumnValue::Boxes { boxes, labels }) => format!("{boxes:?} {labels:?}"),
                Some(ColumnValue::Ints(numbers)) => format!("{}: {numbers:?}", column.name),
                other => panic!("{other:?}"),
            });
            let text = text.collect();
            found.push((String::from_utf8(record.key.to_vec()).unwrap(), text));
        }
    }
    found
}

#[test]
fn lines_become_the_boxes_of_their_images() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    let names = ["oidv6-train-annotations-bbox.csv", "train_0"];
    let found = RecordFormat::detect(&names).unwrap();
    assert_eq!(found, (RecordFormat::OPEN_IMAGES, names[0]));
    let source = RecordFormat::OPEN_IMAGES.open(&input(dir.path())).unwrap();
    let splits: Vec<&str> = source.splits.iter().map(|split| &*split.name).collect();
    assert_eq!(splits, ["train", "validation"]);
    let classes: Vec<&str> = source
        .facts
        .classes
        .iter()
        .map(|class| &*class.name)
        .collect();
    assert_eq!(
        classes,
        ["/m/01", "/m/02", "/m/03"],
        "in the order of names"
    );
    let train = records(&source, 0);
    let keys: Vec<&str> = train.iter().map(|(key, _)| &**key).collect();
    assert_eq!(keys, ["a.jpg", "b.jpg", "c.jpg"]);
    assert_eq!(
        train[1].1,
        [
            "II*\0 train_f/b.jpg",
            "[[0.25, 0.0, 0.75, 1.0], [0.5, 0.5, 1.0, 0.5]] [1, 0]",
            "depiction: [0, 1]",
            "group_of: [0, 0]",
            "inside: [-1, 0]",
            "occluded: [1, -1]",
            "truncated: [0, 0]",
        ]
    );
    assert_eq!(train[2].1[1], "[] []", "an image without boxes");
    assert_eq!(records(&source, 1)[0].1[1], "[[0.0, 0.0, 1.0, 1.0]] [2]");
    assert!(source.facts.findings.is_empty());
}

#[test]
fn a_list_of_classes_gives_their_order_and_names() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    let list = dir.path().join("oidv7-class-descriptions-boxable.csv");
    write(
        &list,
        "LabelName,DisplayName\n/m/02,Sea turtle\n/m/01,\"Cat, wild\"\n/m/09,Dog\n",
    );
    // The list of all classes has lower precedence.
    write(
        &dir.path().join("oidv7-class-descriptions.csv"),
        "/m/77,Thing\n",
    );
    let mut train = input(dir.path());
    train.split = Some("train".to_owned());
    train.drop_features = ["inside".to_owned()].into();
    let source = RecordFormat::OPEN_IMAGES.open(&train).unwrap();
    let classes = source.facts.classes.iter();
    let classes: Vec<_> = classes
        .map(|class| (&*class.name, class.text.as_deref()))
        .collect();
    assert_eq!(
        classes,
        [
            ("/m/02", Some("Sea turtle")),
            ("/m/01", Some("Cat, wild")),
            ("/m/09", Some("Dog")),
        ]
    );
    let records = records(&source, 0);
    assert!(records[1].1[1].ends_with("[0, 1]"), "{records:?}");
    assert_eq!(records[1].1.len(), 6);
    let error = RecordFormat::OPEN_IMAGES
        .open(&input(dir.path()))
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("line 2: the list of classes does not have \"/m/03\""),
        "{error}"
    );
}

#[test]
fn lines_of_missing_images_are_errors_or_findings() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    std::fs::remove_file(dir.path().join("train_f/b.jpg")).unwrap();
    let mut train = input(dir.path());
    train.split = Some("train".to_owned());
    let error = RecordFormat::OPEN_IMAGES
        .open(&train)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("line 2: there is no image b; on_bad skip"),
        "{error}"
    );
    train.on_bad_record = OnBadRecord::Skip;
    let source = RecordFormat::OPEN_IMAGES.open(&train).unwrap();
    assert_eq!(records(&source, 0).len(), 2);
    let [finding] = &source.facts.findings[..] else {
        panic!("{:?}", source.facts.findings)
    };
    assert!(
        finding
            .to_string()
            .contains("b: listed, but not there (the first image of 2 lines of oidv6-train"),
        "{finding}"
    );
}

#[test]
fn invalid_boxes_and_classes_are_refused() {
    let csv = "oidv6-train-annotations-bbox.csv";
    let row = |row: &str| format!("{HEADER}\n{row}\n");
    for (file, content, said) in [
        (
            csv,
            row(",x,/m/01,1,0,1,0,1,0,0,0,0,0"),
            "line 2: it has no ImageID",
        ),
        (
            csv,
            row("a,x,,1,0,1,0,1,0,0,0,0,0"),
            "line 2: it has no LabelName",
        ),
        (
            csv,
            row("a,x,/m/01,1,nan,1,0,1,0,0,0,0,0"),
            "XMin is no number",
        ),
        (
            csv,
            row("a,x,/m/01,1,0.5,0.25,0,1,0,0,0,0,0"),
            "its box is 0.5, 0 to 0.25, 1",
        ),
        (
            csv,
            row("a,x,/m/01,1,0,1,0,1,1000,0,0,0,0"),
            "IsOccluded is no small integer",
        ),
        (csv, row("a,x,/m/01,1,0,1"), "line 2: it has"),
        (
            "train-annotations-bbox.csv",
            row(""),
            "boxes of the same split",
        ),
        ("my-annotations-bbox.csv", row(""), "its name has no train-"),
        (
            "class-descriptions.csv",
            "/m/01\n".to_owned(),
            "two columns",
        ),
        (
            "train_1/a.png",
            "II*\0".to_owned(),
            "two images are called a",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        dataset(dir.path());
        write(&dir.path().join(file), &content);
        let error = RecordFormat::OPEN_IMAGES
            .open(&input(dir.path()))
            .unwrap_err();
        let (error, place) = (error.to_string(), dir.path().to_str().unwrap());
        assert!(
            error.contains(said) && error.contains(place),
            "{said}: {error}"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join(csv), HEADER);
    let error = RecordFormat::OPEN_IMAGES
        .open(&input(dir.path()))
        .unwrap_err();
    assert!(
        error.to_string().contains("no images of the split train"),
        "{error}"
    );
    dataset(dir.path());
    write(&dir.path().join("train_0/a.jpg"), "no image");
    let source = RecordFormat::OPEN_IMAGES.open(&input(dir.path())).unwrap();
    let file = &source.splits[0].files[0];
    let mut reader = file.read(0..1).unwrap();
    let error = reader.next_record().unwrap_err().to_string();
    assert!(error.contains("record 0: a.jpg"), "{error}");
}
