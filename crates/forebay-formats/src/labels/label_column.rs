//! The column that holds labels: either numbers or names of classes.

use super::rows::{self, Cell};
use crate::finding::escape;
use std::borrow::Cow;

/// The value of a label column in one row.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LabelValue<'a> {
    None,
    Number(i64),
    Name(Cow<'a, [u8]>),
}

/// The kinds of values that a label column has had so far, each with the line number of its first occurrence.
#[derive(Debug, Default)]
pub(super) struct LabelKinds {
    /// Digits without leading zeros.
    digits: Option<FirstValue>,
    /// Digits with leading zeros, which are names such as `007`.
    padded: Option<FirstValue>,
    /// Other integers: `-1`, `1.0`.
    number: Option<FirstValue>,
    name: Option<FirstValue>,
}

#[derive(Debug)]
struct FirstValue {
    line: u64,
    text: String,
}

/// Labels must be below this integer (2^53), so that a float64 represents them exactly.
const FLOAT_LABEL_MAX: f64 = 9_007_199_254_740_992.0;

enum Class {
    Digits,
    Padded,
    Number,
    Name,
}

impl LabelKinds {
    /// Adds the value of a line. If `by_name`, every value is the name of a class.
    pub(super) fn see(&mut self, line: u64, cell: &Cell<'_>, by_name: bool) -> Result<(), String> {
        let text = match cell {
            Cell::List(values) => {
                return Err(format!(
                    "the label is a list of {} values: an image has one label; give a list another column name",
                    values.len()
                ));
            }
            cell => cell.to_bytes(),
        };
        let text = text.trim_ascii();
        if text.is_empty() {
            return Ok(());
        }
        let slot = match if by_name {
            Class::Name
        } else {
            classify(text)?
        } {
            Class::Digits => &mut self.digits,
            Class::Padded => &mut self.padded,
            Class::Number => &mut self.number,
            Class::Name => &mut self.name,
        };
        slot.get_or_insert_with(|| FirstValue {
            line,
            text: escape(text),
        });
        Ok(())
    }

    /// Returns whether the values are numbers; an error if numbers and names are mixed.
    pub(super) fn are_numbers(&self) -> Result<bool, String> {
        let number = self.number.as_ref().or(self.digits.as_ref());
        // Names padded to one width, such as 001 to 120, are not a mixture.
        let name = self.name.as_ref().or(self.padded.as_ref());
        let padded_only = self.name.is_none() && self.number.is_none();
        match (number, name) {
            (Some(number), Some(name)) if !padded_only => Err(format!(
                "line {}: the label {:?} is a name, and line {} has the number {}: a label column holds numbers or names of classes, not both; leave the value empty where there is no label",
                name.line, name.text, number.line, number.text
            )),
            (_, Some(_)) => Ok(false),
            _ => Ok(true),
        }
    }

    /// Returns the first number and its line, for an error about a column of names.
    pub(super) fn first_number(&self) -> Option<(u64, &str)> {
        let seen = self.digits.as_ref().or(self.number.as_ref());
        seen.map(|seen| (seen.line, seen.text.as_str()))
    }
}

fn classify(text: &[u8]) -> Result<Class, String> {
    let is_digits = text.iter().all(u8::is_ascii_digit);
    if rows::integer(text).is_some() {
        return Ok(if is_digits {
            Class::Digits
        } else {
            Class::Number
        });
    }
    if is_digits && text.starts_with(b"0") {
        return Ok(Class::Padded);
    }
    match decimal(text) {
        None => Ok(Class::Name),
        Some(number) if whole(number).is_some() => Ok(Class::Number),
        Some(_) => Err(format!(
            "the label {} is not an integer",
            String::from_utf8_lossy(text)
        )),
    }
}

/// Parses a number with a decimal point or an exponent.
fn decimal(text: &[u8]) -> Option<f64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let begins = digits.first()?;
    if !begins.is_ascii_digit() && *begins != b'.' {
        return None;
    }
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    number.is_finite().then_some(number)
}

fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= FLOAT_LABEL_MAX).then_some(number as i64)
}

/// Returns the label of a row in a column of numbers or of names; `None` if the value is of the other kind.
pub(super) fn label_value<'a>(cell: &'a Cell<'_>, by_number: bool) -> Option<LabelValue<'a>> {
    let text = match cell.to_bytes() {
        Cow::Borrowed(text) => Cow::Borrowed(text.trim_ascii()),
        owned => owned,
    };
    if text.is_empty() {
        return Some(LabelValue::None);
    }
    if !by_number {
        return Some(LabelValue::Name(text));
    }
    let number = rows::integer(&text).or_else(|| whole(decimal(&text)?))?;
    Some(LabelValue::Number(number))
}
