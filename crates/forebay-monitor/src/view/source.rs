//! The records of a source, by number: shards with an index, files of other tools, or images that are not packed yet.
//!
//! Each record is an encoded `tensorflow.Example`, whatever the source. Nothing is copied: a record is read when it is needed.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forebay_formats::records::{RecordFile, RecordFormat, RecordSource};
use forebay_pack::{Cancel, Census, ClassName, Finding, PackOptions, escape};
use forebay_shard::example::{RecordFeatures, feature_kinds};
use forebay_shard::manifest::{Account, ClassEntry};
use forebay_shard::schema::FeatureEntry;
use forebay_shard::{Dataset, Schema, Shard};

use super::images::{self, ImageFiles};
use super::record::{EachKnown, Record};

/// Maximum number of records of a source. The table of a source holds about 30 bytes for each, and texts within a budget.
pub(super) const MAX_RECORDS: u64 = 1 << 26;
/// Maximum number of findings to keep.
const MAX_FINDINGS: usize = 1000;
/// A file is given up after this many records in a row that cannot be read.
const MAX_FAILURES: u32 = 64;

/// An open source of records.
#[derive(Debug)]
pub struct ViewSource {
    pub(super) title: String,
    pub(super) kind: &'static str,
    pub(super) parts: Vec<Part>,
    pub(super) splits: Vec<SplitRange>,
    /// Titles of the classes in the order of their labels.
    pub(super) classes: Vec<String>,
    pub(super) label_base: i64,
    pub(super) features: RecordFeatures,
    /// The columns of the records.
    pub(super) schema: Schema,
    pub(super) findings: Vec<String>,
}

/// A split: its name, and the numbers of its records in the source.
#[derive(Debug)]
pub(super) struct SplitRange {
    pub(super) name: String,
    pub(super) records: Range<u64>,
}

/// Consecutive records of a split that are stored together.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) records: Range<u64>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Shard(Box<Shard>),
    /// With the labels of records by their keys, where the records have none.
    File(Box<dyn RecordFile>, Arc<HashMap<Vec<u8>, u32>>),
    Images(ImageFiles),
}

/// Reads the next record; returns false after the last.
type Cursor<'a> = Box<dyn FnMut(&mut Record) -> Result<bool, String> + 'a>;

impl ViewSource {
    /// Opens all splits of a dataset.
    ///
    /// # Errors
    /// If a shard cannot be opened.
    pub fn dataset(dataset: &Dataset) -> forebay_shard::Result<Self> {
        let manifest = dataset.manifest();
        let mut source = Self::new(dataset.root().display(), "a Forebay dataset");
        for name in dataset.splits() {
            let shards = dataset.split(name)?.shards().to_vec();
            source.add(name, shards.into_iter().map(Body::of_shard));
        }
        source.set_classes(&manifest.classes, manifest.label_base);
        source.features = manifest.record_features.clone();
        source.schema = manifest.schema();
        source.findings = manifest.account.as_ref().map(left_out).unwrap_or_default();
        Ok(source)
    }

    /// Takes the records of one shard.
    #[must_use]
    pub fn shard(shard: Shard) -> Self {
        let mut source = Self::new(shard.path().display(), "a shard");
        source.add("", std::iter::once(Body::of_shard(shard)));
        source.infer_schema();
        source
    }

    /// Takes the records of another tool's files. `title` is their location.
    #[must_use]
    pub fn records(format: RecordFormat, title: &Path, records: RecordSource) -> Self {
        let mut source = Self::new(title.display(), format.title());
        let facts = records.facts;
        for split in records.splits {
            let files = split.files.into_iter();
            source.add(
                &split.name,
                files.map(|file| (file.records(), Body::File(file, Arc::default()))),
            );
        }
        source.set_classes(&facts.classes, facts.label_base);
        source.schema = facts.columns();
        source.features = facts.record_features;
        let findings = facts.findings.iter().map(Finding::to_string);
        source.findings = facts.warnings.into_iter().chain(findings).collect();
        source.findings.truncate(MAX_FINDINGS);
        source
    }

