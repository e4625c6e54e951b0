use super::*;
use forebay_shard::ExampleBuilder;
use forebay_shard::example::FeatureKind;

fn read(name: &str, text: &[u8]) -> Result<LabelTable> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    LabelTable::read(&path, false)
}

fn features(labels: &LabelTable) -> Vec<(String, FeatureKind, bool)> {
    let features = labels.columns.features();
    features
        .map(|(name, kind, gaps)| (name.to_owned(), kind, gaps))
        .collect()
}

fn record(labels: &LabelTable, row: u32) -> ExampleBuilder<'_> {
    let mut example = ExampleBuilder::new();
    labels.columns.add_to(row, &mut example);
    example
}

#[test]
fn columns_have_the_narrowest_type_that_holds_them() {
    let text = b"path,class,n,x,code,note,gap\r\n./b/1.jpg,dog,3,1,007,\"a, b\",\r\na.jpg,cat,-4,2.5,12,,9\r\n";
    let labels = read("labels.csv", text).unwrap();
    let expected = [
        ("code", FeatureKind::Bytes, false),
        ("gap", FeatureKind::Int64, true),
        ("n", FeatureKind::Int64, false),
        ("note", FeatureKind::Bytes, false),
        ("x", FeatureKind::Float, false),
    ];
    assert_eq!(
        features(&labels),
        expected.map(|(name, kind, gaps)| (name.to_owned(), kind, gaps))
    );
    assert_eq!(labels.names().unwrap(), [b"cat".to_vec(), b"dog".to_vec()]);
    let row = labels.image_of(b"b/1.jpg").unwrap();
    assert_eq!(labels.class(row), RowClass::Name(b"dog"));
    let mut expected = ExampleBuilder::new();
    expected
        .add_bytes("code", b"007")
        .add_int64s("gap", &[])
        .add_int64("n", 3)
        .add_bytes("note", b"a, b")
        .add_float("x", 1.0);
    assert_eq!(record(&labels, row).to_vec(), expected.to_vec());
    let row = labels.image_of(b"a.jpg").unwrap();
    expected
        .add_bytes("code", b"12")
        .add_int64("gap", 9)
        .add_int64("n", -4)
        .add_bytes("note", b"")
        .add_float("x", 2.5);
    assert_eq!(record(&labels, row).to_vec(), expected.to_vec());
    assert_eq!(labels.image_of(b"c"), None);
}

#[test]
fn all_formats_give_the_same_labels() {
    let csv = read("l.csv", b"\xef\xbb\xbfpath,label,x\na,1,0.5\nb,,2\nc,0,\n").unwrap();
    let tsv = read("l.tsv", b"path\tlabel\tx\na\t1\t0.5\nb\t\t2\nc\t0\t\n").unwrap();
    let json = read(
        "l.jsonl",
        b"{\"path\":\"a\",\"label\":1,\"x\":0.5}\n\n{\"x\":2,\"path\":\"b\"}\n{\"path\":\"c\",\"label\":0,\"x\":null}\n",
    )
    .unwrap();
    let by_content = read("l.txt", b"path\tlabel\tx\na\t1\t0.5\nb\t\t2\nc\t0\t\n").unwrap();
    for labels in [csv, tsv, json, by_content] {
        assert_eq!(
            features(&labels),
            [("x".to_owned(), FeatureKind::Float, true)]
        );
        let classes: Vec<_> = (0..3).map(|row| labels.class(row)).collect();
        assert_eq!(
            classes,
            [
                RowClass::Number(1),
                RowClass::Unlabelled,
                RowClass::Number(0)
            ]
        );
        let mut expected = ExampleBuilder::new();
        expected.add_float("x", 2.0);
        assert_eq!(record(&labels, 1), expected);
    }
}

#[test]
fn files_of_spreadsheets_and_pandas_are_read() {
    let utf16: Vec<u8> = "\u{feff}path,label,x\na,1,0.5\nb,,2\nc,0,\n"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    for (name, text) in [
        ("utf16.csv", &utf16[..]),
        ("l.csv", b"path;label;x\na;1;0.5\nb;;2\nc;0;\n"),
        ("l.csv", b"path\tlabel\tx\na\t1\t0.5\nb\t\t2\nc\t0\t\n"),
        ("l.tsv", b"path,label,x\na,1,0.5\nb,,2\nc,0,\n"),
        ("l.txt", b"\"path\";\"label\";x\na;1;0.5\nb;;2\nc;0;\n"),
        ("l.csv", b",path,label,x\n0,a,1,0.5\n1,b,,2\n2,c,0,\n"),
        // The index column of a subset of rows.
        (
            "l.csv",
            b"Unnamed: 0,path,label,x\n3,a,1,0.5\n10,b,,2\n11,c,0,\n",
        ),
        // Lines end with a delimiter.
        ("l.csv", b"path,label,x,\na,1,0.5,\nb,,2,\nc,0,,\n"),
    ] {
        let labels = read(name, text).unwrap();
        let shown = String::from_utf8_lossy(text);
        let expected = [("x".to_owned(), FeatureKind::Float, true)];
        assert_eq!(features(&labels), expected, "{shown}");
        let classes: Vec<_> = (0..3).map(|row| labels.class(row)).collect();
        let number = RowClass::Number;
        assert_eq!(
            classes,
            [number(1), RowClass::Unlabelled, number(0)],
            "{shown}"
        );
    }
}

