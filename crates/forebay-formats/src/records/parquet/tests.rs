//! Files of pyarrow and `datasets` (testdata/parquet, made by tools/golden/make_parquet_corpus.py), and damaged files.

use crate::Error;
use crate::records::{
    ForeignRecords, RecordFormat, RecordInput, RecordSource, SinkError, SinkOptions,
};
use forebay_shard::{ExampleView, example::FeatureKind};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/parquet")
}

fn open_with(paths: &[PathBuf], features: ForeignRecords) -> crate::Result<RecordSource> {
    open_without(paths, features, &[])
}

fn open_without(
    paths: &[PathBuf],
    features: ForeignRecords,
    dropped: &[&str],
) -> crate::Result<RecordSource> {
    let mut input = RecordInput::new(paths[0].as_path());
    input.files = paths.iter().map(|path| path.as_path().into()).collect();
    input.split = Some("train".to_owned());
    input.features = features;
    input.drop_features = dropped.iter().map(|name| (*name).to_owned()).collect();
    RecordFormat::PARQUET.open(&input)
}

fn open(path: &Path) -> crate::Result<RecordSource> {
    open_with(&[path.to_path_buf()], ForeignRecords::default())
}

/// Opens a file like `open`, and also accepts rows whose image is null.
fn open_any(path: &Path) -> crate::Result<RecordSource> {
    let features = ForeignRecords {
        without_images: true,
        ..ForeignRecords::default()
    };
    open_with(&[path.to_path_buf()], features)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the records from `first` on: key, label, and features formatted as in `expected.json`.
fn rows(source: &RecordSource, first: u64) -> crate::Result<Vec<(String, Option<i64>, Value)>> {
    let mut rows = Vec::new();
    for file in &source.splits[0].files {
        let mut reader = file.read(first..file.records())?;
        while let Some(record) = reader.next_record()? {
            assert_eq!(record.number, first + rows.len() as u64);
            let example = ExampleView::parse(record.bytes).unwrap();
            let mut features = json!({});
            for feature in example.iter() {
                let value = match feature.kind().unwrap() {
                    FeatureKind::Int64 => json!(["ints", feature.int64s().unwrap()]),
                    FeatureKind::Float => {
                        let floats = feature.floats().unwrap();
                        let floats = floats.iter().map(|f| hex(&f.to_le_bytes()));
                        json!(["floats", floats.collect::<Vec<_>>()])
                    }
                    _ => {
                        let all = feature.bytes_list().unwrap();
                        json!(["bytes", all.iter().map(|b| hex(b)).collect::<Vec<_>>()])
                    }
                };
                features[feature.name()] = value;
            }
            let key = String::from_utf8(record.key.to_vec()).unwrap();
            rows.push((key, record.label, features));
        }
    }
    Ok(rows)
}

/// Returns a row of `expected.json` as a record with the same columns.
fn as_record(row: &Value, image: &str, label: &str, key: &str) -> (String, Option<i64>, Value) {
    let mut features = json!({});
    let mut found = String::new();
    for (name, value) in row.as_object().unwrap() {
        if name == key {
            let digits = value[1][0].as_str().unwrap();
            let bytes = (0..digits.len()).step_by(2);
            let bytes = bytes.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap());
            found = String::from_utf8(bytes.collect()).unwrap();
            continue;
        }
        let feature = match name {
            name if name == image => "image/encoded",
            name if name == label => "image/class/label",
            name => name,
        };
        features[feature] = value.clone();
        if value[0] == "doubles" {
            let digits = value[1].as_str().unwrap();
            features[feature] = json!(["bytes", [digits]]);
            if name == "doubles" {
                features[format!("{name}/shape")] = json!(["ints", [digits.len() / 16]]);
            }
        }
    }
    let label = features["image/class/label"][1][0].as_i64();
    if features["image/class/label"].is_null() {
        features
            .as_object_mut()
            .unwrap()
            .remove("image/class/label");
    }
    (found, label, features)
}

