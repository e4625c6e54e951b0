//! Compares a dataset with its source: the bytes of each file must be in exactly one record, and each record must belong
//! to a file.
//!
//! Records are matched to files by key, so shuffling, sharding and the format do not matter. Memory holds the census,
//! one byte per file for its number of records, and for each record the number of its file.
//!
//! Verification calls [`SourceComparison::check`] with each record, which compares it with the file (`source`); `report` adds
//! what the report of the pack says.

mod report;
mod source;

pub use report::{ComparisonReport, Difference, DifferenceKind};

use crate::census::{Census, SplitCensus};
use crate::error::{Error, Result};
use crate::export::original_image;
use crate::observer::{Cancel, Observer, SourceProgress, Stage};
use crate::options::PackOptions;
use crate::publish::LABELS_KEY;
use forebay_formats::escape;
use forebay_formats::images::SourceLayout;
use forebay_formats::key_path::join;
use forebay_image::Limits;
use forebay_shard::example::RecordFeatures;
use forebay_shard::{ExampleView, Manifest, Shard, Storage};
use forebay_store::{Location, StoreOptions};
use report::{PackOutcome, ReportBuilder};
use source::{ImageComparison, SourceBytes};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering as Memory};
use std::sync::{Arc, Mutex, OnceLock};

/// Stands for the file number of a record without a file.
const NO_FILE: u32 = u32::MAX;

/// A comparison of a dataset with its source. `check` is called with each record, in any order and from any thread.
#[derive(Debug)]
pub struct SourceComparison {
    census: Census,
    source: SourceBytes,
    shards: Vec<ShardFiles>,
    by_path: HashMap<PathBuf, usize>,
    storage: Arc<dyn Storage>,
    splits: Vec<SplitFiles>,
    pack_outcomes: HashMap<String, PackOutcome>,
    report: Mutex<ReportBuilder>,
    features: RecordFeatures,
}

/// The files of a split.
#[derive(Debug)]
struct SplitFiles {
    /// Numbers of the files in the order of their keys, if the census has another order.
    order: Option<Vec<u32>>,
    /// Number of records of each file; 2 means two or more.
    records: Vec<AtomicU8>,
}

/// A shard, and the files of its records.
#[derive(Debug)]
struct ShardFiles {
    path: PathBuf,
    split_name: String,
    split: Option<usize>,
    /// Number of the file of each record within the split; empty if the shard's keys cannot be read.
    files: OnceLock<Vec<u32>>,
}

impl SourceComparison {
    /// Takes the census of a source, with the options that the manifest of the dataset records. `src_store` configures access
    /// to a source in a store.
    ///
    /// # Errors
    /// If either cannot be read, or the records have no keys.
    pub fn open(
        dataset: &Path,
        storage: Arc<dyn Storage>,
        src: impl Into<Location>,
        src_store: &StoreOptions,
        observer: &dyn Observer,
        cancel: &Cancel,
    ) -> Result<Self> {
        let manifest = Manifest::load_in(dataset, &*storage)?;
        let mut options = PackOptions::new(src, dataset);
        options.src_store = src_store.clone();
        let packed = |name: &str| manifest.pack.get(name).and_then(|value| value.as_str());
        options.split = packed("split").map(str::to_owned);
        options.layout = packed("layout").and_then(SourceLayout::named);
        // A file of labels may list files that the layout alone would not include.
        observer.stage(Stage::Census);
        let progress = SourceProgress(observer);
        let census = match manifest.pack.contains_key(LABELS_KEY) {
            true => Census::take_labelled(&options, &progress, cancel)?,
            false => Census::take(&options, &progress, cancel)?,
        };
        let source = SourceBytes::open(&census, observer, cancel)?;
        let mut shards = Vec::new();
        for split in &manifest.splits {
            let mut known = census.splits().iter();
            let at = match census.layout().names_splits() {
                true => known.position(|known| known.name() == split.name),
                // A column of splits may have divided the only directory of the source.
                false => Some(0),
            };
            shards.extend(split.shards.iter().map(|shard| ShardFiles {
                path: dataset.join(&shard.name),
                split_name: split.name.clone(),
                split: at,
                files: OnceLock::new(),
            }));
        }
        if let Some(first) = shards.first()
            && let Ok(shard) = open_shard(&first.path, &storage)
            && !shard.is_empty()
            && !shard.index().has_keys()
        {
            let what = "its records have no keys, by which files could be found";
            return Err(Error::destination(&first.path, what));
        }
        let paths = shards.iter().map(|shard| shard.path.clone());
        Ok(Self {
            by_path: paths.zip(0..).collect(),
            splits: census.splits().iter().map(SplitFiles::new).collect(),
            pack_outcomes: report::pack_outcomes(dataset, &*storage)?,
            storage,
            report: Mutex::default(),
            features: manifest.record_features,
            census,
            source,
            shards,
        })
    }

