//! Small Pascal VOC datasets that the tests write.

use crate::Reason;
use crate::records::{OnBadRecord, RecordFormat, RecordInput, RecordSource};
use forebay_image::{PngCompression, SampleFormat, encode_png_samples};
use forebay_shard::ExampleView;
use forebay_shard::schema::ColumnValue;
use std::path::Path;

fn xml(name: &str, objects: &[(&str, u32)]) -> String {
    let object = |(class, x): &(&str, u32)| {
        format!(
            "<object><name>{class}</name><pose>Left</pose><difficult>{}</difficult>\
             <bndbox><xmin>{x}</xmin><ymin>0</ymin><xmax>10</xmax><ymax>5</ymax></bndbox></object>",
            x % 2
        )
    };
    let objects: String = objects.iter().map(object).collect();
    format!(
        "<annotation><filename>{name}</filename><size><width>20</width><height>10</height></size>{objects}</annotation>"
    )
}

fn write(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Returns a PNG of one gray level.
fn png(level: u8, [width, height]: [u32; 2]) -> Vec<u8> {
    let pixels = vec![level; (width * height) as usize];
    let (format, compression) = (SampleFormat::Gray8, PngCompression::Small);
    encode_png_samples(&pixels, width, height, format, compression).unwrap()
}

/// Returns an image of the size in its annotation, with a text appended.
fn image(id: &str) -> Vec<u8> {
    let mut image = png(7, [20, 10]);
    image.extend_from_slice(format!("image {id}").as_bytes());
    image
}

/// Writes three images of one year, with lists.
fn dataset(root: &Path) {
    for (id, objects) in [
        ("1", &[("dog", 1), ("cat", 4)][..]),
        ("2", &[]),
        ("3", &[("dog", 0)]),
    ] {
        let name = format!("{id}.jpg");
        write(
            &root.join("Annotations").join(format!("{id}.xml")),
            &xml(&name, objects),
        );
        let path = root.join("JPEGImages").join(&name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, image(id)).unwrap();
    }
    let lists = root.join("ImageSets/Main");
    write(&lists.join("train.txt"), "2\n1\n");
    write(&lists.join("val.txt"), "3\n");
    write(&lists.join("trainval.txt"), "1\n2\n3\n");
    write(&lists.join("dog_train.txt"), "1  1\n2 -1\n");
}

fn open(root: &Path, split: Option<&str>, dropped: &[&str]) -> crate::Result<RecordSource> {
    let mut input = RecordInput::new(root);
    input.split = split.map(str::to_owned);
    input.drop_features = dropped.iter().map(|name| (*name).to_owned()).collect();
    RecordFormat::VOC.open(&input)
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
                Some(ColumnValue::Bytes(bytes)) => {
                    String::from_utf8_lossy(&bytes[bytes.len() - 7..]).into_owned()
                }
                Some(value) => format!("{value:?}"),
                None => "none".to_owned(),
            });
            let mut text: Vec<String> = text.collect();
            if let Some(poses) = example.get("pose") {
                text.push(format!("{} poses", poses.bytes_list().unwrap().len()));
            }
            found.push((String::from_utf8(record.key.to_vec()).unwrap(), text));
        }
    }
    found
}

#[test]
fn lists_are_splits_and_objects_are_boxes() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    let names = ["Annotations", "ImageSets", "JPEGImages"];
    assert_eq!(RecordFormat::detect(&names).unwrap().0.name(), "voc");
    let source = open(dir.path(), None, &[]).unwrap();
    let names: Vec<_> = source
        .splits
        .iter()
        .map(|split| split.name.as_str())
        .collect();
    assert_eq!(names, ["train", "val"]);
    // The dataset has only some of VOC's classes, but these are numbered by the full list.
    assert_eq!(source.facts.classes.len(), 20);
    assert_eq!(source.facts.classes[7].name, "cat");
    let train = records(&source, 0);
    assert_eq!(
        train[0],
        (
            "2.jpg".to_owned(),
            [
                "image 2",
                "Boxes { boxes: [], labels: [] }",
                "Ints([])",
                "Ints([])",
                "0 poses"
            ]
            .map(str::to_owned)
            .to_vec()
        )
    );
    assert_eq!(
        train[1],
        (
            "1.jpg".to_owned(),
            [
                "image 1",
                "Boxes { boxes: [[0.05, 0.0, 0.5, 0.5], [0.2, 0.0, 0.5, 0.5]], labels: [11, 7] }",
                "Ints([1, 0])",
                "Ints([0, 0])",
                "2 poses",
            ]
            .map(str::to_owned)
            .to_vec()
        )
    );
    let source = open(dir.path(), Some("trainval"), &["pose", "truncated"]).unwrap();
    assert_eq!(records(&source, 0).len(), 3);
    assert_eq!(records(&source, 0)[0].1.len(), 3);
    let error = open(dir.path(), Some("no"), &[]).unwrap_err().to_string();
    assert!(error.contains("no.txt"), "{error}");
}

