//! The catalog of experiments: published measurements of deep-learning I/O that run on any machine and storage.
//!
//! An experiment is a file here with a constant `EXPERIMENT`, and a line in [`CATALOG`].

mod contestants;
mod data;
mod feed;
mod formats;
mod lab;
mod mini_app;
mod settings;
mod small_memory;
mod stores;
mod trace;
mod training;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_store::{Location, StoreOptions};

use crate::cold::{Cold, Mount};
use crate::published::Published;
use crate::report::{ExperimentReport, Figure, FigureClass, LabReport, Plot};
use crate::throttle::{DiskLimits, Throttle};
use crate::{Consumer, Result};
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
    e10_checkpoints,
    e11_write_activity,
    e12_no_input,
    e13_real_input,
    e14_input_threads,
    e15_stages,
    e16_files_and_records,
    e17_requests,
    e18_conversion,
    e19_epochs,
    e20_formats,
    e21_formats_training,
    e22_instrument,
    e23_right_samples,
    e24_chunks,
    e25_decode_once,
    e26_inference,
    e27_memory,
    e28_copy_first,
    e29_readers,
    e30_latency,
    e31_record_sizes,
    e32_demand,
    e33_staging,
    e34_damage,
    e35_cached_first,
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

/// Experiments that read all formats.
const OF_FORMATS: [&str; 3] = ["E20", "E21", "E23"];

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
    /// Places in stores, which some experiments measure too.
    pub stores: Vec<Location>,
    /// How stores are reached.
    pub store: StoreOptions,
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
    /// The stand-in for an accelerator.
    pub consumer: Consumer,
    /// Numbers of accelerators.
    pub ranks: Vec<u64>,
    /// A dataset whose images are used; generated ones if there is none.
    pub data: Option<PathBuf>,
    /// The formats that are compared; all if there is none.
    pub formats: Vec<String>,
    /// Limits of the disks that the media are on.
    pub limits: Option<DiskLimits>,
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

    /// Whether a format is to be compared.
    fn has_format(&self, name: &str) -> bool {
        let mut chosen = self.formats.iter();
        self.formats.is_empty() || chosen.any(|chosen| chosen.eq_ignore_ascii_case(name))
    }

    /// The longest time of all runs together; making the data comes on top.
    ///
    /// # Errors
    /// As [`CharacterizeOptions::chosen`].
    pub fn estimate(&self) -> Result<Duration> {
        let chosen = self.chosen()?;
        let times = chosen.iter().map(|experiment| self.estimate_of(experiment));
        Ok(times.fold(Duration::ZERO, Duration::saturating_add))
    }

    /// The longest time of the runs of an experiment.
    #[must_use]
    pub fn estimate_of(&self, experiment: &Experiment) -> Duration {
        let runs =
            (experiment.trials)(self) * (self.media.len() + self.stores.len()) * (self.runs + 1);
        self.limit
            .saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX))
    }

    /// The most bytes that are written to each medium.
    ///
    /// # Errors
    /// A dataset of images that cannot be read.
    pub fn scratch_bytes(&self) -> Result<u64> {
        // Files, TFRecords, indexed shards and a copy; the file of the storage ceilings, and checkpoints twice, or a file that
        // is written.
        let is_chosen = |all: &[&str]| {
            let mut chosen = self.experiments.iter();
            chosen.any(|name| all.iter().any(|id| name.eq_ignore_ascii_case(id)))
        };
        let copies = if is_chosen(&OF_FORMATS) { 8 } else { 4 };
        let decoded = match is_chosen(&["E25"]) {
            true => e25_decode_once::scratch_bytes(self),
            false => 0,
        };
        let images = self.image_bytes()?.saturating_mul(copies);
        let images = images.saturating_add(decoded);
        Ok(images.saturating_add(self.size.saturating_mul(2)))
    }

    /// About the bytes of all images.
    fn image_bytes(&self) -> Result<u64> {
        Ok(self
            .files
            .saturating_mul(data::mean_bytes(self.data.as_deref())?))
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
    // Ends before the data of the media are removed.
    let throttle = options.limits.map(|limits| {
        let mounts = options.media.iter().filter_map(|medium| Mount::of(medium));
        let devices: Vec<(u32, u32)> = mounts.map(|mount| mount.device).collect();
        Throttle::begin(&limits, &devices)
    });
    let throttle = throttle.transpose()?;
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
            Ok(found) if found.figures.is_empty() => {
                let why = "it needs a medium that is a directory";
                (FigureClass::NotRun, why.to_owned(), found)
            }
            Ok(found) => (FigureClass::Measured, String::new(), found),
            Err(error) => (FigureClass::NotRun, error.to_string(), Findings::default()),
        };
        // Whatever made them: no row is called cold whose share does not prove it.
        found.figures.iter_mut().for_each(Figure::name_by_share);
        if let Some(limits) = options.limits.filter(|_| class != FigureClass::NotRun) {
            let measured = found.figures.iter_mut();
            measured.for_each(|figure| figure.class = FigureClass::StandIn);
            let note = "Stand-in: disks limited by a cgroup";
            found.notes.push(format!("{note} ({limits}). It knows neither seeks nor latency; cgroups of the first version leave writes through the page cache alone."));
        }
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
            more_runs: Default::default(),
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
    drop(throttle);
    Ok(report)
}

/// The names of all formats that E20 and E21 can compare.
#[must_use]
pub fn format_names() -> [&'static str; 7] {
    contestants::NAMES
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests;
