//! Comparison with the samples that earlier writers stored: a resumed writer is given the same samples again, and compares their
//! keys and labels with the digest of each shard.

use crate::publish::destination::{ShardLine, split_of_numbered};
use forebay_shard::manifest::{Manifest, ShardEntry, SplitEntry};
use forebay_shard::{RecordMeta, SampleDigest};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The progress of each split.
#[derive(Debug, Default)]
pub(super) struct Progress {
    splits: BTreeMap<Arc<str>, SplitProgress>,
    /// Whether the dataset is complete; then the digests of all samples are compared at the end.
    is_complete: bool,
    /// The first difference between the samples. If there is one, nothing is published.
    difference: Option<String>,
}

#[derive(Debug, Default)]
struct SplitProgress {
    position: u64,
    shards: Vec<StoredShard>,
    /// Index of the stored shard that contains the next sample, if any does.
    at: usize,
    digest: SampleDigest,
}

/// A shard that an earlier writer finished.
#[derive(Debug)]
struct StoredShard {
    name: String,
    records: u64,
    samples: SampleDigest,
    is_intact: bool,
    ends_split: bool,
}

/// Action for a sample.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SampleAction {
    /// The sample is stored already.
    Skip,
    Write {
        split: Arc<str>,
        /// The number of its lost shard, which is written again; `None` for a new shard.
        shard: Option<u32>,
    },
}