/// Adds masks for some images, with different PNG content in each directory, and the lists of these images.
fn add_masks(root: &Path) {
    for (dir, class) in [("SegmentationClass", 255), ("SegmentationObject", 1)] {
        for id in ["2", "3"] {
            let path = root.join(dir).join(format!("{id}.png"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, png(class, [20, 10])).unwrap();
        }
    }
    write(&root.join("ImageSets/Segmentation/train.txt"), "2\n");
    write(&root.join("ImageSets/Segmentation/val.txt"), "3\n");
    write(&root.join("ImageSets/Segmentation/trainval.txt"), "2\n3\n");
}

/// Returns the masks of each record of a split: the key, and the bytes of each column.
fn masks(source: &RecordSource, split: usize) -> Vec<(String, Vec<Option<Vec<u8>>>)> {
    let mut found = Vec::new();
    let file = &source.splits[split].files[0];
    let mut reader = file.read(0..file.records()).unwrap();
    while let Some(record) = reader.next_record().unwrap() {
        let example = ExampleView::parse(record.bytes).unwrap();
        let of = ["segmentation_class", "segmentation_object"];
        let bytes = of.map(|name| Some(example.get(name)?.bytes_list().unwrap()[0].to_vec()));
        let key = String::from_utf8(record.key.to_vec()).unwrap();
        found.push((key, bytes.to_vec()));
    }
    found
}

#[test]
fn masks_are_columns_of_the_images_that_have_them() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    add_masks(dir.path());
    let read = |dir_name: &str, id: &str| {
        let path = dir.path().join(dir_name).join(format!("{id}.png"));
        Some(std::fs::read(path).unwrap())
    };
    let of = |id: &str| {
        vec![
            read("SegmentationClass", id),
            read("SegmentationObject", id),
        ]
    };
    let source = open(dir.path(), None, &[]).unwrap();
    let names: Vec<_> = source
        .facts
        .schema
        .columns()
        .iter()
        .map(|c| (c.name.as_str(), c.column_type.to_string()))
        .collect();
    assert_eq!(
        names[names.len() - 2..],
        [
            ("segmentation_class", "mask".to_owned()),
            ("segmentation_object", "mask".to_owned()),
        ]
    );
    assert_eq!(
        masks(&source, 0),
        [
            ("2.jpg".to_owned(), of("2")),
            ("1.jpg".to_owned(), vec![None, None]),
        ]
    );
    // The lists of the images that have masks.
    let source = open(dir.path(), Some("segmentation"), &["segmentation_object"]).unwrap();
    let names: Vec<_> = source
        .splits
        .iter()
        .map(|split| split.name.as_str())
        .collect();
    assert_eq!(names, ["train", "val"]);
    assert_eq!(
        masks(&source, 0),
        [(
            "2.jpg".to_owned(),
            vec![read("SegmentationClass", "2"), None]
        )]
    );
    assert_eq!(masks(&source, 1)[0].0, "3.jpg");
}

