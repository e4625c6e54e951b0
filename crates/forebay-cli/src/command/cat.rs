//! `forebay cat`: prints one record or one of its features.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use forebay_image::{Limits, probe, standard_image};
use forebay_shard::ExampleView;
use forebay_shard::example::{FeatureKind, FeatureView, RecordFeatures};
use forebay_shard::manifest::{escape_key, unescape_key};
use forebay_store::{Durability, write_file};
use serde_json::json;

use crate::console::Console;
use crate::contents::{Contents, Located};
use crate::failure::{Failure, Outcome, counted_choices};
use crate::input::show;
use crate::paint::{printable, printable_bytes};
use crate::quantity;
use crate::store_args::StoreArgs;
use crate::table::{Align, Table};

/// Print a record, or one stored feature of it
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  forebay cat shards/ 0 --split train
  forebay cat shards/ --key n01440764/n01440764_10026.JPEG
  forebay cat shards/ 7 --split train --feature image/encoded -o picture.jpg
  forebay cat shards/train-00000-of-00004 0 --json
  forebay cat s3://bucket/shards 0 --split train")]
pub(crate) struct Args {
    /// A dataset (the directory or URL with forebay.json) or one shard
    #[arg(value_name = "DATASET|SHARD")]
    path: PathBuf,

    /// Number of the record, from 0
    #[arg(
        value_name = "INDEX",
        required_unless_present = "key",
        conflicts_with = "key"
    )]
    index: Option<u64>,

    /// Find the record by its key instead: the path below its split's directory
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// The split to look in, where there are several
    #[arg(long, value_name = "NAME")]
    split: Option<String>,

    /// Only this feature, byte for byte
    #[arg(long, value_name = "NAME")]
    feature: Option<String>,

    /// Write to a file instead of stdout; `-` is stdout even if it is a terminal
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    store: StoreArgs,
}

/// Longest text value that is printed, in bytes.
const TEXT_LIMIT: usize = 400;

/// Maximum number of list elements to print in text output.
const SHOWN_NUMBERS: usize = 12;

/// Number of leading bytes of a binary value to print.
const SHOWN_BYTES: usize = 12;

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let contents = Contents::open(&args.path, &args.store.options())?;
    let split = args.split.as_deref();
    let located = match (&args.key, args.index) {
        (Some(key), _) => contents.by_key(split, &key_bytes(key))?,
        (None, Some(index)) => contents.by_index(split, index)?,
        (None, None) => return Err(Failure::usage("name a record: its number, or --key KEY")),
    };
    let mut record = Vec::new();
    located.shard.read(located.record, &mut record)?;
    let parsed = ExampleView::parse(&record);
    let example = parsed.map_err(|source| forebay_shard::Error::Example {
        shard: located.shard.path().to_owned(),
        record: located.record,
        source,
    });
    let place = format!("{}: record {}", show(located.shard.path()), located.record);
    let to_stdout = args
        .output
        .as_deref()
        .is_none_or(|path| path == Path::new("-"));
    if console.is_json() && args.feature.is_some() && to_stdout {
        return Err(
            Failure::usage("bytes of a feature and --json do not go to stdout together")
                .hint("write the feature to a file with -o FILE, or leave out --json"),
        );
    }
    match &args.feature {
        Some(name) => {
            let features = contents.record_features();
            let bytes = feature_bytes(example?, name, features, &place)?;
            write_out(&bytes, args.output.as_deref(), console)?;
        }
        None if args.output.is_some() => {
            // The record is written as stored, so it need not be a valid Example.
            write_out(&Value::Binary(record), args.output.as_deref(), console)?;
        }
        None => print_record(&located, record.len(), example?, console)?,
    }
    console.event("summary", &json!({"command": "cat", "exit_code": 0}));
    Ok(Outcome::Done)
}

/// Parses a key in the form that `inspect` and `cat` print: `\xNN` stands for a byte that is not UTF-8.
fn key_bytes(key: &str) -> Vec<u8> {
    unescape_key(key).unwrap_or_else(|| key.as_bytes().to_vec())
}

/// The value of a feature in the form that is written to a file or stdout.
enum Value {
    Binary(Vec<u8>),
    Lines(String),
}

fn feature_bytes(
    example: ExampleView<'_>,
    name: &str,
    features: &RecordFeatures,
    place: &str,
) -> Result<Value, Failure> {
    let Some(feature) = example.get(name) else {
        // A record in the fast encoding has no feature of this name: restore the JPEG.
        if name == features.image
            && let Ok(Some(image)) = features.image(example)
        {
            let image = standard_image(image, &Limits::default());
            let image = image.map_err(|error| Failure::new(format!("{place}: {error}")))?;
            return Ok(Value::Binary(image.into_owned()));
        }
        let names: Vec<&str> = example.iter().map(FeatureView::name).collect();
        return Err(Failure::new(format!("{place} has no feature {name:?}"))
            .hint(format!("it has {}", counted_choices(&names))));
    };
    let broken = |error| Failure::new(format!("{place}: {error}"));
    fn lines(numbers: impl Iterator<Item = String>) -> Value {
        Value::Lines(numbers.map(|number| number + "\n").collect())
    }
    match feature.kind().map_err(broken)? {
        FeatureKind::Int64 => Ok(lines(
            feature.int64s().map_err(broken)?.iter().map(i64::to_string),
        )),
        FeatureKind::Float => Ok(lines(
            feature.floats().map_err(broken)?.iter().map(f32::to_string),
        )),
        FeatureKind::Bytes => match feature.bytes_list().map_err(broken)?.as_slice() {
            [one] => Ok(Value::Binary(one.to_vec())),
            many => Err(Failure::new(format!(
                "{place}: feature {name:?} holds {} byte strings, not one",
                many.len()
            ))
            .hint("`forebay cat` with --json shows all of them")),
        },
        FeatureKind::Unset => Ok(Value::Binary(Vec::new())),
    }
}

