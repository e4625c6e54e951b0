//! Several datasets as one: their records one after the other, and what becomes of their labels.
//!
//! Owns how records of a mix are numbered and what classes are called in it. How often each dataset comes is a
//! [portion](crate::plan::Selection) of the epoch; the order is the plan's, as for one dataset.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::ops::Range;

use forebay_shard::manifest::ClassEntry;
use forebay_shard::{RecordBlock, Split, StorageStats};

use crate::error::{Error, Place, Result};
use crate::options::{DEFAULT_READERS, PageCache};
use crate::source::{MAX_GAP_BYTES, Portions, Source, SplitSource};

/// Splits of several datasets that are read as one.
///
/// Records are numbered through: those of the first split, then those of the second, and so on. Without
/// weights an epoch has each record once. With weights it has as many samples as there are records, or as
/// [`Sampling::draws`](crate::Sampling::draws) says, and of each split the share that its weight is of all weights. A split is gone through again and
/// again, in a new order each time, and an epoch goes on where the one before ended: none of its records comes
/// again before all others came.
///
/// ```no_run
/// use forebay_image::{TrainTransform, Transform};
/// use forebay_loader::{Loader, Mix, MixLabels, Options};
/// use forebay_shard::Dataset;
///
/// let photos = Dataset::open("/data/photos")?.split("train")?;
/// let sketches = Dataset::open("/data/sketches")?.split("train")?;
/// let mut mix = Mix::new(vec![photos, sketches]);
/// mix.weights = Some(vec![0.7, 0.3]);
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
    /// One for each split; `None`: each record once.
    pub weights: Option<Vec<f64>>,
    /// What becomes of labels.
    pub labels: MixLabels,
}

/// What becomes of the labels of a [`Mix`]. A record without a label, or with a negative one, keeps that.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MixLabels {
    /// They stay as stored, whatever they mean elsewhere.
    #[default]
    Stored,
    /// These are added to those that are stored, one for each split.
    Add(Vec<i64>),
    /// The classes of each split come after those of the one before.
    Offset,
    /// One class for each name: those of the first split, then those that only the second has, and so on.
    ByName,
}

impl Mix {
    /// Each record of these splits once, with labels as stored.
    #[must_use]
    pub fn new(splits: Vec<Split>) -> Self {
        Mix {
            splits,
            weights: None,
            labels: MixLabels::default(),
        }
    }

    /// Number of the first record of each split.
    #[must_use]
    pub fn starts(&self) -> Vec<u64> {
        let starts = self.splits.iter().scan(0, |next, split| {
            let start = *next;
            *next += split.len();
            Some(start)
        });
        starts.collect()
    }

    /// Name of the splits: the one that all have, or else all of them.
    #[must_use]
    pub fn split(&self) -> String {
        let mut names: Vec<&str> = self.splits.iter().map(Split::name).collect();
        names.dedup();
        names.join("+")
    }

    /// What tells the mix apart from others: the fingerprints of its datasets, their weights, and what becomes of labels.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut text = "mix(".to_owned();
        for (i, split) in self.splits.iter().enumerate() {
            text += if i == 0 { "" } else { ", " };
            if let Some(weight) = self.weights.as_ref().and_then(|weights| weights.get(i)) {
                let _ = write!(text, "{weight}*");
            }
            text += split.fingerprint();
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

    pub(crate) fn source(&self, page_cache: PageCache) -> Result<MixSource> {
        let count = self.splits.len();
        if count == 0 {
            return Err(Error::option("datasets", "empty", "at least one dataset"));
        }
        if let Some(weights) = &self.weights
            && weights.len() != count
        {
            let expected = format!("{count}, one for each dataset");
            let found = format!("{} numbers", weights.len());
            return Err(Error::option("weights", found, expected));
        }
        let (labels, classes) = self.relabel()?;
        let mut parts = Vec::with_capacity(count);
        for (split, labels) in self.splits.iter().zip(labels) {
            let source = SplitSource::new(split.clone())?.keeping(page_cache);
            parts.push(Part { source, labels });
        }
        let mut starts = self.starts();
        starts.push(self.splits.iter().map(Split::len).sum());
        Ok(MixSource {
            parts,
            starts,
            weights: self.weights.clone(),
            classes,
        })
    }

    /// What becomes of the labels of each split, and the labels of classes by name.
    fn relabel(&self) -> Result<(Vec<Relabel>, BTreeMap<String, Class>)> {
        let mut classes = BTreeMap::new();
        let mut name = |name: &str, label: i64| {
            classes
                .entry(name.to_owned())
                .and_modify(|class| {
                    if *class != Class::Of(label) {
                        *class = Class::Several;
                    }
                })
                .or_insert(Class::Of(label));
        };
        let added = |offsets: &[i64]| -> Vec<Relabel> {
            offsets.iter().map(|&offset| Relabel::Add(offset)).collect()
        };
        let relabel = match &self.labels {
            MixLabels::Stored => added(&vec![0; self.splits.len()]),
            MixLabels::Add(offsets) if offsets.len() == self.splits.len() => added(offsets),
            MixLabels::Add(offsets) => {
                let expected = format!("{}, one for each dataset", self.splits.len());
                let found = format!("{} numbers", offsets.len());
                return Err(Error::option("labels", found, expected));
            }
            MixLabels::Offset | MixLabels::ByName => {
                let base = self.splits.first().map_or(0, Split::label_base);
                let mut next = base;
                let mut known: BTreeMap<&str, i64> = BTreeMap::new();
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
                                next = next.saturating_add(1);
                                next - 1
                            }
                        };
                        known.insert(&class.name, label);
                        name(&class.name, label);
                        labels.push(label);
                    }
                    let base = split.label_base();
                    relabel.push(Relabel::Table { base, labels });
                }
                return Ok((relabel, classes));
            }
        };
        // A name stands for a label only where no other dataset has another class, or none, of that label.
        let lists: Vec<(i64, &[ClassEntry])> = self
            .splits
            .iter()
            .zip(&relabel)
            .map(|(split, relabel)| match relabel {
                Relabel::Add(offset) => {
                    (split.label_base().saturating_add(*offset), split.classes())
                }
                Relabel::Table { .. } => (split.label_base(), split.classes()),
            })
            .collect();
        let names = |at: usize| lists[at].1.iter().map(|class| &class.name);
        let agree = (1..lists.len()).all(|at| lists[at].0 == lists[0].0 && names(at).eq(names(0)));
        for (first, list) in &lists {
            for (at, class) in list.iter().enumerate() {
                name(&class.name, first.saturating_add(at as i64));
            }
        }
        if !agree {
            classes
                .values_mut()
                .for_each(|class| *class = Class::Several);
        }
        Ok((relabel, classes))
    }
}

