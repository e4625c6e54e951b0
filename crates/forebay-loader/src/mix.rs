//! Several datasets as one: numbering of their records, and conversion of their labels.
//!
//! This module numbers the records of a mix and names its classes. The frequency of each dataset is
//! a [quota](crate::plan::Selection) of the epoch; the plan determines the order, as for a single
//! dataset.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use forebay_options::LabelBase;
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::ClassEntry;
use forebay_shard::{Dataset, RecordBlock, Schema, Split, StorageStats};

use crate::error::{Error, RecordLocation, Result};
use crate::labels::Relabel;
use crate::plan::Key;
use crate::sampling::Sampling;
use crate::source::{
    Classes, DEFAULT_READERS, MAX_GAP_BYTES, PageCache, Portions, Source, SplitSource,
};

/// Splits of several datasets that are read as one.
///
/// Records are numbered consecutively: those of the first split, then those of the second, and so
/// on. Without weights an epoch has each record once. With weights it has as many samples as there
/// are records, or [`Sampling::num_samples`](crate::Sampling::num_samples), and each split gets a quota in
/// proportion to its weight in that epoch. The epochs cycle through a split, in a new order each time, and each
/// epoch continues where the previous one ended: a record repeats only after all others of its
/// split occurred.
///
/// ```no_run
/// use forebay_image::{TrainTransform, Transform};
/// use forebay_loader::{Loader, Mix, MixLabels, Options};
/// use forebay_shard::Dataset;
///
/// let photos = Dataset::open("/data/photos")?.split("train")?;
/// let sketches = Dataset::open("/data/sketches")?.split("train")?;
/// let mut mix = Mix::new(vec![photos, sketches]);
/// mix.weights = vec![vec![0.7, 0.3]];
/// mix.labels = MixLabels::ByName;
/// let options = Options::new(256, Transform::Train(TrainTransform::new(224)));
/// let loader = Loader::mixed(&mix, options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Mix {
    /// The splits, in the order in which their records are numbered.
    pub splits: Vec<Split>,
    /// One weight per split for each epoch, where those of the last one stay; empty for each record once.
    pub weights: Vec<Vec<f64>>,
    /// The conversion of labels.
    pub labels: MixLabels,
}

/// Conversion of the labels of the datasets in a [`Mix`], which count from
/// [`Options::label_base`](crate::Options::label_base). A record without a label, or with a
/// negative one, is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MixLabels {
    /// Each dataset keeps its own labels, whatever they mean in the others.
    #[default]
    Stored,
    /// Adds these numbers to the labels of each dataset, one number per split.
    Add(Vec<i64>),
    /// The classes of each split are numbered after those of the preceding one.
    Offset,
    /// One class per name: those of the first split, then the additional ones of the second, and so
    /// on.
    ByName,
}

impl MixLabels {
    /// Returns the conversion with this name in Python and in configurations.
    ///
    /// # Errors
    /// The names that there are.
    pub fn named(name: &str) -> Result<Self> {
        let expected = "\"stored\", \"offset\", \"names\", or a number for each dataset";
        match name {
            "stored" => Ok(Self::Stored),
            "offset" => Ok(Self::Offset),
            "names" => Ok(Self::ByName),
            other => Err(Error::option("labels", format!("{other:?}"), expected)),
        }
    }
}

impl Mix {
    /// Creates a mix with each record once and unchanged labels.
    #[must_use]
    pub fn new(splits: Vec<Split>) -> Self {
        Mix {
            splits,
            weights: Vec::new(),
            labels: MixLabels::default(),
        }
    }

    /// Creates a mix for each split that all of these datasets have.
    ///
    /// # Errors
    /// Weights or labels that do not fit the datasets, and datasets without a common split.
    pub fn of_datasets(
        datasets: &[Dataset],
        weights: &[Vec<f64>],
        labels: &MixLabels,
    ) -> Result<Vec<Self>> {
        let has = |dataset: &Dataset, name: &str| dataset.splits().any(|own| own == name);
        let names = datasets.first().into_iter().flat_map(Dataset::splits);
        let common = names.filter(|name| datasets.iter().all(|dataset| has(dataset, name)));
        let mixes = common.map(|name| {
            let splits = datasets.iter().map(|dataset| dataset.split(name));
            let mut mix = Mix::new(splits.collect::<forebay_shard::Result<_>>()?);
            (mix.weights, mix.labels) = (weights.to_vec(), labels.clone());
            let source = mix.source(PageCache::default(), LabelBase::default())?;
            Sampling::default().resolve(&source)?;
            Ok(mix)
        });
        let mixes: Vec<Self> = mixes.collect::<Result<_>>()?;
        if mixes.is_empty() {
            let expected = "one that all of them have";
            return Err(Error::option(
                "datasets",
                "without a common split",
                expected,
            ));
        }
        Ok(mixes)
    }

