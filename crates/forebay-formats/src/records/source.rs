//! An open source of records: its splits, files and facts.

use super::conversion::Conversion;
use super::foreign_records::ForeignSchema;
use super::label_value::LabelRole;
use super::record::{OwnedRecord, SourceRecord};
use crate::error::Result;
use crate::finding::Finding;
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::{ClassEntry, EpochOrder, FeatureEntry, block_records};
use forebay_shard::mapped::Extent;
use forebay_shard::schema::Schema;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// An open source of records.
#[derive(Debug)]
pub struct RecordSource {
    /// The splits in the order of their names.
    pub splits: Vec<RecordSplit>,
    /// Facts about all splits.
    pub facts: SourceFacts,
}

impl RecordSource {
    /// Checks that every split has at least one record.
    ///
    /// # Errors
    /// The name of a split without records.
    pub fn check_splits(&self) -> std::result::Result<(), String> {
        let is_empty = |split: &&RecordSplit| split.files.iter().all(|file| file.records() == 0);
        if self.splits.iter().all(|split| is_empty(&split)) {
            return Err("there are no records in it".to_owned());
        }
        match self.splits.iter().find(is_empty) {
            None => Ok(()),
            Some(split) => Err(format!(
                "the split {:?} has no records: complete it, or leave its files out",
                split.name
            )),
        }
    }

    /// Returns a source of images with annotations. `files` is the hash of the files, which identifies the source.
    pub(super) fn annotated(
        splits: Vec<RecordSplit>,
        classes: Vec<ClassEntry>,
        mut features: Vec<FeatureEntry>,
        schema: &Schema,
        files: &blake3::Hasher,
        findings: Vec<Finding>,
    ) -> Self {
        features.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<&str> = features.iter().map(|entry| entry.name.as_str()).collect();
        let columns = [("columns", names.join(","))];
        let facts = SourceFacts {
            classes,
            features,
            order: order_by_sizes(&splits),
            findings,
            ..SourceFacts::new(0, schema.clone(), files, columns)
        };
        Self { splits, facts }
    }
}

/// Facts about all records of a source. Packing writes them to the manifest.
#[derive(Debug, Clone, Default)]
pub struct SourceFacts {
    /// The label of the first class.
    pub label_base: i64,
    /// The classes in the order of their labels; empty where the source has no names.
    pub classes: Vec<ClassEntry>,
    /// The features (columns) of records: name, kind and shape.
    pub features: Vec<FeatureEntry>,
    /// The features that hold image and label.
    pub record_features: RecordFeatures,
    /// The columns; empty if they follow from the features.
    pub schema: Schema,
    /// The features that were chosen for another tool's records, and the directory of its files.
    pub foreign: Option<(ForeignSchema, PathBuf)>,
    /// Options that the source was packed with.
    pub pack: BTreeMap<String, serde_json::Value>,
    /// Values that identify the source, by name. An interrupted conversion continues only if all of them are unchanged.
    pub identity: BTreeMap<String, String>,
    /// The order of samples in epochs: from the source, or by default computed from the sizes of its files.
    pub order: EpochOrder,
    /// Findings about records that were left out, and about files that are not records.
    pub findings: Vec<Finding>,
    /// Whether Forebay wrote the records, so that they need no checks and no detection of features.
    pub is_own: bool,
    /// The source of labels; `None` without labels, and for records that Forebay wrote.
    pub label: Option<LabelRole>,
    /// Automatic decisions that the user may want to change.
    pub warnings: Vec<String>,
}

impl SourceFacts {
    /// Returns the facts about files that are converted: these columns and their features, without classes. `files` is the
    /// hash of the files, which identifies the source beside `identity`.
    pub(super) fn new<'a>(
        label_base: i64,
        schema: Schema,
        files: &blake3::Hasher,
        identity: impl IntoIterator<Item = (&'a str, String)>,
    ) -> Self {
        let files = files.finalize().to_hex()[..32].to_owned();
        let identity = std::iter::once(("source_files", files)).chain(identity);
        Self {
            label_base,
            features: schema.features(),
            schema,
            pack: BTreeMap::from([("tool".to_owned(), "convert".into())]),
            identity: identity
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
            ..Self::default()
        }
    }

