//! Selection of the records of each epoch: converts the options, checked against a split, to a [`Selection`].
//!
//! This module defines how the options combine: a record has to pass both `indices` and `labels`, `limit` applies to the
//! records that pass, and weights draw from the result. Labels come from the open index; no record is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::plan::{Key, MAX_REPEATS, Selection};
use crate::source::{Portions, Source};

/// Number of draws per epoch that is always allowed. More draws are limited to [`MAX_DRAWS_A_RECORD`] per record.
const MAX_DRAWS: u64 = 1 << 24;
const MAX_DRAWS_A_RECORD: u64 = 16;

/// The records of each epoch, and how often each occurs. By default every record of a split occurs once.
///
/// ```
/// use forebay_loader::{Sampling, Weights};
///
/// let mut sampling = Sampling::default();
/// sampling.classes = vec!["n01440764".to_owned(), "n01443537".to_owned()];
/// sampling.weights = Weights::Balanced;
/// sampling.num_samples = 10_000;
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Sampling {
    /// Only these records, by number in the split, ascending and each once; empty for all.
    pub indices: Arc<[u64]>,
    /// Only records of these classes, by their names in the manifest.
    pub classes: Vec<String>,
    /// Only records with these labels, as in batches. The records of `classes` are selected in addition.
    pub labels: Vec<i64>,
    /// Only the first `limit` of the selected records, in storage order; 0 for all.
    pub limit: u64,
    /// The weights for drawing from the selected records, if any.
    pub weights: Weights,
    /// Samples drawn per epoch, if there are weights (here or in a [`Mix`](crate::Mix)); 0 for the number of selected records.
    pub num_samples: u64,
    /// Occurrences of each sample per epoch, each with other random transforms; 0 for once.
    pub repeats: u64,
}

/// Whether samples are drawn with replacement, and with which weights.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Weights {
    /// No draws: each record occurs once.
    #[default]
    None,
    /// All classes are equally frequent on average.
    Balanced,
    /// The weight of a record by its label, as in batches; labels that are not listed have weight 1.
    ByLabel(Vec<(i64, f64)>),
    /// As `ByLabel`, with names of classes.
    ByClass(Vec<(String, f64)>),
    /// The weight of each record of the split.
    BySample(Arc<[f32]>),
}

/// Selects records of each part with a quota by the weight of the part.
fn portion(num_samples: u64, list: Vec<u32>, portions: &Portions) -> Result<Selection> {
    let below = |&end: &u64| list.partition_point(|&record| u64::from(record) < end);
    let starts: Vec<usize> = portions.starts.iter().map(below).collect();
    for (part, weight) in portions.weights.iter().flat_map(|of| of.iter().enumerate()) {
        if *weight > 0.0 && starts[part] == starts[part + 1] {
            let found = format!("what leaves no record of dataset {part}, which weighs {weight}");
            return refused("sampling", found, "records of each dataset with a weight");
        }
    }
    Selection::portioned(num_samples, starts, list, &portions.weights)
}

fn refused<T>(name: &'static str, found: impl ToString, expected: impl ToString) -> Result<T> {
    Err(Error::option(name, found.to_string(), expected.to_string()))
}

