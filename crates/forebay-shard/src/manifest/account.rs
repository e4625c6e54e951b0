//! The account of a dataset: the number of items that were read to make it, and what was done with each of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Manifest;

/// Numbers of the items that were read to make a dataset, by outcome. They add up: every item that
/// was read is packed, left out, ignored, or outside of the selection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Account {
    /// The unit of the counts: "files", "records" or "samples".
    pub unit: String,
    /// Number of items that were read.
    pub read: u64,
    /// The samples of each split.
    pub packed: BTreeMap<String, SplitAccount>,
    /// Number of items that should have been packed and could not be, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, u64>,
    /// Number of items that were not meant to be packed, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ignored: BTreeMap<String, u64>,
    /// Number of items that the options do not select.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub outside: u64,
    /// The sources of images and labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<String, RoleAccount>,
    /// Further columns of the samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<String>,
    /// Columns of the source that samples do not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<String>,
    /// Problems that a user should look at, with their numbers. A command that has any exits with 3.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub problems: BTreeMap<String, u64>,
}

/// The samples of one split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitAccount {
    /// Number of samples.
    pub samples: u64,
    /// Number of samples with a label.
    pub labelled: u64,
}

/// The source of the images or of the labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleAccount {
    /// The column of the source, or "directory" if the directory name is used instead.
    pub source: String,
    /// How its values are interpreted: "text", "one-hot".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Account {
    /// Creates an account that counts `unit`: "files" or "records".
    #[must_use]
    pub fn new(unit: &str) -> Self {
        Self {
            unit: unit.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the number of samples of all splits.
    #[must_use]
    pub fn packed_samples(&self) -> u64 {
        self.packed.values().map(|split| split.samples).sum()
    }

    /// Returns the number of items that were left out, for any reason.
    #[must_use]
    pub fn left_out_count(&self) -> u64 {
        self.left_out.values().sum()
    }

    /// Returns the number of items that were ignored, for any reason.
    #[must_use]
    pub fn ignored_count(&self) -> u64 {
        self.ignored.values().sum()
    }

    /// Records a problem if some samples of a split have no label although most have one.
    pub fn note_unlabelled(&mut self, name: &str, split: SplitAccount) {
        if split.labelled > split.samples / 2 && split.labelled < split.samples {
            let what = format!("samples of {name:?} without a label, which others have");
            self.problems.insert(what, split.samples - split.labelled);
        }
    }

    /// Checks that the counts add up to the number of items that were read.
    ///
    /// # Errors
    /// The counts, if they do not add up.
    pub fn check_sum(&self) -> Result<(), String> {
        let parts = [
            self.packed_samples(),
            self.left_out_count(),
            self.ignored_count(),
            self.outside,
        ];
        let sum = parts
            .iter()
            .try_fold(0u64, |sum, part| sum.checked_add(*part));
        match sum == Some(self.read) {
            true => Ok(()),
            false => Err(format!(
                "{} {} were read, and {} packed, {} left out, {} ignored and {} outside of the selection are not as many",
                self.read, self.unit, parts[0], parts[1], parts[2], parts[3]
            )),
        }
    }

    /// Compares the account with the splits of its dataset. `labelled` is the number of samples with a label in
    /// each split, as far as it was counted.
    ///
    /// # Errors
    /// The first count that differs.
    pub fn check_stored(
        &self,
        manifest: &Manifest,
        labelled: &BTreeMap<String, u64>,
    ) -> Result<(), String> {
        self.check_sum()?;
        for split in &manifest.splits {
            let own = self.packed.get(&split.name).copied().unwrap_or_default();
            let counted = labelled.get(&split.name).copied();
            if own.samples != split.records {
                return Err(format!(
                    "split {:?}: the account has {} samples, and {} are stored",
                    split.name, own.samples, split.records
                ));
            }
            if counted.is_some_and(|counted| counted != own.labelled) {
                return Err(format!(
                    "split {:?}: the account has {} samples with a label, and {} are stored",
                    split.name,
                    own.labelled,
                    counted.unwrap_or_default()
                ));
            }
        }
        let unknown = self
            .packed
            .keys()
            .find(|name| manifest.split(name).is_none());
        match unknown {
            Some(name) => Err(format!(
                "the account has a split {name:?}, which is not stored"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShardFormat;
    use crate::manifest::SplitEntry;

    fn account() -> Account {
        let mut account = Account::new("records");
        let split = SplitAccount {
            samples: 7,
            labelled: 5,
        };
        account.packed.insert("train".into(), split);
        account.left_out.insert("not an image".into(), 2);
        account.ignored.insert("hidden".into(), 1);
        account.outside = 3;
        account.read = 13;
        account
    }

    #[test]
    fn every_item_read_is_accounted_for() {
        assert_eq!(account().check_sum(), Ok(()));
        let lost = Account {
            read: 14,
            ..account()
        };
        assert!(
            lost.check_sum()
                .unwrap_err()
                .starts_with("14 records were read")
        );
    }

    #[test]
    fn counts_are_compared_with_what_is_stored() {
        let mut train = SplitEntry::new("train", Vec::new());
        train.records = 7;
        let manifest = Manifest::new(ShardFormat::Indexed, 0, vec![train]);
        let stored = |account: &Account, count| {
            account.check_stored(&manifest, &BTreeMap::from([("train".to_owned(), count)]))
        };
        assert_eq!(stored(&account(), 5), Ok(()));
        assert!(
            stored(&account(), 4)
                .unwrap_err()
                .contains("5 samples with a label, and 4")
        );
        let mut other = account();
        other.packed.insert("test".into(), SplitAccount::default());
        assert!(stored(&other, 5).unwrap_err().contains("\"test\""));
    }
}