#[test]
fn a_first_column_without_increasing_numbers_is_no_index() {
    let labels = read("l.csv", b"Unnamed: 0,path,label\n1,a,1\n1,b,2\n").unwrap();
    assert_eq!(features(&labels)[0].0, "Unnamed: 0");
    let labels = read("l.csv", b"n,path,label\n0,a,1\n1,b,2\n").unwrap();
    assert_eq!(features(&labels)[0].0, "n");
    let unnamed = error("l.csv", ",path,label\n5,a,1\n3,b,2\n");
    assert!(unnamed.contains("index=False"), "{unnamed}");
}

#[test]
fn invalid_files_are_errors_with_the_line() {
    for (name, text, expected) in [
        ("l.csv", "name,label\na,1\n", "no column of paths"),
        ("l.csv", "path,kind\na,1\n", "no column of labels"),
        ("l.csv", "path,label\n", "no line of labels"),
        ("l.csv", "", "no line of labels"),
        ("l.csv", "path,label\na,1,2\n", "line 2: it has 3 values"),
        ("l.csv", "path,label\na,1\na,2\n", "more than once"),
        ("l.csv", "path,label\na,1\n,2\n", "line 3: there is no path"),
        ("l.csv", "path,label\n../a,1\n", "line 2"),
        ("l.csv", "path,label,label\na,1,1\n", "twice"),
        (
            "l.csv",
            "path,label,image/encoded\na,1,1\n",
            "image/encoded",
        ),
        ("l.jsonl", "{\"path\":\"a\",\"label\":[1]}\n", "line 1"),
        ("l.jsonl", "{\"path\":\"a\",\"label\":1}\n{\n", "line 2"),
        ("l.jsonl", "[1]\n", "line 1"),
        // The value that represents a missing label internally.
        (
            "l.csv",
            "path,label\na,-9223372036854775808\n",
            "line 2: -9223372036854775808 is no label",
        ),
    ] {
        let error = read(name, text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let endless = format!("path,label\n\"{}", "x".repeat(3 << 20));
    assert!(
        read("l.csv", endless.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("1 MiB")
    );
    let endless = format!("{{\"path\":\"{}", "x".repeat(3 << 20));
    assert!(
        read("l.jsonl", endless.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("1 MiB")
    );
}

#[test]
fn the_number_of_columns_is_limited() {
    let lines = (0..2000).map(|n| format!("{{\"path\":\"{n}\",\"label\":1,\"c{n}\":1}}\n"));
    let error = read("l.jsonl", lines.collect::<String>().as_bytes()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("line 255: more than 256 columns"), "{error}");
}

#[test]
fn numbers_beyond_a_float_are_text() {
    let csv = b"path,label,x,y\na,1,1e300,3e38\nb,2,0.5,1\n";
    let json = b"{\"path\":\"a\",\"label\":1,\"x\":1e300,\"y\":3e38}\n{\"path\":\"b\",\"label\":2,\"x\":0.5,\"y\":1}\n";
    for (name, text) in [("l.csv", &csv[..]), ("l.jsonl", json)] {
        let labels = read(name, text).unwrap();
        let expected = [
            ("x", FeatureKind::Bytes, false),
            ("y", FeatureKind::Float, false),
        ];
        assert_eq!(
            features(&labels),
            expected.map(|(name, kind, gaps)| (name.to_owned(), kind, gaps)),
            "{name}"
        );
    }
}

#[test]
fn damaged_files_are_refused_or_read() {
    for (name, text) in [
        (
            "l.csv",
            &b"path,class,n,x\n\"a,b\",dog,3,1.5\nc,cat,4,-2e9\n"[..],
        ),
        (
            "l.jsonl",
            &b"{\"path\":\"a\",\"label\":1,\"x\":0.5,\"s\":\"\\u00fc\"}\n{\"path\":\"b\"}\n"[..],
        ),
    ] {
        for end in 0..text.len() {
            let _ = read(name, &text[..end]);
        }
        let mut damaged = text.to_vec();
        for at in 0..text.len() {
            for flip in [0x01, 0x04, 0x20, 0x80, 0xff] {
                damaged[at] ^= flip;
                if let Ok(labels) = read(name, &damaged) {
                    for row in 0..labels.images() {
                        assert_eq!(labels.image_of(labels.path(row)), Some(row));
                        record(&labels, row).to_vec();
                    }
                }
                damaged[at] ^= flip;
            }
        }
    }
}

fn error(name: &str, text: &str) -> String {
    read(name, text.as_bytes()).unwrap_err().to_string()
}

fn int64s(labels: &LabelTable, image: &[u8], name: &str) -> Vec<i64> {
    let record = record(labels, labels.image_of(image).unwrap()).to_vec();
    let example = forebay_shard::ExampleView::parse(&record).unwrap();
    example.get(name).unwrap().int64s().unwrap()
}

fn floats(labels: &LabelTable, image: &[u8], name: &str) -> Vec<f32> {
    let record = record(labels, labels.image_of(image).unwrap()).to_vec();
    let example = forebay_shard::ExampleView::parse(&record).unwrap();
    example.get(name).unwrap().floats().unwrap()
}

#[test]
fn whole_floats_are_label_numbers() {
    let csv = "path,label\na,1.0\nb,10.0\nc, 2 \nd,\ne,-1\nf,1e1\n";
    let json = "{\"path\":\"a\",\"label\":1.0}\n{\"path\":\"b\",\"label\":\"10\"}\n{\"path\":\"c\",\"label\":2}\n{\"path\":\"d\",\"label\":null}\n{\"path\":\"e\",\"label\":-1}\n{\"path\":\"f\",\"label\":1e1}\n";
    for (name, text) in [("l.csv", csv), ("l.jsonl", json)] {
        let labels = read(name, text.as_bytes()).unwrap();
        let classes: Vec<_> = (0..6).map(|image| labels.class(image)).collect();
        let number = RowClass::Number;
        let expected = [
            number(1),
            number(10),
            number(2),
            RowClass::Unlabelled,
            number(-1),
            number(10),
        ];
        assert_eq!(classes, expected, "{name}");
    }
}

#[test]
fn fractions_and_mixtures_as_labels_are_refused() {
    let mixed = error("l.csv", "path,label\na,3\nb,?\nc,2\n");
    assert!(
        mixed.contains("l.csv: line 3: the label \"?\" is a name, and line 2 has the number 3"),
        "{mixed}"
    );
    let mixed = error("l.csv", "path,label\na,nan\nb,1.0\n");
    assert!(
        mixed.contains("line 2") && mixed.contains("line 3"),
        "{mixed}"
    );
    let fraction = error("l.csv", "path,label\na,1\nb,1.5\n");
    assert!(
        fraction.contains("line 3: the label 1.5 is not an integer"),
        "{fraction}"
    );
    let fraction = error("l.jsonl", "{\"path\":\"a\",\"label\":1.5}\n");
    assert!(fraction.contains("line 1: the label 1.5"), "{fraction}");
    // A column of names that contains numbers would be numbered as text: 10 before 2.
    let class = error("l.csv", "path,class\na,2\nb,10\n");
    assert!(
        class.contains("line 2") && class.contains("(classes FILE)"),
        "{class}"
    );
    let list = error("l.jsonl", "{\"path\":\"a\",\"label\":[1,2]}\n");
    assert!(list.contains("a list of 2 values"), "{list}");
    // Values are checked only in the column that holds the labels.
    read("l.csv", b"path,label,class\na,1,x\nb,2,7\n").unwrap();
}

#[test]
fn padded_numbers_are_names() {
    let labels = read("l.csv", b"path,label\na,102\nb,007\nc,020\n").unwrap();
    assert_eq!(
        labels.names().unwrap(),
        [b"007".to_vec(), b"020".to_vec(), b"102".to_vec()]
    );
    assert!(error("l.csv", "path,label\na,007\nb,1.0\n").contains("line 2"));
}

#[test]
fn a_class_list_makes_numbers_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("l.csv");
    std::fs::write(&path, "path,class\na,2\nb,x\n").unwrap();
    let labels = LabelTable::read(&path, true).unwrap();
    assert_eq!(labels.names().unwrap(), [b"2".to_vec(), b"x".to_vec()]);
}

#[test]
fn column_names_of_other_tools_are_known() {
    for header in ["ImageID,LabelName", "file_name,label", "Image Path,Class"] {
        let labels = read("l.csv", format!("{header}\na,cat\n").as_bytes()).unwrap();
        assert_eq!(labels.class(0), RowClass::Name(b"cat"), "{header}");
    }
}

#[test]
fn a_split_column_is_not_a_feature() {
    let labels = read(
        "l.csv",
        b"path,label,split\na,1,train\nb,1,Val\nc,2,testing\n",
    )
    .unwrap();
    let splits: Vec<_> = (0..3).map(|image| labels.split(image).unwrap()).collect();
    assert_eq!(splits, ["train", "validation", "test"]);
    assert_eq!(labels.split_names(), ["test", "train", "validation"]);
    assert_eq!(features(&labels), []);
    let unknown = error("l.csv", "path,label,split\na,1,train\nb,1,holdout\n");
    assert!(
        unknown.contains("line 3: the split \"holdout\" is not known"),
        "{unknown}"
    );
    assert!(error("l.csv", "path,label,split\na,1,\n").contains("line 2"));
}

#[test]
fn json_lists_become_list_features() {
    let text = b"{\"path\":\"a\",\"label\":1,\"box\":[[1,2,3,4],[5,6,7,8.5]],\"tags\":[\"x\",\"y\"],\"objects\":{\"id\":[7]}}\n{\"path\":\"b\",\"label\":2,\"box\":[],\"objects\":{\"id\":[8,9]}}\n";
    let labels = read("l.jsonl", text).unwrap();
    let expected = [
        ("box", FeatureKind::Float, true),
        ("objects/id", FeatureKind::Int64, true),
        ("tags", FeatureKind::Bytes, true),
    ];
    assert_eq!(
        features(&labels),
        expected.map(|(name, kind, list)| (name.to_owned(), kind, list))
    );
    assert_eq!(
        floats(&labels, b"a", "box"),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.5]
    );
    assert_eq!(floats(&labels, b"b", "box"), [0.0f32; 0]);
    assert_eq!(int64s(&labels, b"b", "objects/id"), [8, 9]);
    for (value, what) in [
        ("[[1,2],[3]]", "equal lengths"),
        ("[1,[2]]", "both lists and single values"),
        ("[1,null]", "null"),
        ("[{\"a\":1}]", "objects"),
    ] {
        let line = format!("{{\"path\":\"a\",\"label\":1,\"x\":{value}}}\n");
        let error = error("l.jsonl", &line);
        assert!(
            error.contains("line 1: x: ") && error.contains(what),
            "{error}"
        );
    }
}

#[test]
fn rows_of_one_image_become_one_record() {
    let text =
        b"ImageID,LabelName,XMin,XMax\nb,dog,0.5,1\na,cat,0.1,0.2\nb,cat,0.25,0.75\nc,ant,,\n";
    let labels = read("l.csv", text).unwrap();
    assert_eq!(
        (labels.images(), labels.images_of_several_rows()),
        (3, Some(1))
    );
    let class = |name: &[u8]| labels.class(labels.image_of(name).unwrap());
    assert_eq!(class(b"a"), RowClass::Name(b"cat"));
    assert_eq!(class(b"b"), RowClass::Unlabelled, "its rows disagree");
    assert_eq!(floats(&labels, b"b", "XMin"), [0.5, 0.25]);
    assert_eq!(floats(&labels, b"a", "XMin"), [0.1]);
    assert_eq!(floats(&labels, b"c", "XMin"), [0.0f32; 0]);
    assert!(features(&labels).iter().all(|(_, _, list)| *list));
    // A box without one of its sides would shift the values of the others.
    let gap = error("l.csv", "path,label,x\na,1,0.5\nb,1,2\na,1,\n");
    assert!(
        gap.contains("line 4: a has another number of values in the column \"x\" than on line 2"),
        "{gap}"
    );
    let splits = error("l.csv", "path,label,x,split\na,1,0.5,train\na,1,1,val\n");
    assert!(splits.contains("another split"), "{splits}");
}

/// Line numbers count CRLF, empty lines and line ends in quotes, and are not affected by a byte order mark.
#[test]
fn errors_name_the_line_that_an_editor_shows() {
    let rows = "path,label,note\na.jpg,1,x\n\nb.jpg,2,\"two\nlines\"\n\n\nc.jpg,x,y\n";
    for text in [
        rows.to_owned(),
        rows.replace('\n', "\r\n"),
        format!("\u{feff}{rows}"),
    ] {
        let said = error("a.csv", &text);
        assert!(said.contains("line 8"), "{text:?}: {said}");
        let short = text.replace("c.jpg,x,y", "c.jpg,3");
        let said = error("a.csv", &short);
        assert!(
            said.contains("line 8: it has 2 values, and the first line 3"),
            "{said}"
        );
    }
    // Farther into the file than the bytes that are kept.
    let long = format!("path,label\r\n{}z.jpg,x\r\n", "a.jpg,1\r\n".repeat(40_000));
    assert!(error("a.csv", &long).contains("line 40002"));
}
