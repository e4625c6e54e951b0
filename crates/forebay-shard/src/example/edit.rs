//! Edits single features of an encoded Example and keeps all other bytes.

use super::ExampleError;
use super::builder::{List, put_entry};
use super::view::FeatureView;
use super::wire::{Piece, Value, put_bytes_head};

/// A change of one feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureEdit<'a> {
    /// Removes the feature.
    Remove,
    /// Sets a bytes feature with one value.
    Bytes(&'a [u8]),
    /// Sets an int64 feature with one value.
    Int64(i64),
}

/// Copies a record to `out`, which is cleared first, with some bytes features set or removed.
/// `edits` are names in ascending order, each with the new value, or `None` to remove the feature.
/// [`edit_features`] also sets integers.
///
/// All other features keep their bytes and their order, and unknown fields are kept too. A new
/// feature is placed before the first one with a greater name, so an Example with sorted features,
/// as [`ExampleBuilder`](super::ExampleBuilder) writes them, stays sorted.
///
/// # Errors
/// [`ExampleError::Encoding`] if the record is not an Example.
///
/// ```
/// use forebay_shard::{ExampleBuilder, example::set_bytes};
///
/// let mut builder = ExampleBuilder::new();
/// builder.add_int64("label", 7).add_bytes("id", b"a");
/// let old = builder.to_vec();
/// let mut new = Vec::new();
/// set_bytes(&old, &[("id", None), ("image", Some(b"..."))], &mut new)?;
///
/// let mut builder = ExampleBuilder::new();
/// builder.add_int64("label", 7).add_bytes("image", b"...");
/// assert_eq!(new, builder.to_vec());
/// # Ok::<(), forebay_shard::ExampleError>(())
/// ```
pub fn set_bytes(
    record: &[u8],
    edits: &[(&str, Option<&[u8]>)],
    out: &mut Vec<u8>,
) -> Result<(), ExampleError> {
    let edits = edits.iter().map(|(name, value)| {
        let edit = value.map_or(FeatureEdit::Remove, FeatureEdit::Bytes);
        (*name, edit)
    });
    let edits: Vec<_> = edits.collect();
    edit_features(record, &edits, out)
}

