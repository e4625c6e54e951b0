//! Writes TFRecords of every kind and a description of their content into a directory, for another
//! implementation to read (tools/check/tf_interop.py).
//!
//! ```text
//! cargo run -p forebay-shard --example interop_shards -- DIRECTORY
//! ```

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;

use forebay_shard::tfrecord::{Compression, WriterBuilder};
use forebay_shard::{ExampleBuilder, RecordMeta};
use serde_json::{Value, json};

/// The values of one feature.
enum Values {
    Bytes(Vec<Vec<u8>>),
    Float(Vec<f32>),
    Int64(Vec<i64>),
}

type Record = Vec<(String, Values)>;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os()
        .nth(1)
        .ok_or("usage: interop_shards DIRECTORY")?;
    let directory = Path::new(&directory);
    fs::create_dir_all(directory)?;
    let images: Vec<Record> = (0..40).map(image).collect();
    let odd = vec![edges(), Vec::new(), long()];
    let mut files = Vec::new();
    for (name, compression, records) in [
        ("plain", Compression::None, &images),
        ("gzip", Compression::Gzip, &images),
        ("zlib", Compression::Zlib, &images),
        ("odd", Compression::None, &odd),
        ("odd-gzip", Compression::Gzip, &odd),
        ("empty", Compression::None, &Vec::new()),
        ("empty-gzip", Compression::Gzip, &Vec::new()),
        ("empty-zlib", Compression::Zlib, &Vec::new()),
    ] {
        write(&directory.join(name), compression, records)?;
        let records: Vec<Value> = records.iter().map(expected).collect();
        files.push(json!({"name": name, "compression": compression.name(), "records": records}));
    }
    fs::write(
        directory.join("expected.json"),
        json!({ "files": files }).to_string(),
    )?;
    Ok(())
}

fn write(path: &Path, compression: Compression, records: &[Record]) -> Result<(), Box<dyn Error>> {
    let mut builder = WriterBuilder::new();
    let mut writer = builder
        .compression(compression)
        .from_writer(File::create(path)?, path);
    for record in records {
        let mut example = ExampleBuilder::new();
        for (name, values) in record {
            match values {
                Values::Bytes(values) => {
                    let values: Vec<&[u8]> = values.iter().map(Vec::as_slice).collect();
                    example.add_bytes_list(name, &values);
                }
                Values::Float(values) => {
                    example.add_floats(name, values);
                }
                Values::Int64(values) => {
                    example.add_int64s(name, values);
                }
            }
        }
        writer.append(&example.to_vec(), &RecordMeta::default())?;
    }
    writer.finish()?;
    Ok(())
}

/// Returns the expected values as JSON: bytes as hex and floats by their bits, since JSON has neither bytes nor infinities.
fn expected(record: &Record) -> Value {
    let hex = |bytes: &Vec<u8>| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let feature = |(name, values): &(String, Values)| {
        let (kind, values) = match values {
            Values::Bytes(values) => ("bytes", values.iter().map(hex).map(Value::from).collect()),
            Values::Float(values) => (
                "float",
                values
                    .iter()
                    .map(|value| Value::from(value.to_bits()))
                    .collect(),
            ),
            Values::Int64(values) => (
                "int64",
                values.iter().copied().map(Value::from).collect::<Vec<_>>(),
            ),
        };
        json!({"name": name, "kind": kind, "values": values})
    };
    Value::Array(record.iter().map(feature).collect())
}

/// Returns an ImageNet sample whose image is noise of slightly more than `number` KiB.
fn image(number: i64) -> Record {
    let noise = (0..number as u32 * 1024 + 13).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8);
    let boxes: Vec<f32> = (0..number % 4).map(|i| i as f32 / 7.0).collect();
    let bytes = |text: &str| Values::Bytes(vec![text.as_bytes().to_vec()]);
    vec![
        ("image/height".to_owned(), Values::Int64(vec![300 + number])),
        ("image/width".to_owned(), Values::Int64(vec![400 + number])),
        (
            "image/class/label".to_owned(),
            Values::Int64(vec![number + 1]),
        ),
        ("image/object/bbox/xmin".to_owned(), Values::Float(boxes)),
        (
            "image/filename".to_owned(),
            bytes(&format!("n01440764_{number}.JPEG")),
        ),
        (
            "image/encoded".to_owned(),
            Values::Bytes(vec![noise.collect()]),
        ),
    ]
}

/// Returns extreme values, empty lists, and unusual names.
fn edges() -> Record {
    let ints = vec![0, 1, -1, 127, 128, i64::MAX, i64::MIN];
    let floats = vec![
        0.0,
        -0.0,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        f32::INFINITY,
        -1.25,
    ];
    vec![
        ("a/ints".to_owned(), Values::Int64(ints)),
        ("a/floats".to_owned(), Values::Float(floats)),
        (
            "a/bytes".to_owned(),
            Values::Bytes(vec![vec![0, 255, 10], vec![], b"a".to_vec()]),
        ),
        ("none/ints".to_owned(), Values::Int64(vec![])),
        ("none/floats".to_owned(), Values::Float(vec![])),
        ("none/bytes".to_owned(), Values::Bytes(vec![])),
        ("näme/日本".to_owned(), Values::Int64(vec![2])),
        (String::new(), Values::Int64(vec![3])),
    ]
}

/// Returns one long value, and a list whose encoded length takes several bytes.
fn long() -> Record {
    vec![
        ("long".to_owned(), Values::Bytes(vec![vec![7; 3 << 20]])),
        (
            "many".to_owned(),
            Values::Int64((0..5000).map(|i| i * i - 1_000_000).collect()),
        ),
    ]
}
