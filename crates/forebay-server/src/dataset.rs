//! A packed dataset as a [`StreamSource`]: each stream has its own loader.

use std::sync::Arc;

use forebay_image::Limits;
use forebay_loader::{
    Error as LoadError, LearnedSeekPoints, Loader, Mix, Options, Queues, ReadTimes,
};
use forebay_options::StreamInfo;
use forebay_shard::{Dataset, Split, find_split, some_of};
use forebay_wire::Batch;
use forebay_wire::wire::{self, error::Kind};

use crate::counters;
use crate::source::{
    BatchSource, Description, Failure, StreamMonitor, StreamRequest, StreamSource,
};

/// Size limit of the class names in `Opened`, in bytes: a quarter of the largest header.
const MAX_CLASS_BYTES: usize = 4 << 20;

/// The records of a split of a dataset, or of a mix of several.
enum Records {
    One(Split),
    Mixed(Mix),
}

/// All splits of a dataset or of a mix, opened.
pub(crate) struct DatasetSource {
    /// In the order of the description's splits.
    splits: Vec<Records>,
    /// Kept between streams.
    _learned: Vec<Arc<LearnedSeekPoints>>,
    discretion: Discretion,
    description: Description,
}

impl DatasetSource {
    pub(crate) fn new(dataset: &Dataset) -> forebay_shard::Result<Self> {
        let splits = dataset
            .splits()
            .map(|name| dataset.split(name))
            .collect::<forebay_shard::Result<Vec<Split>>>()?;
        let label_base = splits.first().map_or(0, Split::label_base);
        Ok(DatasetSource {
            description: Description {
                fingerprint: dataset.fingerprint().to_owned(),
                sample_fingerprint: dataset.sample_fingerprint().map(str::to_owned),
                splits: splits
                    .iter()
                    .map(|split| wire::SplitInfo {
                        name: split.name().to_owned(),
                        records: split.len(),
                    })
                    .collect(),
                label_base: u32::try_from(label_base).unwrap_or(0),
                class_titles: splits.first().map_or_else(Arc::default, |split| {
                    let titles = split.classes().iter();
                    titles.map(|class| class.title().to_owned()).collect()
                }),
            },
            _learned: splits.iter().map(LearnedSeekPoints::of).collect(),
            splits: splits.into_iter().map(Records::One).collect(),
            discretion: Discretion::about(std::slice::from_ref(dataset)),
        })
    }

    /// Creates a source of these mixes of datasets, each of another split.
    pub(crate) fn mixed(datasets: &[Dataset], mixes: Vec<Mix>) -> Self {
        let first = mixes.first();
        let learned = |mix: &Mix| LearnedSeekPoints::shared(&mix.fingerprint(), &mix.split());
        let splits = mixes.iter().map(|mix| wire::SplitInfo {
            name: mix.split(),
            records: mix.splits.iter().map(Split::len).sum(),
        });
        DatasetSource {
            description: Description {
                fingerprint: first.map(Mix::fingerprint).unwrap_or_default(),
                sample_fingerprint: first.and_then(Mix::sample_fingerprint),
                splits: splits.collect(),
                label_base: 0,
                class_titles: Arc::default(),
            },
            _learned: mixes.iter().map(learned).collect(),
            splits: mixes.into_iter().map(Records::Mixed).collect(),
            discretion: Discretion::about(datasets),
        }
    }

    /// Returns the split of that name; without a name, the only split.
    fn split(&self, name: Option<&str>) -> Result<&Records, Failure> {
        let mut names = self.description.splits.iter().map(|split| &*split.name);
        let found = match (name, &self.splits[..]) {
            (None, [only]) => Some(only),
            (name, splits) => {
                let found = name.and_then(|name| find_split(name, names.clone()));
                let at = names.position(|name| Some(name) == found);
                at.map(|at| &splits[at])
            }
        };
        found.ok_or_else(|| {
            let name = crate::session::printable(name.unwrap_or_default());
            let splits = self.description.splits.iter();
            let text = format!(
                "no split \"{name}\"; there is {}",
                some_of(splits.map(|split| &split.name))
            );
            Failure::new(Kind::NotFound, text)
        })
    }
}

impl StreamSource for DatasetSource {
    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        let split = self.split(request.options.split.as_deref())?;
        let fail = |error| self.discretion.failure(error);
        let mut options =
            Options::from_request(request.options, request.max_batch_bytes).map_err(&fail)?;
        options.decode.limits = limits(request)?;
        options.memory_bytes = request.memory_bytes.unwrap_or(0);
        options.threads = request.threads.unwrap_or(0);
        options.share.clone_from(&request.share);
        let (at, pool) = ((request.epoch, request.position), request.pool.clone());
        let (loader, starts) = match split {
            Records::One(split) => (Loader::resume(split.clone(), options, at, pool), vec![]),
            Records::Mixed(mix) => (Loader::resume_mixed(mix, options, at, pool), mix.starts()),
        };
        Ok(Box::new(Batches {
            loader: loader.map_err(fail)?,
            starts,
            discretion: self.discretion.clone(),
        }))
    }
}