    /// Returns the number of the first record of each split.
    #[must_use]
    pub fn starts(&self) -> Vec<u64> {
        let starts = self.splits.iter().scan(0, |next, split| {
            let start = *next;
            *next += split.len();
            Some(start)
        });
        starts.collect()
    }

    /// Returns the names of the splits, or the name that all of them share.
    #[must_use]
    pub fn split(&self) -> String {
        let mut names: Vec<&str> = self.splits.iter().map(Split::name).collect();
        names.dedup();
        names.join("+")
    }

    /// Returns the identity of the mix: the fingerprints of its datasets, their weights, and the
    /// conversion of labels.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.identity(self.splits.iter().map(Split::fingerprint))
    }

    /// Returns the same identity computed from sample fingerprints, if all manifests have one. It does not change in conversions
    /// that keep the samples.
    #[must_use]
    pub fn sample_fingerprint(&self) -> Option<String> {
        let samples: Option<Vec<&str>> =
            self.splits.iter().map(Split::sample_fingerprint).collect();
        samples.map(|samples| self.identity(samples.into_iter()))
    }

    fn identity<'a>(&self, fingerprints: impl Iterator<Item = &'a str>) -> String {
        let mut text = "mix(".to_owned();
        for (i, fingerprint) in fingerprints.enumerate() {
            text += if i == 0 { "" } else { ", " };
            if let Some(weight) = self.weights.first().and_then(|weights| weights.get(i)) {
                let _ = write!(text, "{weight}*");
            }
            text += fingerprint;
        }
        if let [_, later @ ..] = self.schedule()
            && !later.is_empty()
        {
            let bits = later.iter().flatten().map(|weight| weight.to_bits());
            let key = bits.fold(Key::root(later.len() as u64), Key::child).bits();
            let _ = write!(text, "; weights of {} epochs={key:016x}", later.len() + 1);
        }
        match &self.labels {
            MixLabels::Stored => {}
            MixLabels::Add(offsets) => {
                let _ = write!(text, "; labels={offsets:?}");
            }
            MixLabels::Offset => text += "; labels=offset",
            MixLabels::ByName => text += "; labels=names",
        }
        text + ")"
    }

    /// Returns the weights without those of last epochs that change nothing.
    fn schedule(&self) -> &[Vec<f64>] {
        let last = self.weights.last();
        let changing = self
            .weights
            .iter()
            .rposition(|weights| Some(weights) != last);
        let len = changing.map_or(1, |at| at + 2).min(self.weights.len());
        &self.weights[..len]
    }

    pub(crate) fn source(&self, page_cache: PageCache, label_base: LabelBase) -> Result<MixSource> {
        let count = self.splits.len();
        if count == 0 {
            return Err(Error::option("datasets", "empty", "at least one dataset"));
        }
        if let Some(weights) = self.weights.iter().find(|weights| weights.len() != count) {
            let expected = format!("{count}, one for each dataset");
            let found = format!("{} numbers", weights.len());
            return Err(Error::option("weights", found, expected));
        }
        let names = self.relabel(label_base)?;
        let mut parts = Vec::with_capacity(count);
        for (split, relabel) in self.splits.iter().zip(names.relabel) {
            let source = SplitSource::new(split.clone())?;
            parts.push(source.keeping(page_cache).relabelled(relabel));
        }
        let mut starts = self.starts();
        starts.push(self.splits.iter().map(Split::len).sum());
        Ok(MixSource {
            parts,
            starts,
            weights: self.schedule().to_vec(),
            by_name: names.by_name,
            classes: names.classes,
        })
    }

    /// Returns the conversion of labels for each split, and the names of the classes.
    fn relabel(&self, label_base: LabelBase) -> Result<Names> {
        let zeros = vec![0; self.splits.len()];
        let added = match &self.labels {
            MixLabels::Stored => &zeros,
            MixLabels::Add(offsets) if offsets.len() == self.splits.len() => offsets,
            MixLabels::Add(offsets) => {
                let expected = format!("{}, one for each dataset", self.splits.len());
                let found = format!("{} numbers", offsets.len());
                return Err(Error::option("labels", found, expected));
            }
            MixLabels::Offset | MixLabels::ByName => return self.relabel_classes(label_base),
        };
        let firsts: Vec<i64> = self
            .splits
            .iter()
            .map(|split| label_base.or_stored(split.label_base()))
            .collect();
        let relabel = self
            .splits
            .iter()
            .zip(added)
            .map(|(split, &add)| Relabel::new(label_base, split.label_base(), add))
            .collect();
        let lists: Vec<(i64, &[ClassEntry])> = self
            .splits
            .iter()
            .zip(firsts.iter().zip(added))
            .map(|(split, (first, add))| (first.saturating_add(*add), split.classes()))
            .collect();
        let mut by_name = BTreeMap::new();
        let mut by_label = BTreeMap::new();
        let mut clear = true;
        for (first, list) in &lists {
            clear &= !list.is_empty();
            for (at, class) in list.iter().enumerate() {
                let label = first.saturating_add(at as i64);
                call(&mut by_name, &class.name, label);
                clear &= *by_label.entry(label).or_insert(&class.name) == &class.name;
            }
        }
        // A name can be used for a label only if every dataset has the same class at
        // that label.
        let names = |at: usize| lists[at].1.iter().map(|class| &class.name);
        let agree = (1..lists.len()).all(|at| lists[at].0 == lists[0].0 && names(at).eq(names(0)));
        if !agree {
            by_name
                .values_mut()
                .for_each(|class| *class = Class::Several);
        }
        let first = firsts
            .first()
            .copied()
            .filter(|first| firsts.iter().all(|other| other == first));
        clear &= first.is_some_and(|first| {
            by_label
                .keys()
                .copied()
                .eq(first..first + by_label.len() as i64)
        });
        let names = by_label.into_values().filter(|_| clear).cloned().collect();
        Ok(Names {
            relabel,
            by_name,
            classes: Classes { first, names },
        })
    }

    /// As [`Mix::relabel`], for [`MixLabels::ByName`].
    fn relabel_classes(&self, label_base: LabelBase) -> Result<Names> {
        let first = label_base.or_stored(self.splits.first().map_or(0, Split::label_base));
        let mut by_name = BTreeMap::new();
        let mut known: BTreeMap<&str, i64> = BTreeMap::new();
        let mut names: Vec<String> = Vec::new();
        let mut relabel = Vec::with_capacity(self.splits.len());
        for (i, split) in self.splits.iter().enumerate() {
            if split.classes().is_empty() {
                let found = format!("by classes, and dataset {i} has no list of them");
                let expected =
                    "datasets with classes, or labels as stored, or numbers to add to them";
                return Err(Error::option("labels", found, expected));
            }
            let mut labels = Vec::with_capacity(split.classes().len());
            for class in split.classes() {
                let label = match known.get(class.name.as_str()) {
                    Some(&label) if self.labels == MixLabels::ByName => label,
                    _ => {
                        names.push(class.name.clone());
                        first.saturating_add(names.len() as i64 - 1)
                    }
                };
                known.insert(&class.name, label);
                call(&mut by_name, &class.name, label);
                labels.push(label);
            }
            let base = split.label_base();
            relabel.push(Relabel::Table { base, labels });
        }
        Ok(Names {
            relabel,
            by_name,
            classes: Classes {
                first: Some(first),
                names: names.into(),
            },
        })
    }
}