/// Copies a record to `out`, which is cleared first, with some features changed. `edits` are names
/// in ascending order, each with its change.
///
/// All other features keep their bytes and their order: see [`set_bytes`].
///
/// # Errors
/// [`ExampleError::Encoding`] if the record is not an Example.
pub fn edit_features(
    record: &[u8],
    edits: &[(&str, FeatureEdit<'_>)],
    out: &mut Vec<u8>,
) -> Result<(), ExampleError> {
    debug_assert!(edits.is_sorted_by(|a, b| a.0 < b.0));
    out.clear();
    let whole = Piece {
        bytes: record,
        offset: 0,
    };
    // Protobuf merges several `features` fields into one message; new features go into the last of
    // them.
    let mut messages = 0;
    for field in whole.fields() {
        messages += usize::from(field?.0 == 1);
    }
    let mut body = Vec::with_capacity(record.len());
    let mut fields = whole.fields();
    let mut start = 0;
    while let Some((number, value)) = fields.next().transpose()? {
        let end = fields.offset();
        match (number, value) {
            (1, Value::Bytes(features)) => {
                messages -= 1;
                body.clear();
                change(features, edits, messages == 0, &mut body)?;
                put_bytes_head(out, 1, body.len());
                out.extend_from_slice(&body);
                body.clear();
            }
            (1, _) => return Err(fields.wrong_type()),
            _ => out.extend_from_slice(&record[start..end]),
        }
        start = end;
    }
    if !whole.fields().any(|field| matches!(field, Ok((1, _)))) {
        let none = Piece {
            bytes: &[],
            offset: record.len(),
        };
        change(none, edits, true, &mut body)?;
        put_bytes_head(out, 1, body.len());
        out.extend_from_slice(&body);
    }
    Ok(())
}

impl<'a> FeatureEdit<'a> {
    /// Returns the new values; `None` to remove the feature.
    fn list(self) -> Option<List<'a>> {
        match self {
            Self::Remove => None,
            Self::Bytes(value) => Some(List::One(value)),
            Self::Int64(value) => Some(List::Int64(value)),
        }
    }
}

/// Copies the entries of a `Features` message. New features are added only to the last message.
fn change(
    features: Piece<'_>,
    edits: &[(&str, FeatureEdit<'_>)],
    last: bool,
    out: &mut Vec<u8>,
) -> Result<(), ExampleError> {
    let mut new = edits
        .iter()
        .filter_map(|(name, edit)| Some((*name, edit.list().filter(|_| last)?)))
        .peekable();
    let mut fields = features.fields();
    let mut start = 0;
    while let Some((number, value)) = fields.next().transpose()? {
        let end = fields.offset() - features.offset;
        let mut keep = true;
        match (number, value) {
            (1, Value::Bytes(entry)) => {
                let name = FeatureView::parse(entry)?.name();
                while let Some((new, value)) = new.next_if(|(new, _)| *new < name) {
                    put_entry(out, new, &value);
                }
                keep = edits.iter().all(|(edited, _)| *edited != name);
            }
            (1, _) => return Err(fields.wrong_type()),
            _ => {}
        }
        if keep {
            out.extend_from_slice(&features.bytes[start..end]);
        }
        start = end;
    }
    for (name, value) in new {
        put_entry(out, name, &value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExampleBuilder, ExampleView};

    fn edited(record: &[u8], edits: &[(&str, Option<&[u8]>)]) -> Vec<u8> {
        let mut out = b"left over".to_vec();
        set_bytes(record, edits, &mut out).unwrap();
        out
    }

    #[test]
    fn edited_records_equal_built_records() {
        let build = |features: &[(&'static str, &'static [u8])]| {
            let mut builder = ExampleBuilder::new();
            builder.add_int64("m", 5).add_floats("f", &[1.0, 2.0]);
            for (name, value) in features {
                builder.add_bytes(name, value);
            }
            builder.to_vec()
        };
        let plain = build(&[]);
        for name in ["", "a", "f", "g", "m", "z"] {
            if ["f", "m"].contains(&name) {
                continue;
            }
            let with = build(&[(name, b"value")]);
            assert_eq!(edited(&plain, &[(name, Some(b"value"))]), with, "{name}");
            assert_eq!(edited(&with, &[(name, None)]), plain, "{name}");
            let other = build(&[(name, b"other")]);
            assert_eq!(edited(&with, &[(name, Some(b"other"))]), other, "{name}");
        }
        let two = edited(&plain, &[("a", Some(b"1")), ("z", Some(b"2"))]);
        assert_eq!(two, build(&[("a", b"1"), ("z", b"2")]));
        assert_eq!(edited(&plain, &[]), plain);
    }

    #[test]
    fn a_bytes_feature_can_become_an_integer() {
        let mut builder = ExampleBuilder::new();
        builder
            .add_bytes("label", b"cat")
            .add_bytes("image", b"jpeg");
        let mut out = Vec::new();
        let edits = [
            ("image/label", FeatureEdit::Int64(3)),
            ("label", FeatureEdit::Remove),
        ];
        edit_features(&builder.to_vec(), &edits, &mut out).unwrap();
        let mut expected = ExampleBuilder::new();
        expected
            .add_int64("image/label", 3)
            .add_bytes("image", b"jpeg");
        assert_eq!(out, expected.to_vec());
        let edits = [("label", FeatureEdit::Int64(-1))];
        edit_features(&builder.to_vec(), &edits, &mut out).unwrap();
        let view = ExampleView::parse(&out).unwrap();
        assert_eq!(view.int64("label"), Ok(Some(-1)));
    }

    #[test]
    fn other_features_keep_their_bytes_and_order() {
        // Two Features messages, unsorted and duplicate features, and unknown fields.
        let entry = |name: &str, value: &[u8]| {
            let mut out = Vec::new();
            put_entry(&mut out, name, &List::One(value));
            out
        };
        let message = |parts: &[&[u8]]| {
            let body = parts.concat();
            let mut out = Vec::new();
            put_bytes_head(&mut out, 1, body.len());
            [out, body].concat()
        };
        let unknown: &[u8] = &[0x78, 1];
        let (z, x, a) = (entry("z", b"1"), entry("x", b"2"), entry("a", b"3"));
        let (x2, new) = (entry("x", b"4"), entry("x", b"new"));
        let record = [
            &message(&[&z, &x])[..],
            unknown,
            &message(&[&a, unknown, &x2]),
        ]
        .concat();
        assert_eq!(edited(&record, &[]), record);
        let without = [&message(&[&z])[..], unknown, &message(&[&a, unknown])].concat();
        assert_eq!(edited(&record, &[("x", None)]), without);
        let changed = [&message(&[&z])[..], unknown, &message(&[&a, unknown, &new])].concat();
        assert_eq!(edited(&record, &[("x", Some(b"new"))]), changed);
        let view = ExampleView::parse(&changed).unwrap();
        assert_eq!(view.bytes("x"), Ok(Some(&b"new"[..])));
        assert_eq!(edited(b"", &[("x", Some(b"new"))]), message(&[&new]));
    }

    #[test]
    fn records_that_are_not_examples_are_refused() {
        let record = ExampleBuilder::new().add_bytes("a", b"value").to_vec();
        for cut in 1..record.len() {
            assert!(set_bytes(&record[..cut], &[("b", None)], &mut Vec::new()).is_err());
        }
        // `features` and a map entry encoded as numbers.
        for bad in [&[0x08, 1][..], &[0x0a, 2, 0x08, 1]] {
            assert!(set_bytes(bad, &[("b", None)], &mut Vec::new()).is_err());
        }
    }
}
