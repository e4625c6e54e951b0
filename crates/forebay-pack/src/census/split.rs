//! One split of a census: its files in the byte order of their keys, with their classes.

use super::UNLABELLED;
use crate::error::Result;
use forebay_formats::images::{EntryRef, ExtraFeatures, Extras, FileList};
use forebay_formats::{ClassList, FileClasses};
use forebay_shard::{ExampleBuilder, MAX_RECORD_BYTES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One split of the source.
#[derive(Debug, Serialize, Deserialize)]
pub struct SplitCensus {
    pub(super) name: String,
    pub(super) dir: Vec<u8>,
    pub(super) chunks: Vec<FileList>,
    /// Number of the first entry of each chunk, followed by the total number of entries.
    #[serde(skip)]
    starts: Vec<u64>,
    #[serde(skip)]
    pub(super) bytes: u64,
    /// Classes of the entries of a split without class directories, from a list of files; `UNLABELLED` for none.
    pub(super) listed_classes: Option<Vec<u32>>,
    /// Row of each entry in the file of labels, if there is one.
    pub(super) rows: Vec<u32>,
    #[serde(skip)]
    pub(super) extra_features: Arc<ExtraFeatures>,
}

impl SplitCensus {
    pub(super) fn new(name: String, dir: Vec<u8>) -> Self {
        Self {
            name,
            dir,
            chunks: Vec::new(),
            starts: vec![0],
            bytes: 0,
            listed_classes: None,
            rows: Vec::new(),
            extra_features: Arc::default(),
        }
    }

    /// Returns the name of the split in the dataset.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directory of the split relative to the source; empty for the source itself.
    pub fn dir(&self) -> &[u8] {
        &self.dir
    }

    /// Returns the number of image files.
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns whether the split has no image files.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the total size of the image files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns file number `index` in the byte order of keys. Panics beyond the last file, like a slice.
    pub fn get(&self, index: u64) -> EntryRef<'_> {
        let chunk = self.starts.partition_point(|start| *start <= index) - 1;
        let mut entry = self.chunks[chunk].get(index - self.starts[chunk]);
        if let Some(listed) = &self.listed_classes {
            let class = listed.get(index as usize).copied();
            entry.class = class.filter(|class| *class != UNLABELLED);
        }
        entry.extras = Extras {
            boxes: self.extra_features.boxes.as_ref(),
            row: self
                .rows
                .get(index as usize)
                .map(|row| (&self.extra_features.columns, *row)),
        };
        entry
    }

    /// Returns all files in the byte order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Returns the number of files per class: by ascending class index if classes come from a list, else one entry per chunk.
    pub fn class_counts(&self) -> Vec<(Option<u32>, u64)> {
        if let Some(listed) = &self.listed_classes {
            let mut counts = BTreeMap::new();
            for class in listed {
                *counts.entry(*class).or_insert(0) += 1;
            }
            let named = |class| (class != UNLABELLED).then_some(class);
            return counts
                .into_iter()
                .map(|(class, files)| (named(class), files))
                .collect();
        }
        self.chunks
            .iter()
            .map(|chunk| (chunk.class, chunk.files()))
            .collect()
    }

    /// Returns the images that were left out because of their format and are small enough to be examined. The names of
    /// these entries are whole keys.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = EntryRef<'_>> {
        let entries = self.chunks.iter().flat_map(FileList::left_out);
        entries.filter(|entry| entry.size <= MAX_RECORD_BYTES)
    }

    pub(crate) fn chunks(&self) -> &[FileList] {
        &self.chunks
    }

    /// Adds the further features of the entries to a hash.
    pub(crate) fn hash_extras(&self, hasher: &mut blake3::Hasher) {
        let mut record = Vec::new();
        for entry in self.iter() {
            if entry.extras.is_none() {
                return;
            }
            let mut example = ExampleBuilder::new();
            entry.extras.add_to(entry.name, 0, &mut example);
            record.clear();
            example.encode_into(&mut record);
            hasher
                .update(&(record.len() as u64).to_le_bytes())
                .update(&record);
        }
    }

    /// Returns the class of each file, for a split whose classes come from a list of files.
    pub(crate) fn listed_classes(&self) -> &[u32] {
        self.listed_classes.as_deref().unwrap_or_default()
    }

    pub(super) fn push(&mut self, chunk: FileList) {
        self.starts.push(self.len() + chunk.files());
        self.bytes = self.bytes.saturating_add(chunk.bytes());
        self.chunks.push(chunk);
    }

    /// Assigns classes from a list to the files of a validation directory without class directories, if there is a list.
    pub(super) fn attach_listed_classes(
        &mut self,
        classes: &ClassList,
        listed: Option<&FileClasses>,
    ) -> Result<()> {
        let unlabelled: u64 = self
            .chunks
            .iter()
            .filter(|c| c.class.is_none())
            .map(FileList::files)
            .sum();
        // Other splits, such as test splits, have no labels.
        if let Some(listed) = listed
            && unlabelled > 0
            && self.name == "validation"
        {
            self.listed_classes =
                Some(listed.of(classes, self.len(), self.iter().map(|entry| entry.name))?);
        }
        Ok(())
    }
}
