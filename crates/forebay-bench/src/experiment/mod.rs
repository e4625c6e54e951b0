//! The catalog of experiments: published measurements of deep-learning I/O that run on any machine and storage.
//!
//! An experiment is a file here with a constant `EXPERIMENT`, and a line in [`CATALOG`].

mod data;
mod lab;
mod mini_app;
mod settings;
mod statements;
mod trace;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::Result;
use crate::cold::Cold;
use crate::published::Published;
use crate::report::{ExperimentReport, Figure, FigureClass, LabReport, Plot};
pub use lab::Lab;

macro_rules! catalog {
    ($($file:ident,)*) => {
        $(mod $file;)*

        /// All experiments, in the order of their numbers.
        pub static CATALOG: &[&Experiment] = &[$(&$file::EXPERIMENT),*];
    };
}

catalog! {
    e01_sizes,
    e02_baselines,
    e03_size_mix,
    e04_ceiling,
    e05_decoding_threads,
    e06_reading_threads,
    e07_prefetch,
    e08_batch_size,
    e09_activity,
    e17_requests,
    e31_record_sizes,
}

/// An experiment of the catalog.
pub struct Experiment {
    /// Its name, such as `E4`.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// Whether it runs if none is named.
    pub is_default: bool,
    /// Timed runs on each medium, of each round.
    trials: fn(&CharacterizeOptions) -> usize,
    run: fn(&Lab<'_>) -> Result<Findings>,
}

/// The results of an experiment.
#[derive(Debug, Default)]
struct Findings {
    figures: Vec<Figure>,
    plots: Vec<Plot>,
    notes: Vec<String>,
}

/// The quantities to measure, and how often.
#[derive(Debug, Clone)]
pub struct CharacterizeOptions {
    /// Directories on the storages to test.
    pub media: Vec<PathBuf>,
    /// Names of experiments; those of the default profile if there is none.
    pub experiments: Vec<String>,
    /// Number of images that are generated.
    pub files: u64,
    /// Bytes of the file that storage ceilings are measured with.
    pub size: u64,
    /// Counted runs of each alternative.
    pub runs: usize,
    /// The longest time of a run.
    pub limit: Duration,
    /// How caches are emptied before each run.
    pub cold: Cold,
    /// Numbers of reading and decoding threads.
    pub threads: Vec<usize>,
    /// Samples of a batch.
    pub batch_size: u64,
    /// Numbers of batches that are made ahead.
    pub prefetch: Vec<u64>,
    /// Times of a training step.
    pub steps: Vec<Duration>,
    /// The command, for the report.
    pub command: String,
}

/// Hears of the progress.
pub trait CharacterizeObserver {
    /// An experiment begins.
    fn begins(&self, experiment: &Experiment);
    /// A run of an experiment is next.
    fn runs(&self, medium: &str, name: &str, round: usize);
    /// Whether to stop.
    fn is_interrupted(&self) -> bool;
}

impl CharacterizeOptions {
    /// The experiments that were asked for.
    ///
    /// # Errors
    /// A name that the catalog does not have.
    pub fn chosen(&self) -> Result<Vec<&'static Experiment>> {
        let known = |name: &str| {
            CATALOG
                .iter()
                .find(|known| known.id.eq_ignore_ascii_case(name))
        };
        if let Some(unknown) = self.experiments.iter().find(|name| known(name).is_none()) {
            let all: Vec<&str> = CATALOG.iter().map(|experiment| experiment.id).collect();
            return Err(format!(
                "unknown experiment \"{unknown}\"; expected one of {}",
                all.join(", ")
            )
            .into());
        }
        let is_chosen = |experiment: &&&Experiment| match self.experiments.is_empty() {
            true => experiment.is_default,
            false => self
                .experiments
                .iter()
                .any(|name| experiment.id.eq_ignore_ascii_case(name)),
        };
        Ok(CATALOG.iter().filter(is_chosen).copied().collect())
    }

    /// The longest time of all runs together; making the data comes on top.
    ///
    /// # Errors
    /// As [`CharacterizeOptions::chosen`].
    pub fn estimate(&self) -> Result<Duration> {
        let chosen = self.chosen()?;
        let trials: usize = chosen
            .iter()
            .map(|experiment| (experiment.trials)(self))
            .sum();
        let runs = trials * self.media.len() * (self.runs + 1);
        Ok(self
            .limit
            .saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX)))
    }

    /// The most bytes that are written to each medium.
    #[must_use]
    pub fn scratch_bytes(&self) -> u64 {
        // Files, TFRecords and indexed shards; and the file of the storage ceilings.
        3 * self.files * data::MEAN_BYTES + self.size
    }
}

/// Runs experiments, and reports what they found. Everything written to the media is removed.
///
/// # Errors
/// Unknown experiments, a medium that cannot be written, an interruption. An experiment that fails is reported as not run.
pub fn characterize(
    options: &CharacterizeOptions,
    observer: &dyn CharacterizeObserver,
) -> Result<LabReport> {
    let chosen = options.chosen()?;
    let lab = Lab::new(options, observer)?;
    let mut report = LabReport::new(
        options.command.clone(),
        settings::settings(options, lab.way()),
    );
    for experiment in chosen {
        observer.begins(experiment);
        let begin = Instant::now();
        let ran = (experiment.run)(&lab);
        if observer.is_interrupted() {
            return Err("interrupted".into());
        }
        let (class, reason, mut found) = match ran {
            Ok(found) => (FigureClass::Measured, String::new(), found),
            Err(error) => (FigureClass::NotRun, error.to_string(), Findings::default()),
        };
        let published = Published::all().of(experiment.id);
        found.figures.extend(published.map(|known| Figure {
            medium: format!("{} ({})", known.medium, known.platform),
            name: known.name.clone(),
            class: FigureClass::Published,
            value: known.value,
            unit: known.unit.clone(),
            runs: vec![known.value],
            cold_share: None,
            proof: match known.read_off_plot {
                true => format!("{}, {}, read off the plot", known.source, known.figure),
                false => format!("{}, {}", known.source, known.figure),
            },
            more: Default::default(),
        }));
        report.experiments.push(ExperimentReport {
            id: experiment.id.to_owned(),
            title: experiment.title.to_owned(),
            question: experiment.question.to_owned(),
            class,
            reason,
            figures: found.figures,
            plots: found.plots,
            notes: found.notes,
            seconds: begin.elapsed().as_secs_f64(),
        });
    }
    report.statements = statements::judge(&report);
    Ok(report)
}

#[cfg(test)]
mod tests;