/// The image limits that the client asks for, bounded by the server's limits.
fn limits(request: &StreamRequest<'_>) -> Result<Limits, Failure> {
    let allowed = request.image_limits;
    let asked = request.options;
    let within = |name: &str, asked: Option<u64>, allowed: u64| match asked {
        None => Ok(allowed),
        Some(asked) if asked <= allowed => Ok(asked),
        Some(asked) => {
            let text = format!("option {name} is {asked}: this server allows at most {allowed}");
            Err(Failure::new(Kind::Invalid, text))
        }
    };
    Ok(Limits {
        max_pixels: within("max_pixels", asked.max_pixels, allowed.max_pixels)?,
        max_decoded_bytes: within(
            "max_image_bytes",
            asked.max_image_bytes,
            allowed.max_decoded_bytes,
        )?,
        ..allowed
    })
}

/// The batches of one loader.
struct Batches {
    loader: Loader,
    /// The number of the first record of each dataset of a mix.
    starts: Vec<u64>,
    discretion: Discretion,
}

impl Batches {
    /// Returns the class names; none if they do not fit into a header that clients accept.
    fn class_names(&self) -> Vec<String> {
        let names = self.loader.classes();
        match names.iter().map(String::len).sum::<usize>() {
            bytes if bytes <= MAX_CLASS_BYTES => names.to_vec(),
            _ => Vec::new(),
        }
    }
}

impl BatchSource for Batches {
    fn info(&self) -> StreamInfo {
        let loader = &self.loader;
        StreamInfo {
            options: loader.schema(),
            records: loader.records(),
            samples: loader.epoch_samples(),
            batches_per_epoch: loader.batches_per_epoch(),
            // A loader that was created has a known batch size.
            batch_bytes: loader.options().batch_bytes().unwrap_or(usize::MAX) as u64,
            label_base: loader.label_base().unwrap_or(0),
            classes: self.class_names(),
            dataset_starts: self.starts.clone(),
        }
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        let batch = self.loader.next_batch();
        batch.map_err(|error| self.discretion.failure(error))
    }

    fn monitor(&self) -> Arc<dyn StreamMonitor> {
        Arc::new(Watch {
            monitor: self.loader.monitor(),
            discretion: self.discretion.clone(),
        })
    }

    fn memory_bytes(&self) -> u64 {
        self.loader.memory_bytes()
    }
}

struct Watch {
    monitor: forebay_loader::Monitor,
    discretion: Discretion,
}

impl StreamMonitor for Watch {
    fn cancel(&self) {
        self.monitor.interrupt();
    }

    fn stats(&self) -> wire::Stats {
        let mut stats = counters::to_wire(&self.monitor.stats());
        for failure in &mut stats.failures {
            *failure = self.discretion.keep(failure);
        }
        stats
    }

    fn queues(&self) -> Queues {
        self.monitor.queues()
    }

    fn reads(&self) -> ReadTimes {
        self.monitor.reads()
    }
}

/// Removes local paths from error messages: clients see file names relative to the dataset.
#[derive(Clone)]
struct Discretion {
    /// The prefix that the paths of all files of each dataset share.
    directories: Arc<[String]>,
}

impl Discretion {
    fn about(datasets: &[Dataset]) -> Self {
        let directories = datasets.iter();
        let directories = directories.map(|of| of.root().join("").display().to_string());
        Discretion {
            directories: directories.filter(|prefix| !prefix.is_empty()).collect(),
        }
    }

    fn keep(&self, text: &str) -> String {
        let directories = self.directories.iter();
        directories.fold(text.to_owned(), |text, prefix| text.replace(prefix, ""))
    }

    fn failure(&self, error: LoadError) -> Failure {
        let mut failure = failure(error);
        failure.message = self.keep(&failure.message);
        failure
    }
}

fn failure(e: LoadError) -> Failure {
    let kind = match &e {
        LoadError::Option { .. }
        | LoadError::Invalid { .. }
        | LoadError::Missing { .. }
        | LoadError::Transform(_)
        | LoadError::NoBatch { .. }
        | LoadError::Memory { .. }
        | LoadError::Position { .. } => Kind::Invalid,
        LoadError::Shard(_) | LoadError::Record { .. } => Kind::Data,
        LoadError::Image { .. } => Kind::Image,
        LoadError::Interrupted => Kind::Shutdown,
        _ => Kind::Internal,
    };
    Failure::new(kind, e)
}
