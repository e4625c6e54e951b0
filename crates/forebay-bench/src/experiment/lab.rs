//! The media with their data, and runs that take turns: shared by all experiments.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use super::data::MediumData;
use super::{CharacterizeObserver, CharacterizeOptions};
use crate::Result;
use crate::cold::{Evictor, Footprint, Proof, Watch, Way, summary};
use crate::measure::median;
use crate::report::Figure;

/// The media of a report, and how they are measured.
pub struct Lab<'a> {
    pub(super) options: &'a CharacterizeOptions,
    pub(super) media: Vec<MediumData>,
    observer: &'a dyn CharacterizeObserver,
    evictor: Evictor,
}

/// One run.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) value: f64,
    /// Bytes that were read from files.
    pub(super) bytes: u64,
    pub(super) more: BTreeMap<String, f64>,
}

/// An alternative that is measured.
pub(super) struct Trial<'t> {
    pub(super) medium: String,
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// The files that it reads; none if caches do not matter.
    pub(super) reads: Option<Footprint>,
    /// Whether it bypasses the page cache.
    pub(super) direct: bool,
    pub(super) run: Box<dyn FnMut() -> Result<Sample> + 't>,
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
        Ok(Self {
            options,
            media: media.collect::<Result<_>>()?,
            observer,
            evictor: Evictor::new(options.cold)?,
        })
    }

    /// How caches are emptied.
    pub(super) fn way(&self) -> Way {
        self.evictor.way()
    }

    /// Runs the trials in turns: one round that is discarded, then those that count.
    pub(super) fn in_turns(&self, trials: Vec<Trial<'_>>) -> Result<Vec<Figure>> {
        let mut kept: Vec<Kept> = trials.iter().map(|_| Kept::default()).collect();
        let mut trials = trials;
        for round in 0..=self.options.runs {
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
        let way = if trial.direct {
            Way::Direct
        } else {
            self.way()
        };
        if !trial.direct {
            self.evictor.evict(footprint)?;
        }
        let watch = Watch::begin(footprint, way);
        let sample = (trial.run)()?;
        let proof = watch.end(sample.bytes, None);
        Ok((sample, Some(proof)))
    }
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
            figure.cold_share = proof.cold_share;
            figure.proof = proof.line();
        }
        let more = self.more.into_iter();
        figure.more = more.map(|(name, values)| (name, median(&values))).collect();
        figure
    }
}

/// Makes something once, when it is first needed.
#[derive(Debug)]
pub(super) struct Once<T>(RefCell<Option<T>>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(RefCell::new(None))
    }
}

impl<T: Clone> Once<T> {
    pub(super) fn get(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(made) = &*self.0.borrow() {
            return Ok(made.clone());
        }
        let made = make()?;
        *self.0.borrow_mut() = Some(made.clone());
        Ok(made)
    }
}

/// The name of a medium in tables.
pub(super) fn name_of(path: &Path) -> String {
    path.display().to_string()
}