impl Sampling {
    /// Returns whether every record is selected, without draws.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        let once = Sampling {
            repeats: self.repeats,
            ..Sampling::default()
        };
        self.repeats <= 1 && *self == once
    }

    /// Returns how often each sample occurs per epoch: at least once.
    #[must_use]
    pub fn times(&self) -> u64 {
        self.repeats.max(1)
    }

    /// Returns a fingerprint of [resolved](crate::Loader::options) options, for comparison with the state of a run that is
    /// resumed.
    #[must_use]
    pub fn identity(&self) -> String {
        if self.is_everything() {
            return "all".to_owned();
        }
        // Every field is a string, a number or a list of them.
        let json = serde_json::to_vec(&self.schema()).unwrap_or_default();
        let words = json.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let key = words.fold(Key::root(json.len() as u64), Key::child);
        format!("{:016x}", key.bits())
    }

    /// Returns the same options with names and defaults replaced by labels and numbers, and the selection that they describe.
    pub(crate) fn resolve(&self, source: &dyn Source) -> Result<(Sampling, Selection)> {
        let records = source.records();
        let portions = source.portions();
        let mut resolved = self.clone();
        if self.repeats > MAX_REPEATS {
            return refused("repeats", self.repeats, format!("0 to {MAX_REPEATS}"));
        }
        if self.repeats == 1 {
            resolved.repeats = 0;
        }
        if self.is_everything() && portions.is_none() {
            return Ok((resolved, Selection::first(records)));
        }
        if portions.is_some() && self.weights != Weights::None {
            let found = "given for records, of datasets that have weights";
            return refused("weights", found, "weights of one of the two");
        }
        if u32::try_from(records).is_err() {
            let expected = "a split of less than 2^32 records";
            return refused("sampling", format!("asked of {records} records"), expected);
        }
        let label = |name, class: &str| match source.class_label(class)? {
            Some(label) => Ok(label),
            None => refused(
                name,
                format!("for {class:?}"),
                "names of the dataset's classes",
            ),
        };
        for class in std::mem::take(&mut resolved.classes) {
            resolved.labels.push(label("classes", &class)?);
        }
        if let Weights::ByClass(weights) = &self.weights {
            let of = |(class, weight): &(String, f64)| Ok((label("weights", class)?, *weight));
            resolved.weights = Weights::ByLabel(weights.iter().map(of).collect::<Result<_>>()?);
        }
        resolved.labels.sort_unstable();
        resolved.labels.dedup();
        self.check_indices(records)?;
        let whole = self.indices.is_empty() && resolved.labels.is_empty();
        let drawn = self.weights != Weights::None || portions.is_some();
        if self.num_samples > 0 && !drawn {
            let expected = "0: only weights draw";
            return refused("num_samples", self.num_samples, expected);
        }
        if whole && !drawn {
            let first = match self.limit {
                0 => records,
                limit => records.min(limit),
            };
            return Ok((resolved, Selection::first(first)));
        }
        let list = resolved.list(source)?;
        if list.is_empty() {
            return refused("sampling", "no record at all", "at least one record");
        }
        if !drawn {
            return Ok((resolved, Selection::listed(list)));
        }
        let selected = list.len() as u64;
        resolved.num_samples = match self.num_samples {
            0 => selected,
            num_samples if num_samples <= MAX_DRAWS.max(selected * MAX_DRAWS_A_RECORD) => {
                num_samples
            }
            num_samples => {
                let expected = format!("at most {MAX_DRAWS_A_RECORD} times the {selected} records");
                return refused("num_samples", num_samples, expected);
            }
        };
        let selection = match portions {
            Some(portions) => portion(resolved.num_samples, list, &portions)?,
            None => resolved.draw(list, source)?,
        };
        Ok((resolved, selection))
    }

    fn check_indices(&self, records: u64) -> Result<()> {
        let order = self.indices.windows(2).find(|pair| pair[0] >= pair[1]);
        if let Some(pair) = order {
            let found = format!("{} after {}", pair[1], pair[0]);
            return refused("indices", found, "ascending numbers, each once");
        }
        match self.indices.last() {
            Some(&last) if last >= records => {
                let expected = format!("numbers below {records}, the records of the split");
                refused("indices", last, expected)
            }
            _ => Ok(()),
        }
    }

    /// Returns the records that pass all filters, in ascending order.
    fn list(&self, source: &dyn Source) -> Result<Vec<u32>> {
        let limit = match self.limit {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        if self.labels.is_empty() && !self.indices.is_empty() {
            // A few records of a large split need no pass over the labels of all.
            let listed = self.indices.iter().take(limit);
            return Ok(listed.map(|&index| index as u32).collect());
        }
        let mut list = Vec::new();
        let mut found = vec![false; self.labels.len()];
        let mut indices = self.indices.iter().peekable();
        source.for_each_label(&mut |record, label| {
            if !self.indices.is_empty() && indices.next_if(|&&index| index == record).is_none() {
                return;
            }
            if !self.labels.is_empty() {
                let at = label.and_then(|label| self.labels.binary_search(&label).ok());
                let Some(at) = at else { return };
                found[at] = true;
            }
            if list.len() < limit {
                list.push(record as u32);
            }
        });
        if let Some(at) = found.iter().position(|found| !found) {
            let expected = match &self.indices[..] {
                [] => "labels, as batches have them, that records of the split have",
                _ => "labels, as batches have them, that records among indices have",
            };
            return refused("classes", format!("label {}", self.labels[at]), expected);
        }
        Ok(list)
    }

    fn draw(&self, list: Vec<u32>, source: &dyn Source) -> Result<Selection> {
        let given = match &self.weights {
            Weights::BySample(weights) => {
                if weights.len() as u64 != source.records() {
                    let expected = format!("{}, one for each record", source.records());
                    return refused("weights", format!("{} numbers", weights.len()), expected);
                }
                let of = |&record: &u32| f64::from(weights[record as usize]);
                let weights: Vec<f64> = list.iter().map(of).collect();
                let starts = (0..=list.len() as u32).collect();
                return Selection::drawn(self.num_samples, starts, list, &weights);
            }
            Weights::ByLabel(weights) => Some(weights),
            // `resolve` has replaced class names by labels.
            Weights::Balanced | Weights::ByClass(_) | Weights::None => None,
        };
        let labels = labels_of(&list, source)?;
        let mut sizes: BTreeMap<i64, u32> = BTreeMap::new();
        for &label in &labels {
            *sizes.entry(label).or_default() += 1;
        }
        let mut weights: BTreeMap<i64, f64> = match given {
            None => sizes.keys().map(|&label| (label, 1.0)).collect(),
            Some(_) => sizes
                .iter()
                .map(|(&l, &size)| (l, f64::from(size)))
                .collect(),
        };
        for (label, weight) in given.into_iter().flatten() {
            let Some(of_class) = weights.get_mut(label) else {
                let expected = "labels that selected records have";
                return refused("weights", format!("for label {label}"), expected);
            };
            *of_class = weight * f64::from(sizes[label]);
        }
        // All members grouped by label, each group in storage order.
        let mut starts = vec![0u32];
        let mut next = BTreeMap::new();
        for (&label, &size) in &sizes {
            let start = starts[starts.len() - 1];
            next.insert(label, start);
            starts.push(start + size);
        }
        let mut members = vec![0u32; list.len()];
        for (record, label) in list.into_iter().zip(labels) {
            if let Some(at) = next.get_mut(&label) {
                members[*at as usize] = record;
                *at += 1;
            }
        }
        let weights: Vec<f64> = weights.into_values().collect();
        Selection::drawn(self.num_samples, starts, members, &weights)
    }
}

/// Returns the label of each record of an ascending list.
fn labels_of(list: &[u32], source: &dyn Source) -> Result<Vec<i64>> {
    let mut labels = Vec::with_capacity(list.len());
    let mut without = None;
    let mut wanted = list.iter().peekable();
    source.for_each_label(&mut |record, label| {
        if wanted
            .next_if(|&&index| u64::from(index) == record)
            .is_none()
        {
            return;
        }
        match label {
            Some(label) => labels.push(label),
            None => without = without.or(Some(record)),
        }
    });
    match without {
        None => Ok(labels),
        Some(record) => {
            let found = format!(
                "asked for, but the index has no label of record {record}, or one of no class"
            );
            refused("weights", found, "records with labels")
        }
    }
}

#[cfg(test)]
mod tests;