#[test]
fn missing_and_invalid_masks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    let error = open(dir.path(), Some("segmentation"), &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("no lists of images with masks"), "{error}");
    add_masks(dir.path());
    write(
        &dir.path().join("ImageSets/Segmentation/train.txt"),
        "2\n1\n",
    );
    let error = open(dir.path(), Some("segmentation"), &[])
        .unwrap_err()
        .to_string();
    assert!(error.contains("1.jpg: there is no mask of it"), "{error}");
    write(&dir.path().join("SegmentationClass/2.png"), "no image");
    let source = open(dir.path(), None, &[]).unwrap();
    let mut reader = source.splits[0].files[0].read(0..1).unwrap();
    let error = reader.next_record().unwrap_err().to_string();
    assert!(error.contains("SegmentationClass/2.png"), "{error}");
    std::fs::write(dir.path().join("SegmentationClass/2.png"), png(1, [10, 20])).unwrap();
    let source = open(dir.path(), None, &[]).unwrap();
    let mut reader = source.splits[0].files[0].read(0..2).unwrap();
    let error = reader.next_record().unwrap_err();
    assert!(matches!(error, crate::Error::Record { .. }), "{error:?}");
    let said = "the mask has 10x20, and its image 20x10";
    assert!(error.to_string().contains(said), "{error}");
    assert_eq!(reader.next_record().unwrap().unwrap().key, b"1.jpg");
}

/// Each invalid file is an error of its record, so that a conversion can leave it out.
#[test]
fn invalid_images_are_errors_of_their_records() {
    for (content, said) in [
        ("", "record 0: 2.jpg: the image is empty"),
        ("hello", "2.jpg: its 5 bytes are no image"),
        ("GIF89a", "2.jpg: it is a GIF image"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        dataset(dir.path());
        write(&dir.path().join("JPEGImages/2.jpg"), content);
        let source = open(dir.path(), None, &[]).unwrap();
        let mut reader = source.splits[0].files[0].read(0..2).unwrap();
        let error = reader.next_record().unwrap_err();
        assert!(matches!(error, crate::Error::Record { .. }), "{error:?}");
        assert!(error.to_string().contains(said), "{error}");
        let next = reader.next_record().unwrap().unwrap();
        assert_eq!((next.number, next.key), (1, &b"1.jpg"[..]));
    }
}

#[test]
fn years_are_joined_and_own_classes_are_sorted() {
    let dir = tempfile::tempdir().unwrap();
    for year in ["VOC2007", "VOC2012"] {
        dataset(&dir.path().join("VOCdevkit").join(year));
    }
    write(
        &dir.path().join("VOCdevkit/VOC2012/Annotations/3.xml"),
        &xml("3.jpg", &[("zebra", 0)]),
    );
    let source = open(dir.path(), None, &[]).unwrap();
    assert_eq!(source.splits[0].files.len(), 2);
    let names: Vec<_> = source
        .facts
        .classes
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(names, ["cat", "dog", "zebra"]);
    // Without lists, all annotated images are in one split.
    let year = dir.path().join("VOCdevkit/VOC2007");
    std::fs::remove_dir_all(year.join("ImageSets")).unwrap();
    let source = open(&year, None, &[]).unwrap();
    assert_eq!(records(&source, 0)[2].0, "3.jpg");
}

#[test]
fn a_test_split_may_have_no_annotations_at_all() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    write(&dir.path().join("JPEGImages/4.png"), "II*\0 image 4");
    write(&dir.path().join("ImageSets/Main/test.txt"), "4\n");
    let source = open(dir.path(), None, &[]).unwrap();
    assert_eq!(records(&source, 0)[0].0, "4.png");
    write(&dir.path().join("ImageSets/Main/test.txt"), "4\n1\n");
    let error = open(dir.path(), None, &[]).unwrap_err().to_string();
    assert!(error.contains("4.png: there is no annotation"), "{error}");
}

