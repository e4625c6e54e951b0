use super::*;
use crate::{ExampleBuilder, ExampleView};

fn schema(columns: &[(&str, &str)]) -> Schema {
    let column = |(name, text): &(&str, &str)| Column::new(*name, text.parse().unwrap());
    Schema::new(columns.iter().map(column).collect()).unwrap()
}

#[test]
fn every_type_reads_what_it_wrote() {
    let schema = schema(&[
        ("image", "image"),
        ("label", "label"),
        ("tags", "labels"),
        ("age", "int"),
        ("weight", "float"),
        ("vector", "vector[2]"),
        ("ids", "vector[*,int64]"),
        ("tensor", "tensor[2,*,uint8]"),
        ("text", "text"),
        ("raw", "bytes"),
        ("boxes", "boxes"),
        ("mask", "mask"),
        ("points", "keypoints"),
    ]);
    let boxes = vec![[0.0, 0.25, 0.5, 1.0], [0.5, 0.5, 0.75, 0.75]];
    let values = [
        ColumnValue::Bytes(b"jpeg"),
        ColumnValue::Int(-1),
        ColumnValue::Ints(vec![3, 1]),
        ColumnValue::Int(i64::MIN),
        ColumnValue::Float(0.5),
        ColumnValue::Floats(vec![1.5, -2.0]),
        ColumnValue::Ints(vec![]),
        ColumnValue::Tensor {
            shape: vec![2, 3],
            bytes: &[1, 2, 3, 4, 5, 6],
        },
        ColumnValue::Bytes("é".as_bytes()),
        ColumnValue::Bytes(b"\xff"),
        ColumnValue::Boxes {
            boxes,
            labels: vec![7, 8],
        },
        ColumnValue::Bytes(b"png"),
        ColumnValue::Keypoints {
            points: vec![[0.5, 1.0]],
            visibility: vec![2],
        },
    ];
    let mut builder = ExampleBuilder::new();
    let names: Vec<_> = schema.columns().iter().map(Column::features).collect();
    for ((column, names), value) in schema.columns().iter().zip(&names).zip(&values) {
        column.add(names, value, &mut builder).unwrap();
    }
    let record = builder.to_vec();
    let example = ExampleView::parse(&record).unwrap();
    for (column, value) in schema.columns().iter().zip(&values) {
        assert_eq!(column.read(example).unwrap().as_ref(), Some(value));
    }
    assert_eq!(schema.features().len(), 20);
    let mut lists = ExampleBuilder::new();
    lists.add_bytes_list("text", &[]).add_floats("weight", &[]);
    let lists = lists.to_vec();
    let example = ExampleView::parse(&lists).unwrap();
    for name in ["text", "weight"] {
        let column = schema.column(name).unwrap();
        assert_eq!(
            column.read(example).unwrap(),
            None,
            "an empty list of {name}"
        );
    }
    let empty = ExampleBuilder::new().to_vec();
    let example = ExampleView::parse(&empty).unwrap();
    for column in schema.columns() {
        assert_eq!(column.read(example).unwrap(), None, "{}", column.name);
    }
}

