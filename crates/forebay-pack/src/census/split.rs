//! One split of a census: its files in the byte order of their keys, with their classes.

use super::UNLABELLED;
use crate::error::Result;
use forebay_formats::images::{EntryRef, ExtraFeatures, Extras, FileList};
use forebay_formats::{ClassList, FileClasses};
use forebay_shard::{ExampleBuilder, MAX_RECORD_BYTES};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One split of the source.
#[derive(Debug)]
pub struct SplitCensus {
    pub(super) name: String,
    pub(super) dir: Vec<u8>,
    pub(super) chunks: Vec<FileList>,
    /// Number of the first entry of each chunk, and the number of all entries at the end.
    starts: Vec<u64>,
    pub(super) bytes: u64,
    /// Classes of the entries of a split without class directories, from a list beside it; `UNLABELLED` for none.
    pub(super) listed_classes: Option<Vec<u32>>,
    /// Rows of the entries in a file of labels, if there is one.
    pub(super) rows: Vec<u32>,
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

    /// The split's name in the dataset.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory relative to the source; empty for the source itself.
    pub fn dir(&self) -> &[u8] {
        &self.dir
    }

    /// Image files in it.
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// File number `index` in the byte order of keys. Panics beyond the end, as a slice does.
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

    /// All files in the byte order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Files of each class: (class index, files), in the order of the walk, or of the classes.
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

    /// Images that were left out because of their format, and that are not too large to be looked at; their names are
    /// whole keys.
    pub(crate) fn left_out(&self) -> impl Iterator<Item = EntryRef<'_>> {
        let entries = self.chunks.iter().flat_map(FileList::left_out);
        entries.filter(|entry| entry.size <= MAX_RECORD_BYTES)
    }

    pub(crate) fn chunks(&self) -> &[FileList] {
        &self.chunks
    }

    /// Feeds what is known of the entries to a hash.
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

    /// The classes of single files, for a split whose classes come from a list of files.
    pub(crate) fn listed_classes(&self) -> &[u32] {
        self.listed_classes.as_deref().unwrap_or_default()
    }

    pub(super) fn push(&mut self, chunk: FileList) {
        self.starts.push(self.len() + chunk.files());
        self.bytes = self.bytes.saturating_add(chunk.bytes());
        self.chunks.push(chunk);
    }

    /// A validation directory without classes gets them from a list beside it, where there is one.
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
        // Others have no labels, as test splits.
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