#[test]
fn invalid_annotations_and_lists_are_refused() {
    for (file, content, said) in [
        ("ImageSets/Main/val.txt", "../../3\n", "leads out of"),
        ("ImageSets/Main/val.txt", "/etc/passwd\n", "leads out of"),
        (
            "ImageSets/Main/val.txt",
            "9\n",
            "there is no image of this name",
        ),
        ("ImageSets/Main/val.txt", "3\n3\n", "names it twice"),
        ("ImageSets/Main/val.txt", "\n", "the list names no image"),
        ("Annotations/3.xml", "<annotation>", "cut short"),
        ("Annotations/3.xml", "<a/>", "no element <annotation>"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        dataset(dir.path());
        write(&dir.path().join(file), content);
        let error = open(dir.path(), None, &[]).unwrap_err().to_string();
        let place = dir.path().to_str().unwrap();
        assert!(error.contains(said) && error.contains(place), "{error}");
    }
    let empty = tempfile::tempdir().unwrap();
    let error = open(empty.path(), None, &[]).unwrap_err().to_string();
    assert!(error.contains("JPEGImages/"), "{error}");
}

#[test]
fn boxes_of_another_size_are_scaled_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    let images = dir.path().join("JPEGImages");
    std::fs::write(images.join("1.jpg"), png(1, [40, 20])).unwrap();
    std::fs::write(images.join("3.jpg"), png(1, [10, 20])).unwrap();
    // Without objects, the size does not matter.
    std::fs::write(images.join("2.jpg"), png(1, [1, 1])).unwrap();
    let source = open(dir.path(), None, &[]).unwrap();
    let mut reader = source.splits[0].files[0].read(0..2).unwrap();
    assert!(reader.next_record().unwrap().is_some());
    assert_eq!(reader.take_remarks(), []);
    let record = reader.next_record().unwrap().unwrap();
    let boxes = ExampleView::parse(record.bytes).unwrap();
    let column = source.facts.schema.column("boxes").unwrap();
    let Some(ColumnValue::Boxes { boxes, .. }) = column.read(boxes).unwrap() else {
        panic!("no boxes");
    };
    assert_eq!(boxes[1], [0.2, 0.0, 0.5, 0.5]);
    let remarks = reader.take_remarks();
    let said: Vec<String> = remarks.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        ["1.jpg: its boxes are of another size, and scaled (from 20x10 to 40x20)"]
    );
    let mut reader = source.splits[1].files[0].read(0..1).unwrap();
    let error = reader.next_record().unwrap_err();
    assert!(matches!(error, crate::Error::Record { .. }), "{error:?}");
    let said = "3.jpg: its annotation is of an image of 20x10, and the image has 10x20";
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn lines_of_lists_may_be_names_with_spaces() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    for name in ["IMG 1", "3 1"] {
        let path = dir.path().join("JPEGImages").join(format!("{name}.jpg"));
        std::fs::write(path, image("4")).unwrap();
        let path = dir.path().join("Annotations").join(format!("{name}.xml"));
        write(&path, &xml(&format!("{name}.jpg"), &[]));
    }
    // A number after a name does not belong to the name, unless an image with that name exists.
    let list = " IMG 1 \n\n3 1\n1  1\n2\t-1\n";
    write(&dir.path().join("ImageSets/Main/train.txt"), list);
    let source = open(dir.path(), None, &[]).unwrap();
    let keys: Vec<String> = records(&source, 0)
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    assert_eq!(keys, ["IMG 1.jpg", "3 1.jpg", "1.jpg", "2.jpg"]);
    write(&dir.path().join("ImageSets/Main/train.txt"), "../a b\n");
    let error = open(dir.path(), None, &[]).unwrap_err().to_string();
    assert!(error.contains("leads out of"), "{error}");
}

#[test]
fn images_that_lack_a_file_are_left_out_on_request() {
    let dir = tempfile::tempdir().unwrap();
    dataset(dir.path());
    let all = "1\nmissing\n2\nno-xml\nbad-xml\n";
    write(&dir.path().join("ImageSets/Main/train.txt"), all);
    for name in ["no-xml", "bad-xml"] {
        let path = dir.path().join("JPEGImages").join(format!("{name}.jpg"));
        std::fs::write(path, image("5")).unwrap();
    }
    write(&dir.path().join("Annotations/bad-xml.xml"), "<annotation>");
    let mut input = RecordInput::new(dir.path());
    let error = RecordFormat::VOC.open(&input).unwrap_err().to_string();
    let said = "missing: there is no image of this name; on_bad skip leaves it out";
    assert!(error.contains(said), "{error}");
    input.on_bad_record = OnBadRecord::Skip;
    let source = RecordFormat::VOC.open(&input).unwrap();
    let keys: Vec<String> = records(&source, 0)
        .into_iter()
        .map(|(key, _)| key)
        .collect();
    assert_eq!(keys, ["1.jpg", "2.jpg"]);
    let findings = source.facts.findings.iter();
    let found: Vec<_> = findings
        .map(|finding| (finding.path.as_str(), finding.reason))
        .collect();
    assert_eq!(
        found,
        [
            ("missing", Reason::NotThere),
            ("bad-xml", Reason::BadAnnotation),
            ("no-xml.jpg", Reason::BadAnnotation),
        ]
    );
}
