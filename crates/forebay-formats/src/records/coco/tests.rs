//! Small COCO datasets that the tests write.

use crate::Reason;
use crate::records::{OnBadRecord, RecordFormat, RecordInput, RecordSource};
use forebay_image::{PngCompression, SampleFormat, encode_png_samples};
use forebay_shard::schema::ColumnValue;
use forebay_shard::{ExampleView, Schema};
use serde_json::{Value, json};
use std::path::Path;

const SQUARE: &str = "[[ 1, 2.50, 3,4 ]]";

fn instances() -> Value {
    json!({
        "images": [
            {"id": 7, "file_name": "b.png", "width": 20, "height": 10},
            {"id": 3, "file_name": "a/a.png", "width": 100, "height": 50},
        ],
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 44, "bbox": [2, 1, 4, 5], "area": 9.5, "iscrowd": 1},
            {"id": 2, "image_id": 3, "category_id": 1, "bbox": [0, 0, 100, 60]},
            {"id": 3, "image_id": 7, "category_id": 1, "bbox": [0.0, 0.0, 20.0, 10.0], "iscrowd": 0},
        ],
        "categories": [{"id": 44, "name": "bottle"}, {"id": 1, "name": "person"}],
    })
}

/// Writes a dataset in COCO's layout with these annotation files.
fn dataset(files: &[(&str, &Value)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("annotations")).unwrap();
    for (name, json) in files {
        // Records must keep the spaces in a segmentation.
        let text = json.to_string().replace("\"SQUARE\"", SQUARE);
        std::fs::write(dir.path().join("annotations").join(name), text).unwrap();
    }
    let images = dir.path().join("val2017");
    std::fs::create_dir_all(images.join("a")).unwrap();
    std::fs::write(images.join("a/a.png"), image([100, 50], "first.")).unwrap();
    std::fs::write(images.join("b.png"), image([20, 10], "second")).unwrap();
    dir
}

/// Returns a PNG of this size with a text appended.
fn image([width, height]: [u32; 2], text: &str) -> Vec<u8> {
    let (gray, small) = (SampleFormat::Gray8, PngCompression::Small);
    let pixels = vec![7; (width * height) as usize];
    let mut image = encode_png_samples(&pixels, width, height, gray, small).unwrap();
    image.extend_from_slice(text.as_bytes());
    image
}

fn open(dir: &Path, dropped: &[&str]) -> crate::Result<RecordSource> {
    let mut input = RecordInput::new(dir);
    input.drop_features = dropped.iter().map(|name| (*name).to_owned()).collect();
    RecordFormat::COCO.open(&input)
}

/// Returns the values of columns and lists of byte strings of each record.
fn records(source: &RecordSource) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let file = &source.splits[0].files[0];
    let mut reader = file.read(0..file.records()).unwrap();
    let listed = |example: ExampleView<'_>, name: &str| {
        let list = example
            .get(name)
            .map(|feature| feature.bytes_list().unwrap());
        let texts = list
            .into_iter()
            .flatten()
            .map(|text| String::from_utf8_lossy(text).into_owned());
        texts.collect::<Vec<_>>().join("|")
    };
    while let Some(record) = reader.next_record().unwrap() {
        let example = ExampleView::parse(record.bytes).unwrap();
        let schema: &Schema = &source.facts.schema;
        let columns = schema.columns().iter();
        let mut values: Vec<String> = columns
            .map(|column| match column.read(example).unwrap() {
                Some(ColumnValue::Bytes(bytes)) => {
                    String::from_utf8_lossy(&bytes[bytes.len() - 6..]).into_owned()
                }
                Some(value) => format!("{value:?}"),
                None => "none".to_owned(),
            })
            .collect();
        values.extend(["captions", "segmentation"].map(|name| listed(example, name)));
        found.push((String::from_utf8(record.key.to_vec()).unwrap(), values));
    }
    found
}

