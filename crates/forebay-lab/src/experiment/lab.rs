//! The media with their data, and runs of alternatives in turn. All experiments share them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;

use super::data::MediumData;
use super::stores::StoreData;
use super::{CharacterizeObserver, CharacterizeOptions};
use crate::Result;
use crate::cold::{Evictor, Footprint, Proof, Watch, Way, summary};
use crate::measure::median;
use crate::report::{Figure, FigureClass};

/// The media of a report, and the options that they are measured with.
pub struct Lab<'a> {
    pub(super) options: &'a CharacterizeOptions,
    pub(super) media: Vec<MediumData>,
    pub(super) stores: Vec<StoreData>,
    /// Source of the data in stores, if no medium is a directory.
    local: Option<MediumData>,
    observer: &'a dyn CharacterizeObserver,
    evictor: Evictor,
}

/// Result of one run.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) value: f64,
    /// Bytes that were read from files.
    pub(super) bytes: u64,
    /// Bytes of them that came over the network; `None` if these are not counted.
    pub(super) fetched: Option<u64>,
    pub(super) more: BTreeMap<String, f64>,
}

impl Sample {
    /// Creates a result with a value, and further values by their names with units.
    pub(super) fn new<const N: usize>(value: f64, bytes: u64, more: [(&str, f64); N]) -> Self {
        Self {
            value,
            bytes,
            fetched: None,
            more: more.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }
}

impl Sample {
    /// Sets the bytes that came over the network.
    pub(super) fn fetching(mut self, bytes: Option<u64>) -> Self {
        self.fetched = bytes;
        self
    }
}

/// State of the page cache before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    /// Emptied in the way that `--cold` selects.
    Emptied,
    /// Left as the previous run left it.
    Kept,
    /// Filled with everything that the run reads.
    Filled,
    /// Bypassed by the run.
    Bypassed,
}

/// An alternative to measure.
pub(super) struct Trial<'t> {
    pub(super) medium: String,
    pub(super) name: String,
    unit: &'static str,
    class: FigureClass,
    /// The files that a run reads; `None` if the page cache does not matter.
    reads: Option<Box<dyn Fn() -> Result<Footprint> + 't>>,
    cache: Cache,
    /// Files that are read into the page cache after it was emptied.
    resident: Option<Footprint>,
    run: Box<dyn FnMut() -> Result<Sample> + 't>,
}

impl<'t> Trial<'t> {
    /// Creates a trial that reads no files.
    pub(super) fn new(
        medium: impl Into<String>,
        name: impl Into<String>,
        unit: &'static str,
        run: impl FnMut() -> Result<Sample> + 't,
    ) -> Self {
        Self {
            medium: medium.into(),
            name: name.into(),
            unit,
            class: FigureClass::Measured,
            reads: None,
            cache: Cache::Emptied,
            resident: None,
            run: Box::new(run),
        }
    }

    /// Sets the files that a run reads, and the state of their page cache before each run.
    pub(super) fn reading(self, files: Footprint, cache: Cache) -> Self {
        self.reading_of(move || Ok(files.clone()), cache)
    }

    /// Sets the files as [`Trial::reading`] does, for files that an earlier trial of the round creates.
    pub(super) fn reading_of(
        mut self,
        files: impl Fn() -> Result<Footprint> + 't,
        cache: Cache,
    ) -> Self {
        self.reads = Some(Box::new(files));
        self.cache = cache;
        self
    }

    /// Sets the files that are in the page cache when a run starts with an emptied one.
    pub(super) fn with_resident(mut self, files: Footprint) -> Self {
        self.resident = Some(files);
        self
    }

    /// Marks the figure as that of a stand-in: the run simulates something.
    pub(super) fn standing_in(mut self) -> Self {
        self.class = FigureClass::StandIn;
        self
    }
}

impl<'a> Lab<'a> {
    pub(super) fn new(
        options: &'a CharacterizeOptions,
        observer: &'a dyn CharacterizeObserver,
    ) -> Result<Self> {
        let media = options
            .media
            .iter()
            .map(|medium| MediumData::new(medium, options));
        let media: Vec<MediumData> = media.collect::<Result<_>>()?;
        let stores = options.stores.iter();
        let stores = stores.map(|store| StoreData::new(store, &options.store));
        let local = match media.is_empty() {
            true => Some(MediumData::new(&std::env::temp_dir(), options)?),
            false => None,
        };
        Ok(Self {
            options,
            media,
            stores: stores.collect::<Result<_>>()?,
            local,
            observer,
            evictor: Evictor::new(options.cold)?,
        })
    }