/// Notes that class `name` has this label in a dataset.
fn call(by_name: &mut BTreeMap<String, Class>, name: &str, label: i64) {
    by_name
        .entry(name.to_owned())
        .and_modify(|class| {
            if *class != Class::Of(label) {
                *class = Class::Several;
            }
        })
        .or_insert(Class::Of(label));
}

/// The labels and class names of a mix.
struct Names {
    /// One per split.
    relabel: Vec<Relabel>,
    by_name: BTreeMap<String, Class>,
    classes: Classes,
}

/// The label of a class name.
#[derive(Debug, PartialEq, Eq)]
enum Class {
    Of(i64),
    /// The name has several labels, or its label several names, across datasets.
    Several,
}

/// The records of several splits, numbered consecutively.
pub(crate) struct MixSource {
    parts: Vec<SplitSource>,
    /// Number of the first record of each part, followed by the total number of records.
    starts: Vec<u64>,
    /// The weights of the parts in each epoch.
    weights: Vec<Vec<f64>>,
    by_name: BTreeMap<String, Class>,
    classes: Classes,
}

impl MixSource {
    /// Returns the part of a record and its first number. The record must exist; otherwise it is
    /// the last part.
    fn part(&self, record: u64) -> (&SplitSource, u64) {
        let at = self.part_of(record);
        (&self.parts[at], self.starts[at])
    }

