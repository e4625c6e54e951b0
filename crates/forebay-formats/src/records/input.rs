//! Which records to read, and how.

use super::foreign_records::ForeignRecords;
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason, escape};
use crate::option_names::ON_BAD;
use forebay_cache::ReadOptions;
use forebay_store::Location;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// The records to read, and how to read them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordInput {
    /// The location of the source, which messages show and where class lists are searched.
    pub location: Location,
    /// The files of each split in order, for formats that have no list of their files.
    pub splits: BTreeMap<String, Vec<PathBuf>>,
    /// Files that the user named one by one, instead of all files at the location.
    pub files: Vec<Location>,
    /// Assigns all files to this split. By default the split follows from the file names.
    pub split: Option<String>,
    /// Names of features to leave out.
    pub drop_features: BTreeSet<String>,
    /// Policy for records that cannot be read.
    pub on_bad_record: OnBadRecord,
    /// Options for the features that hold image, label and key, for formats that do not name them.
    pub features: ForeignRecords,
    /// Options for reading from an object store.
    pub read: ReadOptions,
}

impl RecordInput {
    /// Returns the input of all records at a location.
    pub fn new(location: impl Into<Location>) -> Self {
        Self {
            location: location.into(),
            splits: BTreeMap::new(),
            files: Vec::new(),
            split: None,
            drop_features: BTreeSet::new(),
            on_bad_record: OnBadRecord::default(),
            features: ForeignRecords::default(),
            read: ReadOptions::default(),
        }
    }

    /// Refuses a file that is named twice: its records would be read twice.
    pub(super) fn check(&self) -> Result<()> {
        let named = self.files.iter().map(|file| file.to_string().into());
        let listed = self.splits.values().flatten().cloned();
        let mut known = BTreeSet::new();
        for path in named.chain(listed) {
            let parts = path.components();
            let plain: PathBuf = parts.filter(|part| *part != Component::CurDir).collect();
            if !known.insert(plain) {
                let what = "it is named twice: name each file once, since its records would be there twice";
                return Err(Error::source(path, what));
            }
        }
        Ok(())
    }
}

/// Policy for records that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBadRecord {
    /// Return the first one as an error.
    #[default]
    Fail,
    /// Leave them out and list them as findings.
    Skip,
}

impl OnBadRecord {
    /// Adds a finding about an image that is left out, or returns an error, by policy. `name` is relative to `place`.
    pub(super) fn leave_out(
        self,
        reason: Reason,
        place: &Path,
        name: &[u8],
        what: String,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        match self {
            Self::Skip => findings.push(Finding::new(Action::Skipped, reason, name, what)),
            Self::Fail => {
                let name = escape(name);
                let what = format!("{name}: {what}; {ON_BAD} skip leaves it out");
                return Err(Error::source(place, what));
            }
        }
        Ok(())
    }
}
