//! Lists of lists as JSON text.

use super::fields::{Field, LeafType};
use super::values::Values;
use std::io::Write;
use std::ops::Range;

/// Appends the lists of a row as JSON. `levels` are the definition and repetition levels of its entries, `row` its values.
pub(super) fn write_json(
    field: &Field,
    levels: (&[i16], &[i16]),
    values: &Values,
    row: Range<usize>,
    json: &mut Vec<u8>,
) -> Result<(), String> {
    let mut rest = row;
    let write = |json: &mut Vec<u8>| {
        let value = rest.next().ok_or("it has too few values")?;
        write_value(field, values, value, json)
    };
    assemble(levels, &field.lists, field.max_definition, write, json)
        .map_err(|what| format!("the column {:?}: {what}", field.name))
}

/// Appends the brackets and commas of nested lists, whose values `write` appends. `lists` has the definition level of the
/// elements of each list, from outside.
fn assemble(
    (definitions, repetitions): (&[i16], &[i16]),
    lists: &[i16],
    max_definition: i16,
    mut write: impl FnMut(&mut Vec<u8>) -> Result<(), String>,
    json: &mut Vec<u8>,
) -> Result<(), String> {
    let mut open = 0;
    for (entry, (&definition, &repetition)) in definitions.iter().zip(repetitions).enumerate() {
        if entry > 0 {
            // The entry is a further element of the list of this depth.
            let depth = usize::try_from(repetition).unwrap_or(0);
            if depth == 0 || depth > open {
                return Err("its levels are not those of nested lists".to_owned());
            }
            json.resize(json.len() + open - depth, b']');
            json.push(b',');
            open = depth;
        }
        loop {
            match lists.get(open) {
                Some(&elements) if definition >= elements => {
                    json.push(b'[');
                    open += 1;
                    continue;
                }
                Some(&elements) if definition == elements - 1 => json.extend_from_slice(b"[]"),
                None if definition == max_definition => write(json)?,
                _ => json.extend_from_slice(b"null"),
            }
            break;
        }
    }
    json.resize(json.len() + open, b']');
    Ok(())
}

fn write_value(
    field: &Field,
    values: &Values,
    at: usize,
    json: &mut Vec<u8>,
) -> Result<(), String> {
    let one = at..at + 1;
    let finite = |number: f64, text: String| match number.is_finite() {
        true => Ok(text),
        false => Err(format!("it has {number}, which JSON cannot hold")),
    };
    let text = match field.leaf_type {
        LeafType::Bool => (values.integers(one, field)?.first() == Some(&1)).to_string(),
        LeafType::Int | LeafType::Unsigned => {
            let number = values.integers(one, field)?;
            number.first().copied().unwrap_or_default().to_string()
        }
        LeafType::Float => {
            let number = values.floats(one).first().copied().unwrap_or_default();
            finite(number.into(), format!("{number:?}"))?
        }
        LeafType::Double => {
            let number = values.doubles(one).first().copied().unwrap_or_default();
            finite(number, format!("{number:?}"))?
        }
        LeafType::Text | LeafType::Bytes => {
            let bytes = values.bytes(one).next().unwrap_or_default();
            let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
            return serde_json::to_writer(json, text).map_err(|error| error.to_string());
        }
    };
    json.write_all(text.as_bytes())
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The JSON of entries of optional lists of optional numbers, in two lists: elements of the outer list have the level 2,
    /// of the inner one 4, values 5.
    fn json(definitions: &[i16], repetitions: &[i16]) -> Result<String, String> {
        let (mut json, mut next) = (Vec::new(), 0);
        let write = |json: &mut Vec<u8>| {
            next += 1;
            json.extend_from_slice(next.to_string().as_bytes());
            Ok(())
        };
        assemble((definitions, repetitions), &[2, 4], 5, write, &mut json)?;
        Ok(String::from_utf8(json).unwrap())
    }

    #[test]
    fn levels_become_brackets() {
        for (definitions, repetitions, expected) in [
            (&[0][..], &[0][..], "null"),
            (&[1], &[0], "[]"),
            (&[2], &[0], "[null]"),
            (&[3], &[0], "[[]]"),
            (&[4], &[0], "[[null]]"),
            (&[5, 5, 5, 5], &[0, 2, 1, 2], "[[1,2],[3,4]]"),
            (&[3, 5, 4, 2], &[0, 1, 2, 1], "[[],[1,null],null]"),
        ] {
            assert_eq!(json(definitions, repetitions).unwrap(), expected);
        }
    }

    #[test]
    fn levels_that_do_not_fit_are_refused() {
        for (definitions, repetitions) in [
            (&[1, 5][..], &[0, 1][..]),
            (&[3, 5], &[0, 2]),
            (&[5, 5], &[0, 3]),
            (&[5, 5], &[0, -1]),
        ] {
            assert!(json(definitions, repetitions).is_err(), "{repetitions:?}");
        }
    }
}