#[test]
fn objects_become_boxes_with_labels_from_0() {
    let mut json = instances();
    json["annotations"][0]["segmentation"] = json!("SQUARE");
    let dir = dataset(&[("instances_val2017.json", &json)]);
    let names = ["annotations", "val2017"];
    assert_eq!(RecordFormat::detect(&names).unwrap().0.name(), "coco");
    let without_year = "annotations/person_keypoints_train.json";
    let (found, sign) = RecordFormat::detect(&["annotations", without_year, "train"]).unwrap();
    assert_eq!((found.name(), sign), ("coco", without_year));
    let others = [
        "annotations",
        "annotations/a.json",
        "annotations/captions_.json",
        "train",
    ];
    assert!(RecordFormat::detect(&others).is_none());
    let source = open(dir.path(), &[]).unwrap();
    assert_eq!(source.splits[0].name, "val2017");
    let classes: Vec<_> = source
        .facts
        .classes
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(classes, ["person", "bottle"]);
    let found = records(&source);
    assert_eq!(found[0].0, "a/a.png");
    assert_eq!(
        found[0].1,
        [
            "first.",
            "Int(3)",
            "Boxes { boxes: [[0.0, 0.0, 1.0, 1.0]], labels: [0] }",
            "Ints([0])",
            "Floats([6000.0])",
            "",
            "",
        ]
    );
    assert_eq!(
        found[1].1,
        [
            "second",
            "Int(7)",
            "Boxes { boxes: [[0.1, 0.1, 0.3, 0.6], [0.0, 0.0, 1.0, 1.0]], labels: [1, 0] }",
            "Ints([1, 0])",
            "Floats([9.5, 200.0])",
            "",
            &format!("{SQUARE}|"),
        ]
    );
}

#[test]
fn captions_and_keypoints_join_their_images_and_objects() {
    let captions = json!({
        "images": instances()["images"],
        "annotations": [
            {"image_id": 7, "caption": "one"},
            {"image_id": 3, "caption": "two"},
            {"image_id": 7, "caption": "three"},
        ],
    });
    let keypoints = json!({
        "images": instances()["images"],
        "categories": [{"id": 1, "name": "person"}],
        "annotations": [{"id": 3, "image_id": 7, "category_id": 1, "keypoints": [10, 5, 2, 0, 0, 0]}],
    });
    let dir = dataset(&[
        ("instances_val2017.json", &instances()),
        ("captions_val2017.json", &captions),
        ("person_keypoints_val2017.json", &keypoints),
    ]);
    let source = open(dir.path(), &[]).unwrap();
    let found = records(&source);
    assert_eq!(found[1].1[6], "one|three");
    // An object without keypoints has the same number of keypoints, not labeled.
    let points =
        "points: [[0.0, 0.0], [0.0, 0.0], [0.5, 0.5], [0.0, 0.0]], visibility: [0, 0, 2, 0]";
    assert_eq!(found[1].1[5], format!("Keypoints {{ {points} }}"));
    let source = open(dir.path(), &["keypoints", "captions"]).unwrap();
    let names: Vec<_> = source
        .facts
        .schema
        .columns()
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(names, ["image", "image_id", "boxes", "iscrowd", "area"]);
    assert_eq!(records(&source)[1].1[5], "");
}

/// Returns a mask of 20 x 10 pixels with the colors of segments 1 and 256 + 2.
fn mask() -> Vec<u8> {
    let (rgb, small) = (SampleFormat::Rgb8, PngCompression::Small);
    encode_png_samples(&[1, 0, 0, 2, 1, 0].repeat(100), 20, 10, rgb, small).unwrap()
}

fn panoptic() -> Value {
    json!({
        "images": instances()["images"],
        "annotations": [
            {"image_id": 7, "file_name": "b.png", "segments_info": [
                {"id": 258, "category_id": 92, "area": 1, "bbox": [1, 0, 1, 1], "iscrowd": 0},
                {"id": 1, "category_id": 44, "area": 1, "bbox": [0, 0, 1, 1], "iscrowd": 1},
            ]},
        ],
        "categories": [
            {"id": 92, "name": "banner", "isthing": 0},
            {"id": 44, "name": "bottle", "isthing": 1},
        ],
    })
}

