use super::*;

fn read(name: &str, text: &[u8]) -> Result<Labels> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    Labels::read(&path)
}

fn features(labels: &Labels) -> Vec<(String, FeatureKind, bool)> {
    let features = labels.columns.features();
    features
        .map(|(name, kind, gaps)| (name.to_owned(), kind, gaps))
        .collect()
}

fn record(labels: &Labels, row: u32) -> ExampleBuilder<'_> {
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
    let row = labels.row_of(b"b/1.jpg").unwrap();
    assert_eq!(labels.class(row), RowClass::Name(b"dog"));
    let mut expected = ExampleBuilder::new();
    expected
        .add_bytes("code", b"007")
        .add_int64s("gap", &[])
        .add_int64("n", 3)
        .add_bytes("note", b"a, b")
        .add_float("x", 1.0);
    assert_eq!(record(&labels, row).to_vec(), expected.to_vec());
    let row = labels.row_of(b"a.jpg").unwrap();
    expected
        .add_bytes("code", b"12")
        .add_int64("gap", 9)
        .add_int64("n", -4)
        .add_bytes("note", b"")
        .add_float("x", 2.5);
    assert_eq!(record(&labels, row).to_vec(), expected.to_vec());
    assert_eq!(labels.row_of(b"c"), None);
}

#[test]
fn all_three_formats_say_the_same() {
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
fn what_makes_no_sense_says_where() {
    for (name, text, expected) in [
        ("l.csv", "name,label\na,1\n", "no column of paths"),
        ("l.csv", "path,kind\na,1\n", "no column of labels"),
        ("l.csv", "path,label\n", "no line of labels"),
        ("l.csv", "", "no line of labels"),
        ("l.csv", "path,label\na,1,2\n", "line: 2"),
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
        // What stands for no label inside.
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
fn other_columns_on_each_line_do_not_add_up() {
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
fn any_damage_is_an_error_or_other_labels() {
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
                    for row in 0..labels.rows() {
                        assert_eq!(labels.row_of(labels.path(row)), Some(row));
                        record(&labels, row).to_vec();
                    }
                }
                damaged[at] ^= flip;
            }
        }
    }
}