    fn within(&self, piece: &Range<u64>) -> (&SplitSource, Range<u64>) {
        let (part, start) = self.part(piece.start);
        (part, piece.start - start..piece.end - start)
    }
}

impl Source for MixSource {
    fn records(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes()).sum()
    }

    /// The minimum over all parts, so that no block of any part is too long.
    fn block_records(&self) -> Option<u64> {
        let parts: Option<Vec<u64>> = self.parts.iter().map(|part| part.block_records()).collect();
        parts?.into_iter().min()
    }

    fn piece(&self, run: &Range<u64>, record: u64) -> Range<u64> {
        let (part, start) = self.part(record);
        let end = start + part.records();
        let mine = run.start.max(start) - start..run.end.min(end) - start;
        let piece = part.piece(&mine, record - start);
        piece.start + start..piece.end + start
    }

    fn stored_bytes(&self, piece: &Range<u64>) -> Result<u64> {
        let (source, piece) = self.within(piece);
        source.stored_bytes(&piece)
    }

    fn read(&self, piece: &Range<u64>, block: &mut RecordBlock) -> Result<()> {
        let (source, piece) = self.within(piece);
        source.read(&piece, block)
    }

    fn read_profile(&self) -> (usize, u64) {
        let paces = self.parts.iter().map(|part| part.read_profile());
        let all = paces.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
        all.unwrap_or((DEFAULT_READERS, MAX_GAP_BYTES))
    }

    fn storage(&self) -> Option<String> {
        let far: BTreeSet<String> = self
            .parts
            .iter()
            .filter_map(|part| part.storage())
            .collect();
        let far: Vec<String> = far.into_iter().collect();
        (!far.is_empty()).then(|| far.join(" and "))
    }

    fn traffic(&self) -> Option<StorageStats> {
        let traffics = self.parts.iter().filter_map(|part| part.traffic());
        traffics.reduce(StorageStats::and)
    }

    fn will_need(&self, piece: &Range<u64>) {
        let (source, piece) = self.within(piece);
        source.will_need(&piece);
    }

    fn locate(&self, record: u64) -> RecordLocation {
        let (part, start) = self.part(record);
        RecordLocation {
            sample: record,
            ..part.locate(record - start)
        }
    }

    fn key(&self, record: u64) -> Option<Vec<u8>> {
        let (part, start) = self.part(record);
        part.key(record - start)
    }

    fn record_features(&self, record: u64) -> &RecordFeatures {
        let (part, start) = self.part(record);
        part.record_features(record - start)
    }

    fn schemas(&self) -> Vec<Schema> {
        self.parts.iter().flat_map(|part| part.schemas()).collect()
    }

    fn part_of(&self, record: u64) -> usize {
        let after = self.starts.partition_point(|&start| start <= record);
        after.saturating_sub(1).min(self.parts.len() - 1)
    }

    fn relabel(&self, record: u64, stored: i64) -> Result<i64, String> {
        let (part, start) = self.part(record);
        part.relabel(record - start, stored)
    }

    fn for_each_label(&self, each: &mut dyn FnMut(u64, Option<i64>)) {
        for (part, start) in self.parts.iter().zip(&self.starts) {
            part.for_each_label(&mut |record, label| each(start + record, label));
        }
    }

    fn class_label(&self, name: &str) -> Result<Option<i64>> {
        match self.by_name.get(name) {
            None => Ok(None),
            Some(Class::Of(label)) => Ok(Some(*label)),
            Some(Class::Several) => {
                let found = format!("by the name {name:?}, and the classes of the datasets differ");
                let expected = "labels, or a mix whose labels are by name";
                Err(Error::option("classes", found, expected))
            }
        }
    }

    fn classes(&self) -> Classes {
        self.classes.clone()
    }

    fn portions(&self) -> Option<Portions> {
        (!self.weights.is_empty()).then(|| Portions {
            starts: self.starts.clone(),
            bytes: self.parts.iter().map(|part| part.bytes()).collect(),
            weights: self.weights.clone(),
        })
    }
}