/// Writes the dataset with masks in `dir`.
fn with_masks(files: &[(&str, &Value)], dir: &str) -> tempfile::TempDir {
    let root = dataset(files);
    std::fs::create_dir_all(root.path().join(dir)).unwrap();
    std::fs::write(root.path().join(dir).join("b.png"), mask()).unwrap();
    root
}

#[test]
fn panoptic_masks_are_columns_beside_the_boxes() {
    for dir in ["annotations/panoptic_val2017", "panoptic_val2017"] {
        let files = [
            ("instances_val2017.json", &instances()),
            ("panoptic_val2017.json", &panoptic()),
        ];
        let root = with_masks(&files, dir);
        let source = open(root.path(), &[]).unwrap();
        let classes = source.facts.classes.iter().map(|c| c.name.as_str());
        assert_eq!(
            classes.collect::<Vec<_>>(),
            ["person", "bottle", "banner"],
            "of both files"
        );
        let file = &source.splits[0].files[0];
        let mut reader = file.read(0..2).unwrap();
        // The first image has no mask and no values in the columns of segments.
        let record = reader.next_record().unwrap().unwrap();
        let example = ExampleView::parse(record.bytes).unwrap();
        let column = |name| source.facts.schema.column(name).unwrap();
        assert!(column("panoptic").read(example).unwrap().is_none());
        let record = reader.next_record().unwrap().unwrap();
        let example = ExampleView::parse(record.bytes).unwrap();
        let value = |name| column(name).read(example).unwrap().unwrap();
        let ColumnValue::Bytes(stored) = value("panoptic") else {
            panic!("a mask is bytes");
        };
        assert_eq!(stored, mask());
        let texts =
            ["segment_ids", "segment_labels", "segment_iscrowd"].map(|n| format!("{:?}", value(n)));
        assert_eq!(texts, ["Ints([258, 1])", "Ints([2, 1])", "Ints([0, 1])"]);
        assert!(file.bytes() > mask().len() as u64);
    }
    // Without the annotation file with boxes.
    let root = with_masks(
        &[("panoptic_val2017.json", &panoptic())],
        "annotations/panoptic_val2017",
    );
    let source = open(root.path(), &[]).unwrap();
    let names = source
        .facts
        .schema
        .columns()
        .iter()
        .map(|c| c.name.as_str());
    let names: Vec<_> = names.collect();
    assert_eq!(
        names,
        [
            "image",
            "image_id",
            "panoptic",
            "segment_ids",
            "segment_labels",
            "segment_iscrowd"
        ]
    );
    let source = open(root.path(), &["panoptic"]).unwrap();
    assert_eq!(records(&source)[1].1[2], "Ints([258, 1])");
}

#[test]
fn invalid_panoptic_annotations_are_refused() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 8] = [
        (
            |json| json["annotations"][0]["image_id"] = json!(99),
            "annotation 0: there is no image 99",
        ),
        (
            |json| json["annotations"][0]["file_name"] = json!("../b.png"),
            "leads out of the directory of masks",
        ),
        (
            |json| json["annotations"][0]["segments_info"][0]["id"] = json!(1),
            "annotation 0: segment 1 is there twice",
        ),
        (
            |json| json["annotations"][0]["segments_info"][0]["id"] = json!(1 << 24),
            "segment 16777216",
        ),
        (
            |json| json["annotations"][0]["segments_info"][1]["category_id"] = json!(1),
            "there is no category 1",
        ),
        (
            |json| json["categories"][1]["name"] = json!("can"),
            "category 44 is \"can\" here and \"bottle\" in another file",
        ),
        (
            |json| {
                let first = json["annotations"][0].clone();
                json["annotations"].as_array_mut().unwrap().push(first);
            },
            "annotation 1: there are two masks of image 7",
        ),
        (
            |json| json["annotations"][0]["segments_info"] = json!("none"),
            "no annotation file of COCO",
        ),
    ];
    for (change, said) in changes {
        let mut json = panoptic();
        change(&mut json);
        let files = [
            ("instances_val2017.json", &instances()),
            ("panoptic_val2017.json", &json),
        ];
        let root = with_masks(&files, "panoptic_val2017");
        let error = open(root.path(), &[]).unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("panoptic_val2017.json"),
            "{error}"
        );
    }
    let files = [("panoptic_val2017.json", &panoptic())];
    let error = open(dataset(&files).path(), &[]).unwrap_err().to_string();
    assert!(error.contains("there is no directory"), "{error}");
    // An invalid mask, which is detected when it is read.
    let root = with_masks(&files, "panoptic_val2017");
    std::fs::write(root.path().join("panoptic_val2017/b.png"), "no PNG").unwrap();
    let source = open(root.path(), &[]).unwrap();
    let mut reader = source.splits[0].files[0].read(1..2).unwrap();
    let error = reader.next_record().unwrap_err().to_string();
    assert!(error.contains("panoptic_val2017/b.png"), "{error}");
}