impl Progress {
    /// Creates the progress from the shards of earlier writers; `is_intact` checks a shard. Lines after a gap are ignored.
    pub(super) fn of_lines<'a>(
        lines: impl Iterator<Item = &'a ShardLine>,
        is_intact: impl Fn(&str) -> bool,
    ) -> Self {
        let mut numbered: Vec<(&str, u32, &ShardLine)> = lines
            .filter_map(|line| {
                let (split, number) = split_of_numbered(&line.name)?;
                Some((split, number, line))
            })
            .collect();
        numbered.sort_by_key(|(split, number, _)| (*split, *number));
        let mut progress = Self::default();
        for (split, number, line) in numbered {
            let shards = &mut progress.splits.entry(split.into()).or_default().shards;
            if number as usize == shards.len() && line.records > 0 {
                shards.push(StoredShard {
                    name: line.name.clone(),
                    records: line.records,
                    samples: line.samples,
                    is_intact: is_intact(&line.name),
                    ends_split: line.ends_split,
                });
            }
        }
        progress
    }

    /// Creates the progress for a complete dataset.
    pub(super) fn of_complete() -> Self {
        Self {
            is_complete: true,
            ..Self::default()
        }
    }

    /// Returns whether an intact shard has this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let mut shards = self.splits.values().flat_map(|split| &split.shards);
        shards.any(|shard| shard.name == name && shard.is_intact)
    }

    /// Returns the number of the first new shard of each split.
    pub(super) fn first_shards(&self) -> impl Iterator<Item = (Arc<str>, u32)> + '_ {
        let splits = self.splits.iter();
        splits.map(|(name, split)| (Arc::clone(name), split.shards.len() as u32))
    }

    /// Returns the number of samples in the intact shards of each split.
    pub(super) fn stored(&self) -> impl Iterator<Item = (&str, u64)> {
        self.splits.iter().filter_map(|(name, split)| {
            let intact = split.shards.iter().filter(|shard| shard.is_intact);
            let records: u64 = intact.map(|shard| shard.records).sum();
            (records > 0).then_some((&**name, records))
        })
    }

    pub(super) fn splits(&self) -> usize {
        self.splits.len()
    }

    /// Returns the number of the next sample of a split.
    pub(super) fn position(&self, split: &str) -> u64 {
        self.splits.get(split).map_or(0, |split| split.position)
    }

    /// Accepts the next sample of a split, and returns what to do with it.
    ///
    /// # Errors
    /// How the sample differs from the stored one.
    pub(super) fn next(
        &mut self,
        name: &str,
        meta: &RecordMeta<'_>,
    ) -> Result<SampleAction, String> {
        let step = self.compare(name, meta);
        if let Err(difference) = &step {
            self.difference = Some(difference.clone());
        }
        step
    }

    fn compare(&mut self, name: &str, meta: &RecordMeta<'_>) -> Result<SampleAction, String> {
        if !self.splits.contains_key(name) {
            self.splits.insert(name.into(), SplitProgress::default());
        }
        let Some((shared, split)) = self
            .splits
            .range_mut::<str, _>((
                std::ops::Bound::Included(name),
                std::ops::Bound::Included(name),
            ))
            .next()
        else {
            unreachable!("the split was just added");
        };
        if self.is_complete {
            split.digest.push(meta.label, meta.key);
            split.position += 1;
            return Ok(SampleAction::Skip);
        }
        let Some(stored) = split.shards.get(split.at) else {
            if split.shards.last().is_some_and(|last| last.ends_split) {
                let position = split.position;
                return Err(format!(
                    "it ends after {position} samples of split {name:?}"
                ));
            }
            split.position += 1;
            return Ok(SampleAction::Write {
                split: Arc::clone(shared),
                shard: None,
            });
        };
        let mut digest = split.digest;
        digest.push(meta.label, meta.key);
        let step = match stored.is_intact {
            true => SampleAction::Skip,
            false => SampleAction::Write {
                split: Arc::clone(shared),
                shard: Some(split.at as u32),
            },
        };
        if digest.records() == stored.records {
            if digest != stored.samples {
                let from = split.position + 1 - stored.records;
                return Err(format!(
                    "samples {from} to {} of split {name:?} have other keys or labels than those in {}",
                    split.position, stored.name
                ));
            }
            split.at += 1;
            digest = SampleDigest::default();
        }
        split.digest = digest;
        split.position += 1;
        Ok(step)
    }

    /// Checks that all stored samples were written again.
    pub(super) fn check_end(&self) -> Result<(), String> {
        if let Some(difference) = &self.difference {
            return Err(difference.clone());
        }
        for (name, split) in &self.splits {
            if split.at < split.shards.len() {
                let stored: u64 = split.shards.iter().map(|shard| shard.records).sum();
                let position = split.position;
                return Err(format!(
                    "it has {stored} samples of split {name:?}, and {position} were written again"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the samples equal those of a complete dataset.
    pub(super) fn check_whole(&self, manifest: &Manifest) -> Result<(), String> {
        let splits = self.splits.iter().map(|(name, split)| {
            let shard = ShardEntry {
                name: name.to_string(),
                records: split.position,
                bytes: 0,
                crc32c: 0,
                blake3: None,
            };
            SplitEntry::new(&**name, vec![shard])
        });
        let given = Manifest::new(manifest.shard_format, manifest.label_base, splits.collect());
        let digest = |name: &str| self.splits.get(name).map(|split| split.digest);
        let fingerprint = given.sample_fingerprint_of(digest);
        match fingerprint.is_some() && fingerprint == manifest.sample_fingerprint {
            true => Ok(()),
            false => Err("it is published, with other keys, labels or splits".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(key: &str) -> RecordMeta<'_> {
        RecordMeta::new(1, key.as_bytes())
    }

    fn digest(keys: &[&str]) -> SampleDigest {
        let mut digest = SampleDigest::default();
        for key in keys {
            digest.push(Some(1), key.as_bytes());
        }
        digest
    }

    fn stored(shards: &[(&[&str], bool, bool)]) -> Progress {
        let shards = shards
            .iter()
            .enumerate()
            .map(|(number, (keys, is_intact, ends_split))| StoredShard {
                name: format!("train-{number:05}"),
                records: keys.len() as u64,
                samples: digest(keys),
                is_intact: *is_intact,
                ends_split: *ends_split,
            });
        let split = SplitProgress {
            shards: shards.collect(),
            ..SplitProgress::default()
        };
        Progress {
            splits: BTreeMap::from([("train".into(), split)]),
            ..Progress::default()
        }
    }

    #[test]
    fn stored_samples_are_skipped_and_lost_shards_rewritten() {
        let mut progress = stored(&[(&["a", "b"], true, false), (&["c"], false, false)]);
        let mut next = |key| progress.next("train", &meta(key)).unwrap();
        assert_eq!(
            (next("a"), next("b")),
            (SampleAction::Skip, SampleAction::Skip)
        );
        let write = |shard| SampleAction::Write {
            split: "train".into(),
            shard,
        };
        assert_eq!(next("c"), write(Some(1)));
        assert_eq!(next("d"), write(None));
        assert_eq!(progress.check_end(), Ok(()));
        assert_eq!(progress.position("train"), 4);
    }

    #[test]
    fn other_samples_are_refused() {
        let mut other = stored(&[(&["a", "b"], true, false)]);
        other.next("train", &meta("a")).unwrap();
        let error = other.next("train", &meta("x")).unwrap_err();
        assert!(
            error.contains("samples 0 to 1") && error.contains("train-00000"),
            "{error}"
        );
        let mut fewer = stored(&[(&["a", "b"], true, false)]);
        fewer.next("train", &meta("a")).unwrap();
        let error = fewer.check_end().unwrap_err();
        assert!(
            error.contains("has 2 samples") && error.contains("1 were"),
            "{error}"
        );
        let mut more = stored(&[(&["a"], true, true)]);
        more.next("train", &meta("a")).unwrap();
        let error = more.next("train", &meta("b")).unwrap_err();
        assert!(error.contains("ends after 1 samples"), "{error}");
        assert_eq!(more.check_end(), Err(error));
    }
}
