//! Selects and sorts records of a snapshot, and counts them in histograms.

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

use super::scan::Catalog;
use super::table::{Row, Snapshot};

/// Number of buckets of sizes: powers of two.
const SIZE_BUCKETS: usize = 33;
/// Number of buckets of aspects: quarters of an octave, from 1:4 to 4:1.
const ASPECT_BUCKETS: usize = 17;

/// Which records to show, and in which order.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Query {
    pub(super) split: Option<String>,
    class: Option<i32>,
    /// Part of the key; letters of ASCII match in both cases.
    key: String,
    column: String,
    /// Part of the value of `column`, or a number after `=`, `<` or `>`.
    value: String,
    /// Only records that are suspicious for one of these reasons; 0 for all.
    reasons: u8,
    sort: Sort,
    descending: bool,
}

/// The order of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sort {
    #[default]
    Number,
    Bytes,
    Pixels,
    Aspect,
    Suspicious,
}

/// The numbers of records that a query selects, in order.
pub(super) type Selection = Arc<Vec<u32>>;

/// The last result, so that its pages need no further pass.
#[derive(Debug, Default)]
pub(super) struct LastResult(Mutex<Option<(Query, Selection)>>);

impl LastResult {
    /// Returns the selection of a query; the kept one, unless it is to be made again.
    pub(super) fn get(
        &self,
        catalog: &Catalog,
        query: &Query,
        again: bool,
    ) -> Result<Selection, String> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock().clone().filter(|(kept, _)| kept == query && !again);
        if let Some((_, selection)) = kept {
            return Ok(selection);
        }
        let selection = query.select(catalog)?;
        *lock() = Some((query.clone(), Arc::clone(&selection)));
        Ok(selection)
    }
}

impl Query {
    fn select(&self, catalog: &Catalog) -> Result<Selection, String> {
        let snapshot = catalog.table.snapshot();
        let range = match &self.split {
            None => 0..catalog.source.len(),
            Some(name) => catalog.source.split(name)?.records.clone(),
        };
        let mut columns = catalog.columns.iter();
        let column = columns.position(|column| column.name == self.column);
        if column.is_none() && !self.column.is_empty() {
            return Err(format!(
                "the values of column {:?} are not kept",
                self.column
            ));
        }
        if let Some(number) = self.value.strip_prefix(['=', '<', '>'])
            && number.trim().parse::<f64>().is_err()
        {
            return Err(format!(
                "{:?}: expected a number after the sign",
                self.value
            ));
        }
        let holds = |row: &Row<'_>| {
            range.contains(&row.number.into())
                && (self.class.is_none() || row.facts.label == self.class)
                && contains(row.key(), self.key.as_bytes())
                && column.is_none_or(|column| matches(row.column(column), &self.value))
                && (self.reasons == 0 || snapshot.reasons(row) & self.reasons != 0)
        };
        let chosen = snapshot.rows().filter(holds);
        let mut ranked: Vec<(u64, u32)> = chosen
            .map(|row| (self.rank(&row, &snapshot), row.number))
            .collect();
        match self.descending {
            false => ranked.sort_unstable(),
            true => ranked.sort_unstable_by(|a, b| b.cmp(a)),
        }
        let numbers = ranked.into_iter().map(|(_, number)| number);
        Ok(Arc::new(numbers.collect()))
    }

    /// Returns the position of a record in the order, apart from its number.
    fn rank(&self, row: &Row<'_>, snapshot: &Snapshot) -> u64 {
        match self.sort {
            Sort::Number => 0,
            Sort::Bytes => row.facts.bytes.into(),
            Sort::Pixels => pixels(row),
            // The bits of positive floats are in the order of the numbers.
            Sort::Aspect => aspect(row).to_bits().into(),
            // Images that look alike are side by side.
            Sort::Suspicious => {
                let twin = snapshot.twins.get(&row.number).copied();
                let worst = snapshot.reasons(row).trailing_zeros();
                u64::from(worst) << 32 | u64::from(twin.unwrap_or(0))
            }
        }
    }
}

fn pixels(row: &Row<'_>) -> u64 {
    u64::from(row.facts.size.0) * u64::from(row.facts.size.1)
}

/// Returns width by height; 0 if they are unknown.
fn aspect(row: &Row<'_>) -> f32 {
    row.facts.size.0 as f32 / row.facts.size.1.max(1) as f32
}

/// Returns whether a text has a part, where letters of ASCII match in both cases.
fn contains(text: &[u8], part: &[u8]) -> bool {
    let mut starts = text.windows(part.len().max(1));
    part.is_empty() || starts.any(|start| start.eq_ignore_ascii_case(part))
}

/// Returns whether the value of a column passes a test: a part of it, or a number after a sign.
fn matches(value: &[u8], test: &str) -> bool {
    let order = match test.as_bytes().first() {
        Some(b'=') => Ordering::Equal,
        Some(b'<') => Ordering::Less,
        Some(b'>') => Ordering::Greater,
        _ => return contains(value, test.as_bytes()),
    };
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let value = std::str::from_utf8(value).ok().and_then(number);
    let both = value.zip(number(&test[1..]));
    both.and_then(|(value, limit)| value.partial_cmp(&limit)) == Some(order)
}

/// Counts records by size and aspect. Bucket `n` of `bytes` and `pixels` has sizes from `2^(n-1)` up to `2^n`, bucket `n` of
/// `aspects` is around `2^((n-8)/4)`, and `unknown` counts those without dimensions.
pub(super) fn histograms(selection: &Selection, snapshot: &Snapshot) -> Value {
    let (mut bytes, mut areas) = (vec![0u64; SIZE_BUCKETS], vec![0u64; SIZE_BUCKETS]);
    let (mut aspects, mut unknown) = (vec![0u64; ASPECT_BUCKETS], 0);
    let bucket = |number: u64| (SIZE_BUCKETS - 1).min((64 - number.leading_zeros()) as usize);
    for row in selection.iter().filter_map(|number| snapshot.row(*number)) {
        bytes[bucket(row.facts.bytes.into())] += 1;
        if row.facts.size.0 == 0 {
            unknown += 1;
            continue;
        }
        areas[bucket(pixels(&row))] += 1;
        let quarter = (aspect(&row).log2() * 4.0).round().clamp(-8.0, 8.0);
        aspects[(quarter + 8.0) as usize] += 1;
    }
    json!({"bytes": bytes, "pixels": areas, "aspects": aspects, "unknown": unknown})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_match_letters_in_both_cases() {
        assert!(contains(b"Train/Cat_1.JPG", b"cat_1.jpg"));
        assert!(contains(b"", b"") && contains(b"a", b""));
        assert!(!contains(b"ca", b"cat") && !contains(b"", b"a"));
    }

    #[test]
    fn values_are_compared_as_numbers_after_a_sign() {
        let holds = |test: &str, value: &str| matches(value.as_bytes(), test);
        assert!(holds("=3", "3") && holds("= 3.0", "3") && !holds("=3", "33"));
        assert!(holds("<3", "-7.5") && !holds("<3", "3") && !holds("<3", "cat"));
        assert!(holds(">2e3", "2001") && holds("3", "33") && holds("", "anything"));
    }
}
