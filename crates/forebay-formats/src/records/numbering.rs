//! Detects missing files by numbered names: `train-00000-of-00002.tar` without `train-00001-of-00002.tar` is incomplete.

use super::{OnBadRecord, RecordInput, RecordSource};
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason};
use crate::option_names::ON_BAD;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Larger counts in a name are ignored.
const MAX_FILES: u32 = 1_000_000;

/// A numbered name without its number: the text before and after `00000-of-00002`, and the number of files.
type Series<'n> = (&'n str, &'n str, u32);

/// Returns a finding for each incomplete series of files, or an error under [`OnBadRecord::Fail`].
pub(super) fn find(input: &RecordInput, source: &RecordSource) -> Result<Vec<Finding>> {
    // Named files may be a deliberate subset, and a manifest lists all of its files.
    let is_file = input.location.local_path().is_ok_and(Path::is_file);
    if source.facts.is_own || !input.files.is_empty() || !input.splits.is_empty() || is_file {
        return Ok(Vec::new());
    }
    let files = source.splits.iter().flat_map(|split| &split.files);
    let names = files.filter_map(|file| file.path().file_name()?.to_str());
    let mut findings = Vec::new();
    for (name, missing) in missing(names) {
        let detail = format!("the names of the others say that there are {missing} more");
        if input.on_bad_record == OnBadRecord::Fail {
            let what = format!("{name}: it is not there; {detail}; {ON_BAD} skip goes on without");
            return Err(Error::source(input.location.to_string(), what));
        }
        let found = Finding::new(Action::Kept, Reason::NotThere, name.as_bytes(), detail);
        findings.push(found.of_files(missing));
    }
    Ok(findings)
}

/// Returns the first missing name of each incomplete series, and the number of missing files.
fn missing<'n>(names: impl Iterator<Item = &'n str>) -> Vec<(String, u64)> {
    let mut series: BTreeMap<Series<'n>, (BTreeSet<u32>, usize)> = BTreeMap::new();
    for name in names {
        if let Some((key, number, width)) = parse(name) {
            series.entry(key).or_default().0.insert(number);
            series.entry(key).or_default().1 = width;
        }
    }
    let mut all = Vec::new();
    for ((before, behind, count), (numbers, width)) in series {
        // Most tools count from 0, some from 1.
        let first = u32::from(numbers.contains(&count) && !numbers.contains(&0));
        let mut absent = (first..first + count).filter(|number| !numbers.contains(number));
        if let Some(number) = absent.next() {
            let name = format!("{before}{number:0width$}-of-{count:0width$}{behind}");
            all.push((name, 1 + absent.count() as u64));
        }
    }
    all
}

/// Splits a name into its series, its number, and the number of digits of its number.
fn parse(name: &str) -> Option<(Series<'_>, u32, usize)> {
    let (before, behind) = name.rsplit_once("-of-")?;
    let is_digit = |c: char| c.is_ascii_digit();
    let stem = before.trim_end_matches(is_digit);
    let number = before.get(stem.len()..)?;
    let end = behind.find(|c| !is_digit(c)).unwrap_or(behind.len());
    let (count, behind) = behind.split_at(end);
    let (value, count) = (number.parse().ok()?, count.parse().ok()?);
    ((1..=MAX_FILES).contains(&count)).then_some(((stem, behind, count), value, number.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_are_found_by_numbered_names() {
        let of = |names: &[&str]| missing(names.iter().copied());
        let one = |name: &str, more| vec![(name.to_owned(), more)];
        assert_eq!(
            of(&["a-00-of-03.tar", "a-02-of-03.tar"]),
            one("a-01-of-03.tar", 1)
        );
        assert_eq!(
            of(&["a.tfrecord-00001-of-00009"]),
            one("a.tfrecord-00000-of-00009", 8)
        );
        assert_eq!(of(&["m-1-of-3", "m-3-of-3"]), one("m-2-of-3", 1));
        assert_eq!(
            of(&["a-0-of-2", "a-1-of-2", "b-0-of-1", "best-of-all", "c-1.tar"]),
            []
        );
        assert_eq!(of(&["a-0-of-99999999999", "a-0-of-0", "-of-"]), []);
    }
}