    /// Lists the images of the directory, archives or store that these options name. Nothing is packed. An archive that is
    /// compressed as a whole can be read in order only: `stream` gives its records, which then get the labels.
    ///
    /// # Errors
    /// If the source has no images, or cannot be read at any position and `stream` gives nothing.
    pub fn images(
        options: &PackOptions,
        cancel: &Cancel,
        stream: impl FnOnce() -> Option<Self>,
    ) -> forebay_pack::Result<Self> {
        let census = Census::take(options, &(), cancel)?;
        let entry = |class: &ClassName| ClassEntry {
            name: escape(&class.name),
            text: class.text.clone(),
        };
        let classes: Vec<ClassEntry> = census.classes().iter().map(entry).collect();
        let findings = census.findings().map(|finding| finding.to_string());
        let warnings = census.warnings().iter().cloned();
        let findings = warnings.chain(findings).take(MAX_FINDINGS).collect();
        let streamed = images::is_stream(&census).then(stream).flatten();
        let mut source = match streamed {
            Some(mut source) => {
                let labels = Arc::new(images::labels(&census));
                for part in &mut source.parts {
                    if let Body::File(_, of) = &mut part.body {
                        *of = Arc::clone(&labels);
                    }
                }
                if let ([shown], [_, _, ..]) = (&mut source.splits[..], census.splits()) {
                    // The order of the archive mixes splits.
                    shown.name.clear();
                }
                source
            }
            None => {
                let mut source = Self::new(&options.src, "images that are not packed");
                let opened = images::open(census)?;
                for (split, census) in opened.census.splits().iter().enumerate() {
                    let opened = Arc::clone(&opened);
                    let files = Body::Images(ImageFiles { opened, split });
                    source.add(census.name(), std::iter::once((census.len(), files)));
                }
                source.infer_schema();
                source
            }
        };
        source.findings = findings;
        source.set_classes(&classes, 0);
        Ok(source)
    }

    fn new(title: impl ToString, kind: &'static str) -> Self {
        Self {
            title: title.to_string(),
            kind,
            parts: Vec::new(),
            splits: Vec::new(),
            classes: Vec::new(),
            label_base: 0,
            features: RecordFeatures::standard().clone(),
            schema: Schema::default(),
            findings: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, bodies: impl Iterator<Item = (u64, Body)>) {
        let start = self.len();
        for (len, body) in bodies {
            let first = self.len();
            let records = first..first + len;
            self.parts.push(Part { records, body });
        }
        self.splits.push(SplitRange {
            name: name.to_owned(),
            records: start..self.len(),
        });
    }

    fn set_classes(&mut self, classes: &[ClassEntry], label_base: i64) {
        let titles = classes.iter().map(|class| class.title().to_owned());
        self.classes = titles.collect();
        self.label_base = label_base;
    }

    /// Takes the columns from the first record that can be read.
    fn infer_schema(&mut self) {
        let mut record = Record::default();
        let first = 0..self.len().min(MAX_FAILURES.into());
        let Some(_) = first
            .into_iter()
            .find(|at| self.read(*at, &mut record).is_ok())
        else {
            return;
        };
        let kinds = feature_kinds(&record.bytes).into_iter();
        let entry = |(name, (kind, is_one)): (_, (_, bool))| FeatureEntry::new(name, kind, !is_one);
        self.schema = Schema::infer(&kinds.map(entry).collect::<Vec<_>>(), &self.features);
    }

    /// Returns the number of records.
    pub(super) fn len(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.records.end)
    }

    /// Returns the part of a record; the error says that there is none.
    pub(super) fn part(&self, number: u64) -> Result<&Part, String> {
        let parts = &self.parts;
        let at = parts.partition_point(|part| part.records.end <= number);
        let part = parts.get(at);
        part.ok_or_else(|| format!("there is no record {number}"))
    }

    /// Returns the split of this name.
    pub(super) fn split(&self, name: &str) -> Result<&SplitRange, String> {
        let mut splits = self.splits.iter();
        let split = splits.find(|split| split.name == name);
        split.ok_or_else(|| format!("there is no split {name:?}"))
    }

    /// Returns the name of a record's split, and the record's number in it.
    pub(super) fn split_of(&self, number: u64) -> (&str, u64) {
        let mut splits = self.splits.iter();
        let split = splits.find(|split| split.records.contains(&number));
        split.map_or(("", number), |split| {
            (&split.name, number - split.records.start)
        })
    }

    /// Returns the title of a label's class.
    pub(super) fn class_title(&self, label: i64) -> String {
        let class = usize::try_from(label - self.label_base).ok();
        let title = class.and_then(|class| self.classes.get(class)).cloned();
        title.unwrap_or_else(|| format!("label {label}"))
    }

    /// Reads a record. Returns why it cannot be used as a message, with as much of it as could be read.
    pub(super) fn read(&self, number: u64, record: &mut Record) -> Result<(), String> {
        *record = Record::default();
        let part = self.part(number)?;
        part.read(number - part.records.start, record)
    }
}

impl Body {
    fn of_shard(shard: Shard) -> (u64, Self) {
        (shard.len(), Self::Shard(Box::new(shard)))
    }
}

impl Part {
    /// Calls `each` with what is known of each record in order.
    pub(super) fn known(&self, each: EachKnown<'_>) -> Result<(), String> {
        let all = 0..self.records.end - self.records.start;
        match &self.body {
            Body::Shard(shard) => {
                let mut next = 0;
                let mut add = |at, key: &[u8]| {
                    for before in next..at {
                        each(
                            shard.record_len(before).unwrap_or(0),
                            shard.label(before),
                            b"",
                        );
                    }
                    if all.contains(&at) {
                        each(shard.record_len(at).unwrap_or(0), shard.label(at), key);
                    }
                    next = at + 1;
                };
                let keys = shard.for_each_key(&mut add);
                add(all.end, b"");
                keys.map_err(text)
            }
            Body::File(file, _) => {
                all.for_each(|at| each(file.record_bytes(at), None, b""));
                Ok(())
            }
            Body::Images(files) => {
                files.known(each);
                Ok(())
            }
        }
    }