    /// Returns the number of files of the source.
    pub fn files(&self) -> u64 {
        self.census.files()
    }

    /// Compares a record with its file. Differences are in the report that `finish` returns.
    pub fn check(&self, shard: &Path, record: u64, payload: &[u8]) {
        let Some(shard) = self.by_path.get(shard).and_then(|at| self.shards.get(*at)) else {
            return;
        };
        let files = self.files_of(shard);
        let file = usize::try_from(record).ok().and_then(|at| files.get(at));
        let (Some(file), Some(at)) = (file.filter(|file| **file != NO_FILE), shard.split) else {
            // Records without a file are listed by `finish`.
            return;
        };
        let split = &self.census.splits()[at];
        let entry = split.get(u64::from(*file));
        let key = entry.key();
        let note = |kind, detail: String| {
            self.report().note(Difference {
                kind,
                split: split.name().to_owned(),
                key: escape(&key),
                shard: Some(shard.path.clone()),
                record: Some(record),
                detail,
            });
        };
        let no_image = || "the record holds no image".to_owned();
        // A progressive file that was transcoded to baseline is restored byte for byte.
        let example = ExampleView::parse(payload).map_err(|_| no_image());
        let original = example
            .and_then(|example| original_image(&example, &self.features)?.ok_or_else(no_image));
        let image = match &original {
            Ok(image) => &image[..],
            Err(what) => return note(DifferenceKind::Changed, what.clone()),
        };
        thread_local! {
            static FILE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        FILE.with_borrow_mut(|buffer| {
            let outcome = self.pack_outcomes.get(&escape(&join(split.dir(), &key)));
            if let Some(outcome @ (PackOutcome::Converted | PackOutcome::Resized)) = outcome {
                let remade = match self.source.read(at, &entry, buffer) {
                    Some(Ok(())) => check_remade(*outcome, payload, image, Some(buffer)),
                    Some(Err(why)) => return note(DifferenceKind::Unreadable, why),
                    None => check_remade(*outcome, payload, image, None),
                };
                match remade {
                    Ok(()) => self.report().remade += 1,
                    Err(what) => note(DifferenceKind::Changed, what),
                }
                return;
            }
            match self.source.compare(at, &entry, image, buffer) {
                ImageComparison::Same => self.report().verbatim += 1,
                ImageComparison::Differs(how) => note(DifferenceKind::Changed, how),
                ImageComparison::Unreadable(why) => note(DifferenceKind::Unreadable, why),
            }
        });
    }

    /// Returns the report, after every record was checked.
    ///
    /// # Errors
    /// If the keys of a shard cannot be read.
    pub fn finish(self) -> Result<ComparisonReport> {
        for shard in &self.shards {
            let files = self.files_of(shard);
            let counts = shard.split.map(|at| &self.splits[at].records);
            let is_odd = |file: u32| match counts.and_then(|counts| counts.get(file as usize)) {
                _ if file == NO_FILE => Some(DifferenceKind::Extra),
                Some(count) if count.load(Memory::Relaxed) > 1 => Some(DifferenceKind::Doubled),
                _ => None,
            };
            if !files.iter().any(|file| is_odd(*file).is_some()) {
                continue;
            }
            open_shard(&shard.path, &self.storage)?.for_each_key(|record, key| {
                let file = usize::try_from(record).ok().and_then(|at| files.get(at));
                if let Some(kind) = file.and_then(|file| is_odd(*file)) {
                    self.report().note(Difference {
                        kind,
                        split: shard.split_name.clone(),
                        key: escape(key),
                        shard: Some(shard.path.clone()),
                        record: Some(record),
                        detail: String::new(),
                    });
                }
            })?;
        }
        for (split, known) in self.census.splits().iter().zip(&self.splits) {
            for (entry, records) in split.iter().zip(&known.records) {
                if records.load(Memory::Relaxed) > 0 {
                    continue;
                }
                let key = entry.key();
                let path = escape(&join(split.dir(), &key));
                if self.pack_outcomes.get(&path) == Some(&PackOutcome::LeftOut) {
                    self.report().left_out += 1;
                    continue;
                }
                self.report().note(Difference {
                    kind: DifferenceKind::Missing,
                    split: split.name().to_owned(),
                    key: escape(&key),
                    shard: None,
                    record: None,
                    detail: String::new(),
                });
            }
        }
        let files = self.census.files();
        let report = self.report.into_inner();
        Ok(report.unwrap_or_else(|e| e.into_inner()).report(files))
    }

    fn report(&self) -> std::sync::MutexGuard<'_, ReportBuilder> {
        self.report.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the file of each record of a shard. The first call reads the keys and counts the records of each file.
    fn files_of<'a>(&self, shard: &'a ShardFiles) -> &'a [u32] {
        shard.files.get_or_init(|| {
            let mut files = Vec::new();
            let keys = open_shard(&shard.path, &self.storage).and_then(|opened| {
                opened.for_each_key(|_, key| {
                    let found = shard.split.and_then(|at| {
                        let number = self.splits[at].find(&self.census.splits()[at], key)?;
                        let count = &self.splits[at].records[number as usize];
                        let more = |count: u8| Some((count + 1).min(2));
                        let _ = count.fetch_update(Memory::Relaxed, Memory::Relaxed, more);
                        Some(number)
                    });
                    files.push(found.unwrap_or(NO_FILE));
                })
            });
            // Verification reports the damage of the shard; here the files of the unreadable records count as missing.
            drop(keys);
            files
        })
    }
}