    /// Takes over what the conversion that wrote the files knows about them, if there is one. Without its order, `order` is
    /// used.
    pub(super) fn with_conversion(
        mut self,
        conversion: Option<&Conversion>,
        order: impl FnOnce() -> EpochOrder,
    ) -> Self {
        if let Some(known) = conversion {
            self.label_base = known.label_base;
            self.classes.clone_from(&known.classes);
            self.features.clone_from(&known.features);
            self.record_features.clone_from(&known.record_features);
            self.schema.clone_from(&known.columns);
            self.is_own = true;
        }
        let known = conversion.and_then(|known| known.order.clone());
        self.order = known.unwrap_or_else(order);
        self
    }

    /// Returns the columns: those of the source, or columns inferred from the features.
    pub fn columns(&self) -> Schema {
        match self.schema.is_empty() {
            true => Schema::infer(&self.features, &self.record_features),
            false => self.schema.clone(),
        }
    }
}

/// Returns the default order of samples, from the numbers of records and bytes of each split.
pub(super) fn order_by_sizes(splits: &[RecordSplit]) -> EpochOrder {
    let mut order = EpochOrder::default();
    for split in splits {
        let files = split.files.iter();
        let (bytes, records) = files.fold((0, 0), |(bytes, records), file| {
            let sizes = (0..file.records()).map(|record| file.record_bytes(record));
            (bytes + sizes.sum::<u64>(), records + file.records())
        });
        let block = block_records(records, bytes);
        order.block_records.insert(split.name.clone(), block);
    }
    order
}

/// The files of a split.
#[derive(Debug)]
pub struct RecordSplit {
    /// The split's name.
    pub name: String,
    /// Its files in order.
    pub files: Vec<Box<dyn RecordFile>>,
}

impl RecordSplit {
    pub(crate) fn new<F: RecordFile + 'static>(
        name: String,
        files: impl IntoIterator<Item = F>,
    ) -> Self {
        let files = files.into_iter().map(|file| Box::new(file) as _).collect();
        Self { name, files }
    }
}

/// A file of records.
pub trait RecordFile: fmt::Debug + Send + Sync {
    /// Returns the path of the file.
    fn path(&self) -> &Path;

    /// Returns the size of the file in bytes.
    fn bytes(&self) -> u64;

    /// Returns the number of records.
    fn records(&self) -> u64;

    /// Returns the size of an encoded record in bytes; 0 beyond the end.
    fn record_bytes(&self, record: u64) -> u64;

    /// Returns why loaders cannot read the records of this file without a conversion; `None` if they can.
    fn in_place_refusal(&self) -> Option<String> {
        Some("this format is not read in place".to_owned())
    }

    /// Reads records in order.
    ///
    /// # Errors
    /// Those of the file, and damage.
    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>>;

    /// Returns whether encoding records takes longer than reading them, so that several threads should encode them.
    fn is_slow_to_encode(&self) -> bool {
        false
    }

    /// Encodes a record that was read by [`RecordReader::next_raw`].
    ///
    /// # Errors
    /// [`Error::Record`](crate::Error::Record), as [`RecordReader::next_record`].
    fn encode(&self, _record: &mut OwnedRecord) -> Result<()> {
        Ok(())
    }

    /// Returns the inner file if this one only adds checks.
    fn unchecked(&self) -> Option<&dyn RecordFile> {
        None
    }

    /// Returns a view of the file whose records have only this column, if the format can read the column without the others.
    fn with_column(&self, _column: &str) -> Option<Box<dyn RecordFile + '_>> {
        None
    }
}

/// Reads records of a file in order.
pub trait RecordReader {
    /// Reads the next record; `None` at the end.
    ///
    /// # Errors
    /// Errors of reading the file, and damaged records. After [`Error::Record`](crate::Error::Record) the next record can be read if the format knows
    /// its position.
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>>;

    /// Reads the next record like [`next_record`](Self::next_record), but leaves work that another thread can do to
    /// [`RecordFile::encode`]. Returns false at the end.
    ///
    /// # Errors
    /// As [`next_record`](Self::next_record).
    fn next_raw(&mut self, record: &mut OwnedRecord) -> Result<bool> {
        let next = self.next_record()?;
        let is_one = next.is_some();
        if let Some(next) = next {
            record.set(&next);
        }
        Ok(is_one)
    }

    /// Reads the next record like [`next_record`](Self::next_record), and lists in `extents` the parts of it that are stored
    /// unchanged in the file.
    ///
    /// # Errors
    /// As [`next_record`](Self::next_record).
    fn next_mapped(&mut self, extents: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        extents.clear();
        self.next_record()
    }

    /// Returns and clears the findings about records that were read and kept.
    fn take_remarks(&mut self) -> Vec<Finding> {
        Vec::new()
    }
}