#[test]
fn annotations_beside_images_are_one_split() {
    let dir = tempfile::tempdir().unwrap();
    let valid = dir.path().join("valid");
    std::fs::create_dir_all(valid.join("a")).unwrap();
    std::fs::write(valid.join("a/a.png"), image([100, 50], "first.")).unwrap();
    std::fs::write(valid.join("b.png"), image([20, 10], "second")).unwrap();
    std::fs::write(
        valid.join("_annotations.coco.json"),
        instances().to_string(),
    )
    .unwrap();
    let source = open(&valid, &[]).unwrap();
    assert_eq!(source.splits[0].name, "valid");
    assert_eq!(records(&source).len(), 2);
}

#[test]
fn invalid_annotations_are_refused() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 10] = [
        (
            |json| json["info"] = (0..100).fold(json!(1), |inner, _| json!([inner])),
            "nest deeper than 32 levels at offset ",
        ),
        (
            |json| json["annotations"][1]["image_id"] = json!(99),
            "annotation 1: there is no image 99",
        ),
        (
            |json| json["annotations"][0]["category_id"] = json!(2),
            "annotation 0: there is no category 2",
        ),
        (
            |json| json["images"][0]["file_name"] = json!("../b.png"),
            "leads out of the directory",
        ),
        (
            |json| json["images"][0]["file_name"] = json!("/b.png"),
            "leads out of the directory",
        ),
        (
            |json| json["images"][0]["id"] = json!(3),
            "there are two images 3",
        ),
        (
            |json| json["images"][1]["width"] = json!(0),
            "image 3: a width and a height",
        ),
        (
            |json| json["categories"][1]["id"] = json!(44),
            "there are two categories 44",
        ),
        (
            |json| json["annotations"] = json!(3),
            "no annotation file of COCO",
        ),
        (
            |json| json["annotations"][2]["keypoints"] = json!([1, 2]),
            "2 numbers are no keypoints",
        ),
    ];
    for (change, said) in changes {
        let mut json = instances();
        change(&mut json);
        let dir = dataset(&[("instances_val2017.json", &json)]);
        let error = open(dir.path(), &[]).unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("instances_val2017.json"),
            "{error}"
        );
    }
    let dir = dataset(&[("instances_val2017.json", &instances())]);
    std::fs::remove_file(dir.path().join("val2017/b.png")).unwrap();
    let error = open(dir.path(), &[]).unwrap_err().to_string();
    assert!(error.contains("b.png"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    std::fs::create_dir(empty.path().join("annotations")).unwrap();
    let error = open(empty.path(), &[]).unwrap_err().to_string();
    assert!(
        error.contains("annotations/instances_SPLIT.json"),
        "{error}"
    );
}

#[test]
fn repeated_ids_and_names_are_refused() {
    let set = |pointer: &str, value: Value| {
        let mut changed = instances();
        *changed.pointer_mut(pointer).unwrap() = value;
        changed
    };
    for (pointer, value, said) in [
        ("/images/1/id", json!(7), "two images 7"),
        (
            "/images/1/file_name",
            json!("b.png"),
            "the images 7 and 3 are both \"b.png\"",
        ),
        (
            "/annotations/2/id",
            json!(1),
            "annotation 2: there are two annotations 1",
        ),
        ("/annotations/0/bbox/2", json!(-4), "its bbox is -4 wide"),
    ] {
        let dir = dataset(&[("instances_val2017.json", &set(pointer, value))]);
        let error = open(dir.path(), &[]).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

/// Areas and boxes are scaled. Segmentations are in pixels and cannot be scaled.
#[test]
fn annotations_of_another_size_are_scaled_or_refused() {
    let json = instances();
    let dir = dataset(&[("instances_val2017.json", &json)]);
    let images = dir.path().join("val2017");
    std::fs::write(images.join("b.png"), image([40, 20], "second")).unwrap();
    let source = open(dir.path(), &[]).unwrap();
    let values = &records(&source)[1].1;
    let boxes = "Boxes { boxes: [[0.1, 0.1, 0.3, 0.6], [0.0, 0.0, 1.0, 1.0]], labels: [1, 0] }";
    assert_eq!(values[2], boxes);
    assert_eq!(values[4], "Floats([38.0, 800.0])");

    let mut json = json;
    json["annotations"][0]["segmentation"] = json!("SQUARE");
    let dir = dataset(&[("instances_val2017.json", &json)]);
    let images = dir.path().join("val2017");
    let first_error = |size, dropped: &[&str]| {
        std::fs::write(images.join("b.png"), image(size, "second")).unwrap();
        let source = open(dir.path(), dropped).unwrap();
        let mut reader = source.splits[0].files[0].read(1..2).unwrap();
        let error = reader.next_record().err()?;
        assert!(matches!(error, crate::Error::Record { .. }), "{error:?}");
        Some(error.to_string())
    };
    let error = first_error([40, 20], &[]).unwrap();
    assert!(error.contains("drop_feature segmentation"), "{error}");
    assert_eq!(first_error([40, 20], &["segmentation"]), None);
    let error = first_error([10, 20], &["segmentation"]).unwrap();
    let said = "b.png: its annotation is of an image of 20x10, and the image has 10x20";
    assert!(error.contains(said), "{error}");
}

#[test]
fn missing_images_and_masks_are_left_out() {
    let files = [("panoptic_val2017.json", &panoptic())];
    let root = with_masks(&files, "panoptic_val2017");
    let file = json!({"images": []});
    let other = root.path().join("annotations/instances_train2017.json");
    std::fs::write(other, file.to_string()).unwrap();
    std::fs::remove_file(root.path().join("val2017/a/a.png")).unwrap();
    let mut input = RecordInput::new(root.path());
    let error = RecordFormat::COCO.open(&input).unwrap_err().to_string();
    let said = "a/a.png: there is no image of this name; on_bad skip leaves it out";
    assert!(error.contains(said), "{error}");
    input.on_bad_record = OnBadRecord::Skip;
    let source = RecordFormat::COCO.open(&input).unwrap();
    assert_eq!(records(&source).len(), 1);
    let findings = source.facts.findings.iter();
    let found: Vec<_> = findings
        .map(|finding| (finding.path.as_str(), finding.reason))
        .collect();
    let all = ["annotations/instances_train2017.json", "a/a.png"];
    assert_eq!(found, all.map(|path| (path, Reason::NotThere)));

    std::fs::remove_file(root.path().join("panoptic_val2017/b.png")).unwrap();
    let image = image([100, 50], "first.");
    std::fs::write(root.path().join("val2017/a/a.png"), image).unwrap();
    let source = RecordFormat::COCO.open(&input).unwrap();
    assert_eq!(records(&source)[0].0, "a/a.png");
    assert_eq!(source.facts.findings[1].detail, "there is no mask of it");
}
