//! Values of columns as text.

use std::collections::BTreeSet;
use std::fmt::Write;

use forebay_shard::ColumnValue;

/// Maximum number of elements of a list to show.
const MAX_ELEMENTS: usize = 64;
/// Maximum number of characters of a text to show.
const MAX_CHARS: usize = 4000;

/// Returns a value as text. Bytes that are not text are described by their length, long lists and texts are cut. `title` returns
/// the title of a label's class.
pub(super) fn text(value: &ColumnValue<'_>, title: impl Fn(i64) -> String) -> String {
    match value {
        ColumnValue::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains(|c: char| c.is_control() && !"\n\r\t".contains(c)) => {
                text.chars().take(MAX_CHARS).collect()
            }
            _ => format!("{} bytes", bytes.len()),
        },
        ColumnValue::List(values) => {
            let values = values.iter().map(|value| String::from_utf8_lossy(value));
            list(&values.collect::<Vec<_>>())
                .chars()
                .take(MAX_CHARS)
                .collect()
        }
        ColumnValue::Int(number) => number.to_string(),
        ColumnValue::Float(number) => number.to_string(),
        ColumnValue::Ints(numbers) => list(numbers),
        ColumnValue::Floats(numbers) => list(numbers),
        ColumnValue::Tensor { shape, bytes } => format!("shape {shape:?}, {} bytes", bytes.len()),
        ColumnValue::Boxes { boxes, labels } => {
            let classes: BTreeSet<i64> = labels.iter().copied().collect();
            let titles: Vec<String> = classes.into_iter().map(title).collect();
            format!("{} boxes: {}", boxes.len(), list(&titles))
        }
        ColumnValue::Keypoints { points, .. } => format!("{} points", points.len()),
        _ => String::new(),
    }
}

fn list<T: std::fmt::Display>(numbers: &[T]) -> String {
    let mut text = String::new();
    for (at, number) in numbers.iter().take(MAX_ELEMENTS).enumerate() {
        let gap = if at > 0 { ", " } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{gap}{number}");
    }
    match numbers.len() > MAX_ELEMENTS {
        true => format!("{text}, ... {} in all", numbers.len()),
        false => text,
    }
}