#[test]
fn files_of_other_tools_read_as_their_libraries_do() {
    let expected = std::fs::read_to_string(corpus().join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for (name, rows_of_file) in expected.as_object().unwrap() {
        let source = open_any(&corpus().join(name)).unwrap();
        let (image, label, key) = match name.as_str() {
            "hugging_face.parquet" => ("image/bytes", "label", "image/path"),
            "types.parquet" => ("jpg", "cls", "__key__"),
            _ => ("image", "label", ""),
        };
        let rows_of_file = rows_of_file.as_array().unwrap();
        let all: Vec<_> = rows_of_file
            .iter()
            .map(|row| as_record(row, image, label, key))
            .collect();
        assert_eq!(
            source.splits[0].files[0].records(),
            all.len() as u64,
            "{name}"
        );
        for first in 0..=all.len() {
            assert_eq!(
                rows(&source, first as u64).unwrap(),
                all[first..],
                "{name} from {first}"
            );
        }
    }
}

#[test]
fn columns_and_classes_come_from_the_metadata() {
    let source = open(&corpus().join("hugging_face.parquet")).unwrap();
    let columns = source.facts.schema.columns().iter();
    let columns: Vec<_> = columns
        .map(|c| format!("{}: {}", c.name, c.column_type))
        .collect();
    assert_eq!(
        columns,
        [
            "image: image",
            "label: label",
            "caption: text",
            "tags: labels",
            "embedding: vector[*]",
            "score: tensor[float64]",
        ]
    );
    let classes: Vec<_> = source
        .facts
        .classes
        .iter()
        .map(|c| c.name.as_str())
        .collect();
    assert_eq!(classes, ["cat", "dog", "émeu"]);
    assert_eq!(source.facts.label_base, 0);
    assert!(source.facts.order.block_records["train"].is_power_of_two());
}

#[test]
fn columns_that_records_cannot_hold_are_named() {
    for (name, said) in [
        (
            "refused_bytes_in_lists.parquet",
            "\"bytes_in_lists\" is a list of lists of bytes",
        ),
        (
            "refused_decimal.parquet",
            "\"decimal\" is of the Parquet type",
        ),
        (
            "refused_timestamp.parquet",
            "drop_feature timestamp leaves it out",
        ),
        ("refused_brotli.parquet", "rotli"),
        (
            "refused_null_in_list.parquet",
            "\"nulls\" has a list with a null in it",
        ),
        ("refused_big.parquet", "\"big\" is 18446744073709551615"),
    ] {
        let path = corpus().join(name);
        let error = open(&path)
            .and_then(|source| rows(&source, 0).map(|_| ()))
            .unwrap_err();
        let error = error.to_string();
        assert!(error.contains(said) && error.contains(name), "{error}");
        if name != "refused_brotli.parquet" {
            let column = name
                .trim_start_matches("refused_")
                .trim_end_matches(".parquet");
            let column = if column == "null_in_list" {
                "nulls"
            } else {
                column
            };
            let source = open_without(&[path], ForeignRecords::default(), &[column]).unwrap();
            assert_eq!(rows(&source, 0).unwrap().len(), 1);
        }
    }
}

#[test]
fn options_choose_columns() {
    let path = corpus().join("types.parquet");
    let mut features = ForeignRecords {
        image_feature: Some("raw".to_owned()),
        label_feature: Some("i8".to_owned()),
        key_feature: Some("words".to_owned()),
        without_images: true,
        ..ForeignRecords::default()
    };
    let source = open_with(std::slice::from_ref(&path), features.clone()).unwrap();
    let error = rows(&source, 0).unwrap_err().to_string();
    assert!(error.contains("its label is -128"), "{error}");
    features.label_feature = None;
    let source = open_with(std::slice::from_ref(&path), features.clone()).unwrap();
    let (key, label, features_of_row) = rows(&source, 0).unwrap().remove(0);
    assert_eq!((key.as_str(), label), ("one", Some(1)));
    assert_eq!(features_of_row["image/encoded"], json!(["bytes", [""]]));
    features.image_feature = Some("i8".to_owned());
    let error = open_with(&[path], features).unwrap_err().to_string();
    assert!(
        error.contains("image: no column \"i8\" of a fitting type"),
        "{error}"
    );
}

#[test]
fn files_with_other_columns_are_refused() {
    let paths = ["plain.parquet", "types.parquet"].map(|name| corpus().join(name));
    let error = open_with(&paths, ForeignRecords::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("types.parquet") && error.contains("all files of a source"),
        "{error}"
    );
}

/// Changes one byte of each file at a time: it must be read, or refused with its name, without a panic.
#[test]
fn damaged_files_are_refused_or_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.parquet");
    let mut refused = 0;
    for name in [
        "types.parquet",
        "gzip.parquet",
        "lz4.parquet",
        "plain.parquet",
    ] {
        let bytes = std::fs::read(corpus().join(name)).unwrap();
        for at in (0..bytes.len()).step_by(23) {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                std::fs::write(&path, &damaged).unwrap();
                if let Err(error) = open(&path).and_then(|source| rows_of_any(&source)) {
                    assert!(error.to_string().contains("damaged.parquet"), "{error}");
                    refused += 1;
                }
            }
        }
        for len in (0..bytes.len()).step_by(13) {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert!(matches!(open(&path), Err(Error::Source { .. })));
        }
    }
    assert!(refused > 100, "{refused}");
}