/// The label that a class's name stands for.
#[derive(Debug, PartialEq, Eq)]
enum Class {
    Of(i64),
    /// Labels of that name, or names of that label, differ from dataset to dataset.
    Several,
}

/// What becomes of the labels of one split.
#[derive(Debug)]
enum Relabel {
    Add(i64),
    /// The labels of its classes.
    Table {
        base: i64,
        labels: Vec<i64>,
    },
}

impl Relabel {
    /// The label, if `stored` is one of a class.
    fn of(&self, stored: i64) -> Option<i64> {
        if stored < 0 {
            return Some(stored);
        }
        match self {
            Relabel::Add(offset) => stored.checked_add(*offset),
            Relabel::Table { base, labels } => {
                let at = usize::try_from(stored.checked_sub(*base)?).ok()?;
                labels.get(at).copied()
            }
        }
    }
}

struct Part {
    source: SplitSource,
    labels: Relabel,
}

/// The records of several splits, numbered through.
pub(crate) struct MixSource {
    parts: Vec<Part>,
    /// Number of the first record of each part, then of all records.
    starts: Vec<u64>,
    weights: Option<Vec<f64>>,
    classes: BTreeMap<String, Class>,
}

impl MixSource {
    /// The part of a record and where it begins. For records that there are; the last part for any other.
    fn part(&self, record: u64) -> (&Part, u64) {
        let after = self.starts.partition_point(|&start| start <= record);
        let at = after.saturating_sub(1).min(self.parts.len() - 1);
        (&self.parts[at], self.starts[at])
    }

    fn within(&self, piece: &Range<u64>) -> (&SplitSource, Range<u64>) {
        let (part, start) = self.part(piece.start);
        (&part.source, piece.start - start..piece.end - start)
    }
}

impl Source for MixSource {
    fn records(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.source.bytes()).sum()
    }

    fn piece(&self, run: &Range<u64>, record: u64) -> Range<u64> {
        let (part, start) = self.part(record);
        let end = start + part.source.records();
        let mine = run.start.max(start) - start..run.end.min(end) - start;
        let piece = part.source.piece(&mine, record - start);
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

    fn pace(&self) -> (usize, u64) {
        let paces = self.parts.iter().map(|part| part.source.pace());
        let all = paces.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
        all.unwrap_or((DEFAULT_READERS, MAX_GAP_BYTES))
    }

    fn storage(&self) -> Option<String> {
        let far: BTreeSet<String> = self
            .parts
            .iter()
            .filter_map(|part| part.source.storage())
            .collect();
        let far: Vec<String> = far.into_iter().collect();
        (!far.is_empty()).then(|| far.join(" and "))
    }

    fn traffic(&self) -> Option<StorageStats> {
        let traffics = self.parts.iter().filter_map(|part| part.source.traffic());
        traffics.reduce(StorageStats::and)
    }

    fn will_need(&self, piece: &Range<u64>) {
        let (source, piece) = self.within(piece);
        source.will_need(&piece);
    }

    fn locate(&self, record: u64) -> Place {
        let (part, start) = self.part(record);
        Place {
            sample: record,
            ..part.source.locate(record - start)
        }
    }

    fn key(&self, record: u64) -> Option<Vec<u8>> {
        let (part, start) = self.part(record);
        part.source.key(record - start)
    }

    fn label(&self, record: u64, stored: i64) -> Result<i64> {
        let label = self.part(record).0.labels.of(stored);
        label.ok_or_else(|| Error::Record {
            place: Box::new(self.place(record)),
            what: format!(
                "label {stored} is none of its dataset's classes, by which the mix has labels"
            ),
        })
    }

    fn for_each_label(&self, each: &mut dyn FnMut(u64, Option<i64>)) {
        for (part, start) in self.parts.iter().zip(&self.starts) {
            part.source.for_each_label(&mut |record, label| {
                let label = label.and_then(|stored| part.labels.of(stored));
                each(start + record, label);
            });
        }
    }

    fn class_label(&self, name: &str) -> Result<Option<i64>> {
        match self.classes.get(name) {
            None => Ok(None),
            Some(Class::Of(label)) => Ok(Some(*label)),
            Some(Class::Several) => {
                let found = format!("by the name {name:?}, and the classes of the datasets differ");
                let expected = "labels, or a mix whose labels are by name";
                Err(Error::option("classes", found, expected))
            }
        }
    }

    fn portions(&self) -> Option<Portions> {
        let weights = self.weights.clone()?;
        Some(Portions {
            starts: self.starts.clone(),
            bytes: self.parts.iter().map(|part| part.source.bytes()).collect(),
            weights,
        })
    }
}
