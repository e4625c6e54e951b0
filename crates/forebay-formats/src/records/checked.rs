//! Checks on the records of other tools, applied to all formats: each record has an image that loaders can decode and a label
//! in the range of the classes. Labels that are not integers are converted here.
//!
//! A record that fails a check is an [`Error::Record`]. The caller applies its policy as for errors of the readers.

use super::first_records::FirstRecord;
use super::label_role::{self, LabelReader};
use super::{
    OwnedRecord, RecordFile, RecordInput, RecordReader, RecordSource, SourceRecord, extents,
};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::option_names::LABEL_BASE;
use crate::sniff;
use forebay_shard::ExampleView;
use forebay_shard::example::{FeatureEdit, RecordFeatures, edit_features};
use forebay_shard::mapped::Extent;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Adds the checks to a source, unless Forebay wrote its records and no option names another column of labels.
pub(super) fn checked(mut source: RecordSource, input: &RecordInput) -> Result<RecordSource> {
    if source.facts.is_own && input.features.label_feature.is_none() {
        return Ok(source);
    }
    let first = FirstRecord::of(&source);
    // A few records may repeat a key. If more than half do, the column does not hold keys, despite its name.
    let twice = first.iter().filter(|one| one.is_twice).count();
    let has_own_keys = input.features.key_feature.is_some() || twice * 2 <= first.len();
    let labels = label_role::decide(&mut source, input, &first)?;
    let facts = &source.facts;
    let replaced = labels
        .reader
        .as_ref()
        .map(LabelReader::replaced)
        .unwrap_or_default();
    let checks = Arc::new(Checks {
        features: facts.record_features.clone(),
        needs_image: !input.features.without_images,
        labels: match (labels.is_ignored, labels.reader) {
            (true, _) => LabelSource::Ignored,
            (false, Some(reader)) => LabelSource::Column(Box::new(reader)),
            (false, None) => LabelSource::Reader,
        },
        label_base: facts.label_base,
        has_own_keys,
        classes: facts.classes.len() as i64,
        replaced,
    });
    for split in &mut source.splits {
        let files = std::mem::take(&mut split.files).into_iter();
        let wrap = |inner| {
            Box::new(CheckedFile {
                inner,
                checks: Arc::clone(&checks),
            }) as _
        };
        split.files = files.map(wrap).collect();
    }
    Ok(source)
}

/// The checks of the records of a source.
#[derive(Debug)]
struct Checks {
    features: RecordFeatures,
    needs_image: bool,
    labels: LabelSource,
    label_base: i64,
    /// Whether the key column identifies records. If it does not, records have no key.
    has_own_keys: bool,
    /// The number of classes; 0 if the classes have no names.
    classes: i64,
    /// Features that are removed because the label is read from them.
    replaced: Vec<String>,
}

#[derive(Debug)]
enum LabelSource {
    /// The reader of the format returns them.
    Reader,
    /// They are read from a column.
    Column(Box<LabelReader>),
    /// Records get no labels.
    Ignored,
}

impl Checks {
    /// Checks a record and returns its label. If the label is read from a column, writes the record with its new label to
    /// `out`.
    fn check(
        &self,
        record: &SourceRecord<'_>,
        out: &mut Vec<u8>,
    ) -> std::result::Result<Option<i64>, String> {
        out.clear();
        let example = match ExampleView::parse(record.bytes) {
            Ok(example) => example,
            Err(error) if self.needs_image => return Err(error.to_string()),
            Err(_) => return Ok(record.label),
        };
        self.image(example)?;
        let label = match &self.labels {
            LabelSource::Reader => record.label,
            LabelSource::Ignored => return Ok(None),
            LabelSource::Column(reader) => {
                let label = reader.label(example)?;
                let edits = self
                    .replaced
                    .iter()
                    .map(|name| (name.as_str(), FeatureEdit::Remove));
                let mut edits: Vec<_> = edits
                    .filter(|(name, _)| *name != self.features.label)
                    .chain([(
                        self.features.label.as_str(),
                        label.map_or(FeatureEdit::Remove, FeatureEdit::Int64),
                    )])
                    .collect();
                edits.sort_by_key(|(name, _)| *name);
                edit_features(record.bytes, &edits, out).map_err(|error| error.to_string())?;
                label
            }
        };
        match label {
            Some(label) if label != -1 && label < self.label_base => Err(format!(
                "its label is {label}, and the first class has label {}: {LABEL_BASE} says which label is the first",
                self.label_base
            )),
            Some(label) if self.classes > 0 && label - self.label_base >= self.classes => {
                Err(format!(
                    "its label is {label}, and there are {} classes",
                    self.classes
                ))
            }
            label => Ok(label),
        }
    }

