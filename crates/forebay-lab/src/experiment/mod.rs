//! The catalog of experiments: published measurements of deep-learning I/O that run on any machine and storage.
//!
//! To add an experiment, write a file with a constant `EXPERIMENT` in the folder of its chapter, and add its line to
//! `catalog!`.

mod consumers;
mod contestants;
mod data;
mod feed;
mod input;
mod lab;
mod mini_app;
mod once;
mod requests;
mod settings;
mod shuffle_quality;
mod small_memory;
mod stored;
mod stores;
mod threads;
mod trace;
mod training;
mod waits;

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use forebay_store::{Location, StoreOptions};

use crate::cold::{Cold, Mount};
use crate::published::Published;
use crate::report::{ExperimentReport, Figure, FigureClass, LabReport, Plot};
use crate::throttle::{DiskLimits, Throttle};
use crate::{Consumer, Result};
pub use lab::Lab;

/// Declares a module for each chapter, with a file for each of its experiments.
macro_rules! catalog {
    ($($(#[$doc:meta])* $chapter:ident { $($file:ident,)* })*) => {
        $($(#[$doc])* mod $chapter {
            $(mod $file;)*

            pub(super) static EXPERIMENTS: &[&super::Experiment] = &[$(&$file::EXPERIMENT),*];
        })*

        static CHAPTERS: &[&[&Experiment]] = &[$($chapter::EXPERIMENTS),*];
    };
}

catalog! {
    /// The throughput of storages, without training.
    storage {
        e01_sizes,
        e02_baselines,
        e03_size_mix,
        e04_ceiling,
        e17_requests,
        e27_memory,
        e30_latency,
        e31_record_sizes,
    }
    /// Reading and decoding while training.
    pipeline {
        e05_decoding_threads,
        e06_reading_threads,
        e07_prefetch,
        e08_batch_size,
        e09_activity,
        e15_stages,
        e19_epochs,
        e22_instrument,
        e34_damage,
        e35_cached_first,
    }
    /// Image files, records and formats of other tools.
    formats {
        e16_files_and_records,
        e18_conversion,
        e20_formats,
        e21_formats_training,
        e23_right_samples,
        e24_chunks,
        e25_decode_once,
    }
    /// Checkpoints during training.
    checkpoints {
        e10_checkpoints,
        e11_write_activity,
    }
    /// Several consumers, readers and media.
    scale {
        e12_no_input,
        e13_real_input,
        e14_input_threads,
        e26_inference,
        e28_copy_first,
        e29_readers,
        e32_demand,
        e33_staging,
    }
}

/// All experiments, in the order of their numbers.
pub static CATALOG: LazyLock<Vec<&Experiment>> = LazyLock::new(|| {
    let mut all = CHAPTERS.concat();
    all.sort_by_key(|experiment| (experiment.id.len(), experiment.id));
    all
});

/// An experiment of the catalog.
pub struct Experiment {
    /// Its name in reports.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    /// Whether it runs if no experiment is named.
    pub is_default: bool,
    /// Number of timed runs on each medium in a round.
    trials: fn(&CharacterizeOptions) -> usize,
    run: fn(&Lab<'_>) -> Result<Findings>,
    /// The files that it writes to each medium.
    scratch: Scratch,
}

/// Files that an experiment writes to each medium, beside the images in the usual forms and the large file.
#[derive(Clone, Copy)]
enum Scratch {
    Nothing,
    /// The images in all formats.
    Formats,
    /// A number of bytes.
    More(fn(&CharacterizeOptions) -> u64),
}

impl Experiment {
    /// The fields of most experiments: they run only if they are named, and write nothing of their own.
    const OTHER: Self = Self {
        id: "",
        title: "",
        question: "",
        is_default: false,
        trials: |_| 0,
        run: |_| Ok(Findings::default()),
        scratch: Scratch::Nothing,
    };
}

/// The results of an experiment.
#[derive(Debug, Default)]
struct Findings {
    figures: Vec<Figure>,
    plots: Vec<Plot>,
    notes: Vec<String>,
}

impl Findings {
    /// Runs the trials in turn, and keeps their figures.
    fn measured(lab: &Lab<'_>, trials: Vec<lab::Trial<'_>>) -> Result<Self> {
        Ok(Self {
            figures: lab.in_turns(trials)?,
            ..Self::default()
        })
    }
}

/// Options of [`characterize`].
#[derive(Debug, Clone)]
pub struct CharacterizeOptions {
    /// Directories on the storages to test.
    pub media: Vec<PathBuf>,
    /// Locations in stores, which some experiments measure too.
    pub stores: Vec<Location>,
    /// Options of the stores.
    pub store: StoreOptions,
    /// Names of experiments; if empty, the default ones run.
    pub experiments: Vec<String>,
    /// Number of images that are generated.
    pub files: u64,
    /// Size in bytes of the file that storage ceilings are measured with.
    pub size: u64,
    /// Counted runs of each alternative.
    pub runs: usize,
    /// The longest time of a run.
    pub limit: Duration,
    /// How the page cache is emptied before each run.
    pub cold: Cold,
    /// Numbers of reading and decoding threads.
    pub threads: Vec<usize>,
    /// Samples per batch.
    pub batch_size: u64,
    /// Numbers of batches to prefetch.
    pub prefetch: Vec<u64>,
    /// Times of a training step.
    pub steps: Vec<Duration>,
    /// The consumer that stands in for an accelerator.
    pub consumer: Consumer,
    /// Numbers of accelerators.
    pub ranks: Vec<u64>,
    /// A dataset whose images are used; `None` generates images.
    pub data: Option<PathBuf>,
    /// Formats to compare; if empty, all.
    pub formats: Vec<String>,
    /// Limits for the disks of the media.
    pub limits: Option<DiskLimits>,
    /// The command line, for the report.
    pub command: String,
}

/// Receives the progress of [`characterize`].
pub trait CharacterizeObserver {
    /// Called before an experiment.
    fn begins(&self, experiment: &Experiment);
    /// Called before each run of an experiment.
    fn runs(&self, medium: &str, name: &str, round: usize);
    /// Returns whether to stop.
    fn is_interrupted(&self) -> bool;
}

impl CharacterizeOptions {
    /// Returns the selected experiments.
    ///
    /// # Errors
    /// A name is not in the catalog.
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
        Ok(match self.experiments.is_empty() {
            true => CATALOG.iter().filter(|e| e.is_default).copied().collect(),
            false => self.named().collect(),
        })
    }

    /// Returns the experiments that are selected by name.
    fn named(&self) -> impl Iterator<Item = &'static Experiment> {
        CATALOG.iter().copied().filter(|experiment| {
            let mut names = self.experiments.iter();
            names.any(|name| experiment.id.eq_ignore_ascii_case(name))
        })
    }

    /// Returns whether a format is compared.
    fn has_format(&self, name: &str) -> bool {
        let mut chosen = self.formats.iter();
        self.formats.is_empty() || chosen.any(|chosen| chosen.eq_ignore_ascii_case(name))
    }

    /// Returns the longest time of all runs together, without the time to create the data.
    ///
    /// # Errors
    /// The same as [`CharacterizeOptions::chosen`].
    pub fn estimate(&self) -> Result<Duration> {
        let chosen = self.chosen()?;
        let times = chosen.iter().map(|experiment| self.estimate_of(experiment));
        Ok(times.fold(Duration::ZERO, Duration::saturating_add))
    }

    /// Returns the longest time of the runs of an experiment.
    #[must_use]
    pub fn estimate_of(&self, experiment: &Experiment) -> Duration {
        let runs =
            (experiment.trials)(self) * (self.media.len() + self.stores.len()) * (self.runs + 1);
        self.limit
            .saturating_mul(u32::try_from(runs).unwrap_or(u32::MAX))
    }

    /// Returns the most bytes that are written to each medium.
    ///
    /// # Errors
    /// The dataset of images cannot be read.
    pub fn scratch_bytes(&self) -> Result<u64> {
        // Image files, TFRecords, indexed shards and a copy; the file of the storage ceilings; and twice the checkpoints, or
        // the file that runs write.
        let (mut copies, mut more) = (4, 0u64);
        for experiment in self.named() {
            match experiment.scratch {
                Scratch::Nothing => {}
                Scratch::Formats => copies = 8,
                Scratch::More(bytes) => more = more.saturating_add(bytes(self)),
            }
        }
        let images = self.image_bytes()?.saturating_mul(copies);
        let images = images.saturating_add(more);
        Ok(images.saturating_add(self.size.saturating_mul(2)))
    }

    /// Returns the approximate size of all images in bytes.
    fn image_bytes(&self) -> Result<u64> {
        Ok(self
            .files
            .saturating_mul(data::mean_bytes(self.data.as_deref())?))
    }
}

/// Runs the selected experiments and reports their figures. Removes everything that it wrote to the media.
///
/// # Errors
/// An experiment is unknown, a medium cannot be written, or the run is interrupted. An experiment that fails is reported as not
/// run.
pub fn characterize(
    options: &CharacterizeOptions,
    observer: &dyn CharacterizeObserver,
) -> Result<LabReport> {
    let chosen = options.chosen()?;
    let lab = Lab::new(options, observer)?;
    // Declared after `lab`, so that it is dropped before the data of the media are removed.
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
        // A figure is called cold only if its measured cold share proves it.
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

/// Returns the names of all formats that can be compared.
#[must_use]
pub fn format_names() -> [&'static str; 7] {
    contestants::NAMES
}

/// Returns the number of cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests;