fn open_shard(path: &Path, storage: &Arc<dyn Storage>) -> forebay_shard::Result<Shard> {
    Shard::options().storage(Arc::clone(storage)).open(path)
}

impl SplitFiles {
    fn new(split: &SplitCensus) -> Self {
        let keys = || split.iter().map(|entry| entry.key());
        let order = (!keys().is_sorted()).then(|| {
            let mut order: Vec<u32> = (0..split.len() as u32).collect();
            order.sort_by_cached_key(|at| split.get(u64::from(*at)).key());
            order
        });
        Self {
            order,
            records: (0..split.len()).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// Returns the number of the file with this key.
    fn find(&self, split: &SplitCensus, key: &[u8]) -> Option<u32> {
        let (mut low, mut high) = (0, self.records.len() as u64);
        while low < high {
            let middle = low + (high - low) / 2;
            let number = match &self.order {
                Some(order) => u64::from(order[middle as usize]),
                None => middle,
            };
            let entry = split.get(number);
            let slash: &[u8] = if entry.dir.is_empty() { b"" } else { b"/" };
            let there = entry.dir.iter().chain(slash).chain(entry.name);
            match there.cmp(key) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return u32::try_from(number).ok(),
            }
        }
        None
    }
}

/// Checks a transcoded image, which differs from its file: its size in pixels follows from the file.
fn check_remade(
    outcome: PackOutcome,
    record: &[u8],
    image: &[u8],
    file: Option<&[u8]>,
) -> Result<(), String> {
    let limits = Limits::default();
    let probe = forebay_image::probe(image, &limits)
        .map_err(|error| format!("the image that was made of it: {error}"))?;
    let (width, height) = (i64::from(probe.width), i64::from(probe.height));
    let stored = ExampleView::parse(record).ok().and_then(|example| {
        let number = |name| example.int64(name).ok().flatten();
        Some((number("image/width")?, number("image/height")?))
    });
    if stored != Some((width, height)) {
        return Err(format!(
            "the image that was made of it is {width}x{height}, its record says {stored:?}"
        ));
    }
    let Some(Ok(source)) = file.map(|file| forebay_image::probe(file, &limits)) else {
        return Ok(());
    };
    let (from_width, from_height) = (i64::from(source.width), i64::from(source.height));
    // Turning an image upright may swap width and height.
    let fits = |from_width: i64, from_height: i64| match outcome {
        PackOutcome::Resized => {
            let (w, h) = (width * from_height, height * from_width);
            width <= from_width
                && height <= from_height
                && (w - h).abs() <= from_width.max(from_height)
        }
        _ => (width, height) == (from_width, from_height),
    };
    if fits(from_width, from_height) || fits(from_height, from_width) {
        return Ok(());
    }
    Err(format!(
        "the image that was made of it is {width}x{height}, the file's {from_width}x{from_height}"
    ))
}