fn rows_of_any(source: &RecordSource) -> crate::Result<()> {
    for file in &source.splits[0].files {
        let mut reader = file.read(0..file.records())?;
        while reader.next_record()?.is_some() {}
    }
    Ok(())
}

/// Writes all records of a source to a file.
fn write(source: &RecordSource, path: &Path, options: &SinkOptions) -> Result<(), SinkError> {
    let sink = RecordFormat::PARQUET.create(&source.facts, options);
    let sink = sink.map_err(SinkError::Record)?;
    let scratch = || -> crate::Result<std::fs::File> { unreachable!("Parquet needs none") };
    let mut writer = sink.begin(0, &scratch).unwrap();
    let mut out = std::fs::File::create(path)?;
    for file in &source.splits[0].files {
        let mut reader = file.read(0..file.records()).unwrap();
        while let Some(record) = reader.next_record().unwrap() {
            writer.append(&record, &mut out)?;
        }
    }
    writer.finish("a.parquet", &mut out).map(|_| ())
}

#[test]
fn written_files_have_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    for codec in ["none", "zstd:5", "lz4"] {
        let options = SinkOptions {
            compression: codec.parse().unwrap(),
            ..SinkOptions::default()
        };
        for name in [
            "types.parquet",
            "hugging_face.parquet",
            "plain.parquet",
            "empty.parquet",
        ] {
            let path = dir.path().join(format!("{codec}-{name}"));
            let source = open_any(&corpus().join(name)).unwrap();
            write(&source, &path, &options).unwrap();
            let again = open_any(&path).unwrap();
            assert_eq!(
                rows(&again, 0).unwrap(),
                rows(&source, 0).unwrap(),
                "{codec} {name}"
            );
            assert_eq!(again.facts.schema, source.facts.schema);
            assert_eq!(again.facts.classes, source.facts.classes);
            let second = dir.path().join("second.parquet");
            write(&again, &second, &options).unwrap();
            let bytes = [&path, &second].map(|path| std::fs::read(path).unwrap());
            assert!(bytes[0] == bytes[1], "{codec} {name}");
        }
    }
}

#[test]
fn labels_are_written_from_0() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let mut source = open(&corpus().join("plain.parquet")).unwrap();
    source.facts.label_base = 1;
    write(&source, &path, &SinkOptions::default()).unwrap();
    let labels = rows(&open(&path).unwrap(), 0).unwrap();
    let labels: Vec<_> = labels
        .into_iter()
        .map(|(_, label, _)| label.unwrap())
        .collect();
    assert_eq!(labels, [0, 0, 1, 2, 3]);
}