#[test]
fn values_that_do_not_fit_their_column_are_refused() {
    let refused = |column_type: &str, value: ColumnValue<'_>| {
        let column = Column::new("c", column_type.parse().unwrap());
        let features = column.features();
        let mut builder = ExampleBuilder::new();
        column.add(&features, &value, &mut builder).unwrap_err()
    };
    for (column_type, value, said) in [
        ("int", ColumnValue::Bytes(b""), "expected an integer"),
        ("text", ColumnValue::Bytes(b"\xff"), "not UTF-8"),
        (
            "vector[3]",
            ColumnValue::Floats(vec![1.0]),
            "expected 3 numbers, found 1",
        ),
        (
            "tensor[2,*,int16]",
            ColumnValue::Tensor {
                shape: vec![2, 2],
                bytes: &[0; 7],
            },
            "expected 8 bytes, found 7",
        ),
        (
            "tensor[2,uint8]",
            ColumnValue::Tensor {
                shape: vec![3],
                bytes: &[0; 3],
            },
            "expected shape [2], found [3]",
        ),
        (
            "boxes",
            ColumnValue::Boxes {
                boxes: vec![[0.0; 4]],
                labels: vec![],
            },
            "1 boxes and 0 labels",
        ),
        (
            "boxes",
            ColumnValue::Boxes {
                boxes: vec![[0.5, 0.0, f32::NAN, 1.0]],
                labels: vec![0],
            },
            "not a finite number",
        ),
    ] {
        let error = refused(column_type, value).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn damaged_columns_of_records_are_refused() {
    let read = |column_type: &str, fill: &dyn Fn(&mut ExampleBuilder<'_>)| {
        let mut builder = ExampleBuilder::new();
        fill(&mut builder);
        let record = builder.to_vec();
        let column = Column::new("c", column_type.parse().unwrap());
        let found = column.read(ExampleView::parse(&record).unwrap());
        found.map(|_| ()).unwrap_err()
    };
    for (column_type, fill, said) in [
        (
            "int",
            (&|b: &mut ExampleBuilder<'_>| {
                b.add_int64s("c", &[1, 2]);
            }) as &dyn Fn(&mut ExampleBuilder<'_>),
            "2 values",
        ),
        (
            "text",
            &|b| {
                b.add_bytes("c", b"\xff");
            },
            "not UTF-8",
        ),
        (
            "boxes",
            &|b| {
                b.add_floats("c/xmin", &[0.5]);
            },
            "c/ymin",
        ),
        (
            "tensor[*,uint8]",
            &|b| {
                b.add_bytes("c", b"abc").add_int64s("c/shape", &[-3]);
            },
            "shape",
        ),
        (
            "tensor[*,*,float64]",
            &|b| {
                b.add_bytes("c", b"abc")
                    .add_int64s("c/shape", &[i64::MAX, i64::MAX]);
            },
            "bytes",
        ),
    ] {
        let error = read(column_type, fill).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn columns_are_inferred_from_features() {
    let entry = |name: &str, kind, shape: &[Option<u64>]| FeatureEntry {
        name: name.to_owned(),
        kind,
        shape: shape.to_vec(),
    };
    let mut features = vec![
        entry("caption", FeatureKind::Bytes, &[]),
        entry("image/class/label", FeatureKind::Int64, &[]),
        entry("image/encoded", FeatureKind::Bytes, &[]),
        entry(IMAGE_SEEK_POINTS, FeatureKind::Bytes, &[]),
        entry("names", FeatureKind::Bytes, &[None]),
        entry("scores", FeatureKind::Float, &[None]),
    ];
    for side in BOX_SIDES {
        let name = format!("{BOXES_FEATURE}{side}");
        features.push(entry(&name, FeatureKind::Float, &[None]));
    }
    features.push(entry(OBJECT_LABELS, FeatureKind::Int64, &[None]));
    let schema = Schema::infer(&features, RecordFeatures::standard());
    let shown: Vec<String> = schema
        .columns()
        .iter()
        .map(|column| format!("{}: {}", column.name, column.column_type))
        .collect();
    assert_eq!(
        shown,
        [
            "image: image",
            "label: label",
            "boxes: boxes",
            "caption: bytes",
            "scores: vector[*]"
        ]
    );
    let boxes = schema.column(BOXES).unwrap();
    assert_eq!(boxes.label_feature.as_deref(), Some(OBJECT_LABELS));
    assert!(schema.check().is_ok());
    features.push(entry("segmentation", FeatureKind::Bytes, &[None]));
    features.push(entry(IMAGE_PROGRESSIVE, FeatureKind::Bytes, &[None]));
    let lists = |schema: Schema| -> Vec<String> {
        let all = schema.with_lists(&features);
        assert!(all.check().is_ok());
        let columns = all.columns().iter();
        let list = |c: &&Column| matches!(c.column_type, ColumnType::Texts | ColumnType::Polygons);
        columns
            .filter(list)
            .map(|column| format!("{}: {}", column.name, column.column_type))
            .collect()
    };
    assert_eq!(lists(schema), ["names: texts", "segmentation: polygons"]);
    // Without boxes there are no objects; a column of that name stays.
    let own = Column {
        feature: "other".to_owned(),
        ..Column::new("names", ColumnType::Int)
    };
    assert_eq!(
        lists(Schema::new(vec![own]).unwrap()),
        ["segmentation: texts"]
    );
}

#[test]
fn readers_ask_for_columns_as_another_type() {
    let column = |name: &str, text: &str| Column::new(name, text.parse().unwrap());
    let schema = Schema::new(vec![
        column("image", "image"),
        column("meta", "bytes"),
        column("ids", "vector[*,int64]"),
        column("a:json", "int"),
    ]);
    let schema = schema.unwrap();
    let read = schema.requested("meta:json").unwrap();
    assert_eq!(
        (read.name.as_str(), read.feature.as_str()),
        ("meta:json", "meta")
    );
    assert_eq!(read.column_type, ColumnType::Json);
    assert_eq!(
        schema.requested("meta:tensor[2,int8]").unwrap().feature,
        "meta"
    );
    assert_eq!(
        schema.requested("ids:labels").unwrap().column_type,
        ColumnType::Labels
    );
    assert_eq!(
        schema.requested("a:json").unwrap().column_type,
        ColumnType::Int
    );
    for (text, said) in [
        (
            "ids:json",
            "\"ids\" is vector[*,int64], which cannot be read as json",
        ),
        ("meta:tensor[*,int8]", "cannot be read as tensor[*,int8]"),
        ("image:bytes", "cannot be read as bytes"),
        ("meta:yaml", "column type \"yaml\": expected image, label"),
    ] {
        let problem = schema.requested(text).unwrap_err().unwrap();
        assert!(problem.contains(said), "{problem}");
    }
    for text in ["other", "other:json", "", ":json"] {
        assert_eq!(schema.requested(text), Err(None), "{text}");
    }
}

#[test]
fn lists_and_json_of_records_are_checked() {
    let read = |column_type: &str, values: &[&[u8]]| {
        let mut builder = ExampleBuilder::new();
        builder.add_bytes_list("c", values);
        let record = builder.to_vec();
        let column = Column::new("c", column_type.parse().unwrap());
        let value = column.read(ExampleView::parse(&record).unwrap());
        let mut again = ExampleBuilder::new();
        let features = column.features();
        let value = value.map_err(|error| error.to_string())?.unwrap();
        column.add(&features, &value, &mut again).unwrap();
        assert_eq!(again.to_vec(), record);
        Ok::<(), String>(())
    };
    let deep = "[".repeat(33) + &"]".repeat(33);
    let object = br#"{"counts": [1, 2], "size": [3, 4]}"#;
    let good: [(&str, &[&[u8]]); 5] = [
        ("texts", &["é".as_bytes(), b""]),
        ("texts", &[]),
        ("polygons", &[b"", b"[]", b" [[1, 2.5, 3e0, 4]]", object]),
        ("json", &[b" {\"a\": [null, true, \"\\ud83d\\ude00\"]}"]),
        ("json", &[b"12345678901234567890123"]),
    ];
    for (column_type, values) in good {
        read(column_type, values).unwrap();
    }
    let long = vec![b' '; MAX_JSON_BYTES + 1];
    let bad: [(&str, &[&[u8]], &str); 12] = [
        ("texts", &[b"a", b"\xff"], "text 1: byte 0 is not UTF-8"),
        (
            "polygons",
            &[b"[]", b"[[1, 2, 3]]"],
            "object 1: 3 numbers are no polygon",
        ),
        (
            "polygons",
            &[b"[1, 2]"],
            "object 0: no list of polygons: invalid type",
        ),
        (
            "polygons",
            &[b"{\"counts\": "],
            "object 0: no valid JSON: EOF",
        ),
        ("polygons", &[b"[[1, 1e999]]"], "number out of range"),
        ("polygons", &[deep.as_bytes()], "nest deeper than 32 levels"),
        ("json", &[deep.as_bytes()], "nest deeper than 32 levels"),
        ("json", &[b"{\"a\": NaN}"], "no valid JSON: expected value"),
        ("json", &[b"{} {}"], "no valid JSON: trailing characters"),
        ("json", &[b"\"\xff\""], "no valid JSON: invalid unicode"),
        ("json", &[b"1", b"2"], "2 values"),
        (
            "json",
            &[&long],
            "JSON has at most 16777216 bytes, found 16777217",
        ),
    ];
    for (column_type, values, said) in bad {
        let error = read(column_type, values).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn schemas_with_contradictions_are_refused() {
    let column = |name: &str, text: &str| Column::new(name, text.parse().unwrap());
    for (columns, said) in [
        (vec![column("", "int")], "a name has 1 to"),
        (vec![column("a", "int"), column("a", "text")], "given twice"),
        (
            vec![column("a", "boxes"), column("a/xmin", "float")],
            "belongs to another column",
        ),
    ] {
        assert!(Schema::new(columns).unwrap_err().contains(said));
    }
}

#[test]
fn a_column_round_trips_through_json() {
    let column = Column::new("v", "tensor[2,*,float16]".parse().unwrap());
    let json = serde_json::to_string(&column).unwrap();
    assert_eq!(
        json,
        r#"{"name":"v","type":"tensor[2,*,float16]","feature":"v"}"#
    );
    assert_eq!(serde_json::from_str::<Column>(&json).unwrap(), column);
    let newer = json.replace("tensor[2,*,float16]", "video");
    assert!(serde_json::from_str::<Column>(&newer).is_err());
}