    fn key<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        if self.has_own_keys { key } else { b"" }
    }

    /// Checks that the record has an image in a format that loaders decode.
    fn image(&self, example: ExampleView<'_>) -> std::result::Result<(), String> {
        let image = self.features.image(example);
        match image.map_err(|error| error.to_string())? {
            _ if !self.needs_image => Ok(()),
            Some(image) => sniff::check_image(image),
            None => Err("it has no image".to_owned()),
        }
    }
}

/// A file whose records are checked.
#[derive(Debug)]
struct CheckedFile {
    inner: Box<dyn RecordFile>,
    checks: Arc<Checks>,
}

impl CheckedFile {
    fn refused(&self, record: u64, what: String) -> Error {
        Error::record(self.inner.path(), record, what)
    }

    /// Checks a record, and returns it with its label. `changed` gets the record with its new label.
    fn checked<'r>(
        &self,
        record: &SourceRecord<'r>,
        changed: &'r mut Vec<u8>,
    ) -> Result<SourceRecord<'r>> {
        let label = self.checks.check(record, changed);
        let label = label.map_err(|what| self.refused(record.number, what))?;
        Ok(SourceRecord {
            bytes: if changed.is_empty() {
                record.bytes
            } else {
                changed
            },
            label,
            key: self.checks.key(record.key),
            ..*record
        })
    }
}

impl RecordFile for CheckedFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn records(&self) -> u64 {
        self.inner.records()
    }

    fn record_bytes(&self, record: u64) -> u64 {
        self.inner.record_bytes(record)
    }

    fn in_place_refusal(&self) -> Option<String> {
        self.inner.in_place_refusal()
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        Ok(Box::new(Reader {
            file: self,
            inner: self.inner.read(records)?,
            changed: Vec::new(),
        }))
    }

    fn unchecked(&self) -> Option<&dyn RecordFile> {
        Some(&*self.inner)
    }

    fn is_slow_to_encode(&self) -> bool {
        self.inner.is_slow_to_encode()
    }

    fn encode(&self, record: &mut OwnedRecord) -> Result<()> {
        self.inner.encode(record)?;
        let mut changed = Vec::new();
        let label = self.checks.check(&record.get(), &mut changed);
        record.label = label.map_err(|what| self.refused(record.number, what))?;
        if !changed.is_empty() {
            record.bytes = changed;
        }
        if !self.checks.has_own_keys {
            record.key.clear();
        }
        Ok(())
    }
}

/// Reads records of a file and checks each of them.
struct Reader<'a> {
    file: &'a CheckedFile,
    inner: Box<dyn RecordReader + 'a>,
    /// The record with its new label; empty if the record is unchanged.
    changed: Vec<u8>,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let (file, record) = (self.file, self.inner.next_record()?);
        let checked = record.map(|record| file.checked(&record, &mut self.changed));
        checked.transpose()
    }

    fn next_raw(&mut self, record: &mut OwnedRecord) -> Result<bool> {
        self.inner.next_raw(record)
    }

    fn take_remarks(&mut self) -> Vec<Finding> {
        self.inner.take_remarks()
    }

    fn next_mapped(&mut self, found: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        let Some(record) = self.inner.next_mapped(found)? else {
            return Ok(None);
        };
        let checked = self.file.checked(&record, &mut self.changed)?;
        if !std::ptr::eq(checked.bytes, record.bytes) {
            extents::find_again(checked.bytes, record.bytes, found);
        }
        Ok(Some(checked))
    }
}