fn write_out(value: &Value, output: Option<&Path>, console: &Console) -> Result<(), Failure> {
    let bytes = match value {
        Value::Binary(bytes) => bytes.as_slice(),
        Value::Lines(text) => text.as_bytes(),
    };
    match output {
        Some(path) if path != Path::new("-") => {
            write_file(path, bytes, Durability::Synced)?;
            console.note(format!(
                "{} written to {}",
                quantity::bytes(bytes.len() as u64),
                show(path)
            ));
        }
        explicit => {
            let binary = matches!(value, Value::Binary(bytes) if is_binary(bytes));
            if binary && explicit.is_none() && io::stdout().is_terminal() {
                return Err(Failure::new(format!(
                    "{} of binary data are nothing for a terminal",
                    quantity::bytes(bytes.len() as u64)
                ))
                .hint("write them to a file with -o FILE, or pipe them somewhere"));
            }
            console.write_bytes(bytes);
        }
    }
    Ok(())
}

fn is_binary(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).map_or(true, |text| {
        text.chars()
            .any(|c| c.is_control() && !"\n\r\t".contains(c))
    })
}

fn print_record(
    located: &Located,
    len: usize,
    example: ExampleView<'_>,
    console: &Console,
) -> Result<(), Failure> {
    let key = escape_key(&located.shard.key(located.record)?).to_string();
    let name = match &located.split {
        Some(split) => format!("{split} {}", quantity::count(located.index)),
        None => quantity::count(located.index),
    };
    console.heading(format!(
        "Record {name}: number {} in {}, {}",
        quantity::count(located.record),
        show(located.shard.path()),
        quantity::bytes(len as u64)
    ));
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left), ("", Align::Left)]);
    if !key.is_empty() {
        table.row(["key".to_owned(), String::new(), printable(&key)]);
    }
    let mut features = BTreeMap::new();
    for feature in example.iter() {
        let broken = |source| forebay_shard::Error::Example {
            shard: located.shard.path().to_owned(),
            record: located.record,
            source,
        };
        let kind = feature.kind().map_err(broken)?;
        let (text, values) = match kind {
            FeatureKind::Int64 => numbers(&feature.int64s().map_err(broken)?),
            FeatureKind::Float => numbers(&feature.floats().map_err(broken)?),
            FeatureKind::Bytes => {
                let list = feature.bytes_list().map_err(broken)?;
                let text: Vec<String> = list.iter().map(|value| describe(value)).collect();
                (
                    text.join(", "),
                    list.iter().map(|value| json_bytes(value)).collect(),
                )
            }
            FeatureKind::Unset => (String::new(), Vec::new()),
        };
        table.row([printable(feature.name()), kind.to_string(), text]);
        features.insert(
            feature.name().to_owned(),
            json!({"kind": kind.to_string(), "values": values}),
        );
    }
    console.table(&table);
    console.event(
        "record",
        &json!({
            "shard": located.shard.path().display().to_string(),
            "split": located.split.clone(),
            "index": located.index,
            "record": located.record,
            "key": key,
            "bytes": len,
            "features": features,
        }),
    );
    Ok(())
}

fn numbers<T: ToString + Copy + Into<serde_json::Value>>(
    list: &[T],
) -> (String, Vec<serde_json::Value>) {
    let mut text: Vec<String> = list.iter().take(SHOWN_NUMBERS).map(T::to_string).collect();
    if list.len() > SHOWN_NUMBERS {
        text.push(format!("... {} in all", quantity::count(list.len() as u64)));
    }
    if list.is_empty() {
        text.push("(empty list)".to_owned());
    }
    (
        text.join(", "),
        list.iter().map(|value| (*value).into()).collect(),
    )
}

/// Describes a byte string in text output: format and size of an image, the text itself, or length and first bytes.
fn describe(bytes: &[u8]) -> String {
    if let Ok(probe) = probe(bytes, &Limits::default()) {
        return format!(
            "{}, {} x {}, {}",
            probe.format,
            probe.width,
            probe.height,
            quantity::bytes(bytes.len() as u64)
        );
    }
    if bytes.len() <= TEXT_LIMIT && !is_binary(bytes) {
        return printable_bytes(bytes);
    }
    let start: Vec<String> = bytes
        .iter()
        .take(SHOWN_BYTES)
        .map(|b| format!("{b:02x}"))
        .collect();
    format!(
        "{} starting {}",
        quantity::bytes(bytes.len() as u64),
        start.join(" ")
    )
}

/// Describes a byte string in JSON: its length, and its text if it is UTF-8 of at most [`TEXT_LIMIT`] bytes.
fn json_bytes(bytes: &[u8]) -> serde_json::Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if bytes.len() <= TEXT_LIMIT => json!({"bytes": bytes.len(), "text": text}),
        _ => json!({"bytes": bytes.len()}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_described_by_their_content() {
        assert_eq!(describe(b"tench"), "tench");
        assert_eq!(describe(&[0, 1, 2]), "3 B starting 00 01 02");
        let png = forebay_image::encode_png(&[7; 3 * 4 * 2], 4, 2);
        assert!(describe(&png).contains("4 x 2"), "{}", describe(&png));
    }

    #[test]
    fn text_and_binary_values_are_told_apart() {
        assert!(!is_binary("größe\n".as_bytes()));
        assert!(is_binary(b"\xff\xd8"));
        assert!(is_binary(b"a\0b"));
    }
}