    /// Returns how the page cache is emptied.
    pub(super) fn way(&self) -> Way {
        self.evictor.way()
    }

    /// Returns the medium whose shards are uploaded to stores.
    pub(super) fn source(&self) -> Result<&MediumData> {
        let source = self.media.first().or(self.local.as_ref());
        Ok(source.ok_or("there is no medium")?)
    }

    /// Returns the largest number of threads.
    pub(super) fn most_threads(&self) -> usize {
        self.options.threads.iter().copied().max().unwrap_or(1)
    }

    /// Returns the largest number of consumers.
    pub(super) fn most_ranks(&self) -> u64 {
        self.options.ranks.iter().copied().max().unwrap_or(1)
    }

    /// Runs the trials in turn: one round that is discarded, then those that count.
    pub(super) fn in_turns(&self, trials: Vec<Trial<'_>>) -> Result<Vec<Figure>> {
        self.rounds(trials, 0..=self.options.runs)
    }

    /// Runs each trial once, for figures other than speed.
    pub(super) fn once(&self, trials: Vec<Trial<'_>>) -> Result<Vec<Figure>> {
        self.rounds(trials, 1..=1)
    }

    /// Runs the trials in turn. Round 0 does not count.
    fn rounds(&self, trials: Vec<Trial<'_>>, rounds: RangeInclusive<usize>) -> Result<Vec<Figure>> {
        let mut kept: Vec<Kept> = trials.iter().map(|_| Kept::default()).collect();
        let mut trials = trials;
        for round in rounds {
            for (trial, kept) in trials.iter_mut().zip(&mut kept) {
                if self.observer.is_interrupted() {
                    return Err("interrupted".into());
                }
                self.observer.runs(&trial.medium, &trial.name, round);
                let (sample, proof) = self.run(trial)?;
                if round > 0 {
                    kept.keep(sample, proof);
                }
            }
        }
        let figures = trials.iter().zip(kept);
        Ok(figures.map(|(trial, kept)| kept.figure(trial)).collect())
    }

    fn run(&self, trial: &mut Trial<'_>) -> Result<(Sample, Option<Proof>)> {
        let Some(footprint) = &trial.reads else {
            return Ok(((trial.run)()?, None));
        };
        let footprint = &footprint()?;
        let way = match trial.cache {
            Cache::Bypassed => Way::Direct,
            Cache::Emptied => self.way(),
            Cache::Kept | Cache::Filled => Way::Off,
        };
        match trial.cache {
            Cache::Emptied => self.evictor.evict(footprint)?,
            Cache::Filled => fill(footprint)?,
            Cache::Kept | Cache::Bypassed => {}
        }
        if let Some(resident) = &trial.resident {
            fill(resident)?;
        }
        let watch = Watch::begin(footprint, way);
        let sample = (trial.run)()?;
        let proof = watch.end(sample.bytes, sample.fetched);
        Ok((sample, Some(proof)))
    }
}

/// Reads files into the page cache.
fn fill(footprint: &Footprint) -> Result<()> {
    let Footprint::Files(files) = footprint else {
        return Ok(());
    };
    for file in files {
        let failed = |error| format!("cannot read \"{}\": {error}", file.path.display());
        let mut open = File::open(&file.path).map_err(failed)?;
        io::copy(&mut open, &mut io::sink()).map_err(failed)?;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Kept {
    values: Vec<f64>,
    proofs: Vec<Proof>,
    more: BTreeMap<String, Vec<f64>>,
}

impl Kept {
    fn keep(&mut self, sample: Sample, proof: Option<Proof>) {
        self.values.push(sample.value);
        self.proofs.extend(proof);
        for (name, value) in sample.more {
            self.more.entry(name).or_default().push(value);
        }
    }

    fn figure(self, trial: &Trial<'_>) -> Figure {
        let mut figure =
            Figure::measured(&trial.medium, trial.name.clone(), trial.unit, self.values);
        if let Some(proof) = summary(&self.proofs) {
            figure = figure.with_proof(proof);
        }
        figure.class = trial.class;
        let more = self.more.iter();
        figure.more = more
            .map(|(name, values)| (name.clone(), median(values)))
            .collect();
        figure.more_runs = self.more;
        figure
    }
}