    fn read(&self, at: u64, record: &mut Record) -> Result<(), String> {
        if let Body::Shard(shard) = &self.body {
            record.key = shard.key(at).map_err(text)?;
        }
        let one = at..at + 1;
        let read = self.cursor(one.clone(), true);
        let read = read.and_then(|mut cursor| cursor(record));
        if read.is_err() {
            // Shows what there is of a record that fails the checks.
            let _ = self
                .cursor(one, false)
                .and_then(|mut cursor| cursor(record));
        }
        read.and_then(|is_there| {
            is_there
                .then_some(())
                .ok_or("the file ends before it".into())
        })
    }

    /// Returns a function that reads the next record of a range, or returns false at its end. After an error, another cursor
    /// may read the records after the damaged one. With `checked`, records that loaders could not use are errors.
    fn cursor(&self, range: Range<u64>, checked: bool) -> Result<Cursor<'_>, String> {
        Ok(match &self.body {
            Body::Shard(shard) => {
                let mut scan = shard.scan(range);
                Box::new(move |record| {
                    let Some(next) = scan.next_record().map_err(text)? else {
                        return Ok(false);
                    };
                    record.label = shard.label(next.info.index);
                    record.bytes.clear();
                    record.bytes.extend_from_slice(next.bytes);
                    Ok(true)
                })
            }
            Body::File(file, labels) => {
                let inner = file.unchecked().filter(|_| !checked);
                let mut reader = inner.unwrap_or(&**file).read(range).map_err(text)?;
                Box::new(move |record| {
                    let Some(next) = reader.next_record().map_err(text)? else {
                        return Ok(false);
                    };
                    let label = || labels.get(next.key).copied().map(i64::from);
                    record.label = next.label.or_else(label);
                    record.bytes.clear();
                    record.bytes.extend_from_slice(next.bytes);
                    record.key.clear();
                    record.key.extend_from_slice(next.key);
                    Ok(true)
                })
            }
            Body::Images(files) => {
                let mut rest = range;
                Box::new(move |record| match rest.next() {
                    Some(at) => files.read(at, record).map(|()| true),
                    None => Ok(false),
                })
            }
        })
    }

    /// Calls `each` with the records of a range in order, until it returns false. The range counts from the start of the part.
    pub(super) fn scan(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(Result<&Record, &str>) -> bool,
    ) {
        let mut record = Record::default();
        let (mut at, mut failures) = (range.start, 0);
        while at < range.end && failures < MAX_FAILURES {
            let mut cursor = self.cursor(at..range.end, true);
            let failed = loop {
                let next = cursor.as_mut().map_err(|error| error.clone());
                match next.and_then(|cursor| cursor(&mut record)) {
                    Ok(true) if each(Ok(&record)) => (at, failures) = (at + 1, 0),
                    Ok(_) => return,
                    Err(error) => break error,
                }
            };
            if !each(Err(&failed)) {
                return;
            }
            (at, failures) = (at + 1, failures + 1);
        }
        let given_up = "the records before it cannot be read, so the rest of the file is left out";
        while at < range.end && each(Err(given_up)) {
            at += 1;
        }
    }

    /// Returns the place of a record on disk or in a store.
    pub(super) fn place(&self, number: u64) -> String {
        let at = number - self.records.start;
        match &self.body {
            Body::Shard(shard) => {
                let path = shard.source_path().unwrap_or_else(|| shard.path());
                match shard.byte_range(at..at + 1) {
                    Ok(range) => format!(
                        "{}: record {at}, bytes {} to {}",
                        path.display(),
                        range.start,
                        range.end
                    ),
                    Err(_) => format!("{}: record {at}", path.display()),
                }
            }
            Body::File(file, _) => format!("{}: record {at}", file.path().display()),
            Body::Images(files) => files.place(at),
        }
    }
}

pub(super) fn text(error: impl ToString) -> String {
    error.to_string()
}

/// Returns what the account of a dataset says about items that are not in it.
fn left_out(account: &Account) -> Vec<String> {
    let lines = |map: &std::collections::BTreeMap<String, u64>, what: &str| {
        let line =
            |(reason, count): (&String, &u64)| format!("{count} {} {what}: {reason}", account.unit);
        map.iter().map(line).collect::<Vec<_>>()
    };
    let mut all = lines(&account.left_out, "left out");
    all.extend(lines(&account.problems, "with a problem"));
    all.extend(lines(&account.ignored, "ignored"));
    all
}