/// Writes a file with a row group for each list of images. Each page has one value.
pub(in crate::records) fn write_images(
    path: &Path,
    compression: parquet::basic::Compression,
    groups: &[Vec<Vec<u8>>],
) {
    use parquet::data_type::{ByteArrayType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    let schema = "message m { required binary image; required int64 label; }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
        .set_data_page_size_limit(1)
        .set_write_batch_size(1);
    let properties = std::sync::Arc::new(properties.build());
    let out = std::fs::File::create(path).unwrap();
    let mut file = SerializedFileWriter::new(out, schema.into(), properties).unwrap();
    for images in groups {
        let mut group = file.next_row_group().unwrap();
        let labels: Vec<i64> = (0..images.len() as i64).collect();
        let images: Vec<_> = images.iter().map(|image| image.clone().into()).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<ByteArrayType>()
            .write_batch(&images, None, None)
            .unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<Int64Type>()
            .write_batch(&labels, None, None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    file.close().unwrap();
}

pub(in crate::records) fn image(len: usize) -> Vec<u8> {
    let mut image = b"\xff\xd8\xff\xe0".to_vec();
    image.resize(len, 0);
    image
}

/// Returns the errors of the records of a file, and the number of records that are read.
fn read_on(path: &Path) -> (Vec<String>, usize) {
    let source = open(path).unwrap();
    let file = &source.splits[0].files[0];
    let mut reader = file.read(0..file.records()).unwrap();
    let (mut errors, mut read) = (Vec::new(), 0);
    loop {
        match reader.next_record() {
            Ok(Some(_)) => read += 1,
            Ok(None) => return (errors, read),
            Err(error) => errors.push(error.to_string()),
        }
    }
}

#[test]
fn a_value_beyond_a_record_is_not_expanded() {
    use parquet::basic::{Compression, GzipLevel, ZstdLevel};
    let dir = tempfile::tempdir().unwrap();
    for (name, compression) in [
        ("zstd", Compression::ZSTD(ZstdLevel::try_new(1).unwrap())),
        ("gzip", Compression::GZIP(GzipLevel::try_new(1).unwrap())),
    ] {
        let path = dir.path().join(format!("{name}.parquet"));
        let images = vec![image(100), image((256 << 20) + 1), image(100)];
        write_images(&path, compression, &[images, vec![image(100)]]);
        assert!(std::fs::metadata(&path).unwrap().len() < 4 << 20);
        let (errors, read) = read_on(&path);
        assert_eq!(read, 2, "{errors:?}");
        let said = "record 1: row group 0, row 1: a value of 268435461 bytes: a record holds";
        assert!(errors[0].contains(said), "{}", errors[0]);
        let said = "record 2: row group 0, row 2: not read, as row 1";
        assert!(
            errors[1].contains(said) && errors.len() == 2,
            "{}",
            errors[1]
        );
    }
}

/// The decoder cannot resume in a damaged row group: none of its later rows becomes a record, and each counts as an error.
#[test]
fn a_row_group_is_skipped_after_its_first_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.parquet");
    let groups = [
        vec![image(900), image(1000), image(900)],
        vec![image(900); 2],
    ];
    write_images(&path, parquet::basic::Compression::UNCOMPRESSED, &groups);
    let whole = std::fs::read(&path).unwrap();
    let at = memchr::memmem::find(&whole, &1000u32.to_le_bytes()).unwrap();
    for len in [0, 999, 1001, u32::MAX, 1 << 31] {
        let mut damaged = whole.clone();
        damaged[at..at + 4].copy_from_slice(&u32::to_le_bytes(len));
        std::fs::write(&path, damaged).unwrap();
        let (errors, read) = read_on(&path);
        assert_eq!(errors.len() + read, 5, "{len}: {errors:?}");
        if len > 1000 {
            assert_eq!(read, 3, "{len}: {errors:?}");
            assert!(errors[0].contains("row group 0, row 1"), "{}", errors[0]);
            assert!(
                errors[1].contains("row group 0, row 2: not read"),
                "{}",
                errors[1]
            );
        }
    }
}

/// The image (a nullable struct with nullable bytes) and the label of a row.
type Row<'a> = (Option<Option<&'a [u8]>>, i32);

const IMAGE: &str = "optional group image { optional binary bytes; optional binary path (UTF8); }";
const LABEL: &str = "required int32 label;";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n picture";

/// Writes row groups with these columns.
fn write_groups(path: &Path, columns: &[&str], has_statistics: bool, groups: &[&[Row<'_>]]) {
    use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
    use parquet::file::properties::{EnabledStatistics, WriterProperties};
    let message = format!("message m {{ {} }}", columns.join(" "));
    let schema = parquet::schema::parser::parse_message_type(&message).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let statistics = match has_statistics {
        true => EnabledStatistics::Page,
        false => EnabledStatistics::None,
    };
    let properties = WriterProperties::builder().set_statistics_enabled(statistics);
    let properties = properties.build().into();
    let writer = parquet::file::writer::SerializedFileWriter::new(file, schema.into(), properties);
    let mut writer = writer.unwrap();
    for rows in groups {
        let mut group = writer.next_row_group().unwrap();
        let leaves = columns.iter().flat_map(|column| match *column {
            IMAGE => &["bytes", "path"][..],
            _ => &["label"],
        });
        for leaf in leaves {
            let mut column = group.next_column().unwrap().unwrap();
            let level = |(image, _): &Row<'_>| match (image, *leaf) {
                (None, _) => 0i16,
                (Some(None), "bytes") => 1,
                _ => 2,
            };
            let levels: Vec<i16> = rows.iter().map(level).collect();
            let there = rows.iter().filter(|row| level(row) == 2);
            let texts = there.map(|(image, label)| match *leaf {
                "bytes" => ByteArray::from(image.unwrap().unwrap().to_vec()),
                _ => ByteArray::from(format!("{label}.jpg").into_bytes()),
            });
            if *leaf == "label" {
                let labels: Vec<i32> = rows.iter().map(|row| row.1).collect();
                let column = column.typed::<Int32Type>();
                column.write_batch(&labels, None, None).unwrap();
            } else {
                let texts: Vec<ByteArray> = texts.collect();
                let column = column.typed::<ByteArrayType>();
                column.write_batch(&texts, Some(&levels), None).unwrap();
            }
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn rows_without_an_image_are_bad_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let first: &[Row<'_>] = &[(Some(Some(PNG)), 0), (None, 1)];
    let second: &[Row<'_>] = &[
        (Some(None), 2),
        (Some(Some(b"")), 3),
        (Some(Some(b"<html>")), 4),
        (Some(Some(PNG)), 5),
    ];
    write_groups(&path, &[IMAGE, LABEL], true, &[first, second]);
    let source = open(&path).unwrap();
    let mut reader = source.splits[0].files[0].read(0..6).unwrap();
    let mut found = Vec::new();
    while let Some(read) = reader.next_record().transpose() {
        found.push(match read {
            Ok(record) => format!("label {}", record.label.unwrap()),
            Err(Error::Record { record, what, .. }) => format!("{record}: {what}"),
            Err(error) => panic!("{error}"),
        });
    }
    assert_eq!(
        found,
        [
            "label 0",
            "1: row group 0, row 1: the column \"image/bytes\" is null: it has no image",
            "2: row group 1, row 0: the column \"image/bytes\" is null: it has no image",
            "3: row group 1, row 1: the column \"image/bytes\": the image is empty",
            "4: row group 1, row 2: the column \"image/bytes\": its 6 bytes are no image: JPEG, PNG, WebP and TIFF are read",
            "label 5",
        ]
    );
    let source = open_any(&path).unwrap();
    let mut reader = source.splits[0].files[0].read(0..6).unwrap();
    let all = std::iter::from_fn(|| reader.next_record().unwrap().map(|record| record.number));
    assert_eq!(all.count(), 6);
}

#[test]
fn files_with_only_the_paths_of_images_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let rows: &[Row<'_>] = &[(Some(None), 0), (Some(None), 1)];
    for has_statistics in [true, false] {
        write_groups(&path, &[IMAGE, LABEL], has_statistics, &[rows, rows]);
        let error = open(&path).unwrap_err().to_string();
        let said = "no row has an image: the column \"image/bytes\" is null in all of them";
        assert!(error.contains(said), "{error}");
        assert!(
            error.contains("metadata.csv") && error.contains("`forebay convert --from list`"),
            "{error}"
        );
        let some: &[Row<'_>] = &[(Some(None), 0), (Some(Some(PNG)), 1)];
        write_groups(&path, &[IMAGE, LABEL], has_statistics, &[rows, some]);
        assert!(open(&path).is_ok());
    }
}

#[test]
fn decoded_dictionaries_and_lists_are_counted() {
    use super::memory::{ColumnMemory, GroupMemory};
    use super::page_header::PageHeader;
    use parquet::basic::{Compression, Type};
    let group = GroupMemory::default();
    let column =
        |is_list| ColumnMemory::new(&group, Compression::SNAPPY, Type::BYTE_ARRAY, is_list);
    let page = PageHeader {
        expanded: 40 << 20,
        values: 10 << 20,
        ..PageHeader::default()
    };
    // Empty strings take many times the size of their page, in a dictionary and in a list.
    let dictionary = PageHeader {
        is_dictionary: true,
        ..page
    };
    assert!(column(false).admit(&dictionary, 19_000).is_err());
    let group_of_lists = GroupMemory::default();
    let list = ColumnMemory::new(&group_of_lists, Compression::SNAPPY, Type::BYTE_ARRAY, true);
    assert!(list.admit(&page, 19_000).is_err());
    // Several columns share the limit, and release their memory.
    let group = GroupMemory::default();
    let new = || ColumnMemory::new(&group, Compression::SNAPPY, Type::BYTE_ARRAY, false);
    let (one, other) = (new(), new());
    let page = PageHeader {
        expanded: 200 << 20,
        values: 2,
        ..PageHeader::default()
    };
    one.admit(&page, 1000).unwrap();
    one.release(false);
    one.admit(&page, 1000).unwrap();
    let error = other.admit(&page, 1000).unwrap_err().to_string();
    assert!(error.contains("with those of other columns"), "{error}");
    // A page whose stored size is of the same order is not counted.
    let group = GroupMemory::default();
    let new = || ColumnMemory::new(&group, Compression::SNAPPY, Type::BYTE_ARRAY, false);
    for _ in 0..4 {
        new().admit(&page, 100 << 20).unwrap();
    }
}

#[test]
fn columns_of_files_agree_whatever_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a.parquet", "b.parquet"].map(|name| dir.path().join(name));
    let rows: &[Row<'_>] = &[(Some(Some(PNG)), 7)];
    write_groups(&a, &[IMAGE, LABEL], true, &[rows]);
    write_groups(&b, &[LABEL, IMAGE], true, &[rows]);
    let source = open_with(&[a.clone(), b.clone()], ForeignRecords::default()).unwrap();
    let mut first = source.splits[0].files[0].read(0..1).unwrap();
    let mut second = source.splits[0].files[1].read(0..1).unwrap();
    let first = first.next_record().unwrap().unwrap();
    let second = second.next_record().unwrap().unwrap();
    assert_eq!((first.bytes, first.label), (second.bytes, Some(7)));
    write_groups(&b, &[IMAGE], true, &[rows]);
    let error = open_with(&[a, b], ForeignRecords::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("the column \"label\" is missing"), "{error}");
    assert!(error.contains("b.parquet"), "{error}");
}

#[test]
fn a_conversion_is_read_from_the_files_it_names() {
    use forebay_shard::ShardFormat;
    use forebay_shard::manifest::{Manifest, ShardEntry, SplitEntry};
    let dir = tempfile::tempdir().unwrap();
    let rows: &[Row<'_>] = &[(Some(Some(PNG)), 7)];
    for name in ["train-0.parquet", "train-1.parquet"] {
        write_groups(&dir.path().join(name), &[IMAGE, LABEL], true, &[rows]);
    }
    let entry = |name: &str| ShardEntry {
        name: name.to_owned(),
        records: 1,
        bytes: 1,
        crc32c: 0,
        blake3: None,
    };
    let write = |names: &[&str]| {
        let shards = names.iter().map(|name| entry(name)).collect();
        let splits = vec![SplitEntry::new("train", shards)];
        let manifest = Manifest::new(ShardFormat::TfRecord, 0, splits);
        let json = crate::records::Conversion::new("parquet", &manifest).to_json();
        std::fs::write(dir.path().join("forebay-conversion.json"), json.unwrap()).unwrap();
        RecordFormat::PARQUET.open(&RecordInput::new(dir.path()))
    };
    let source = write(&["train-1.parquet"]).unwrap();
    assert_eq!(source.splits[0].files.len(), 1);
    let [finding] = &source.facts.findings[..] else {
        panic!("{:?}", source.facts.findings);
    };
    assert_eq!(finding.path, "train-0.parquet");
    let error = write(&["train-1.parquet", "train-2.parquet"]).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("train-2.parquet is missing"), "{error}");
}
