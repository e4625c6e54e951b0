//! A packed dataset as a [`StreamSource`]: each stream has its own loader.

use std::sync::Arc;

use forebay_image::Limits;
use forebay_loader::{Error as LoadError, LearnedSeekPoints, Loader, Options, Queues, ReadTimes};
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

/// All splits of a dataset, opened.
pub(crate) struct DatasetSource {
    splits: Vec<Split>,
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
            splits,
            discretion: Discretion::about(dataset),
        })
    }

    /// Returns the split of that name; without a name, the only split.
    fn split(&self, name: Option<&str>) -> Result<&Split, Failure> {
        let found = match (name, &self.splits[..]) {
            (None, [only]) => Some(only),
            (name, splits) => {
                let names = splits.iter().map(Split::name);
                let found = name.and_then(|name| find_split(name, names));
                splits.iter().find(|split| Some(split.name()) == found)
            }
        };
        found.ok_or_else(|| {
            let name = crate::session::printable(name.unwrap_or_default());
            let text = format!(
                "no split \"{name}\"; there is {}",
                some_of(self.splits.iter().map(Split::name))
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
        let (epoch, position) = (request.epoch, request.position);
        let pool = request.pool.clone();
        let loader =
            Loader::resume(split.clone(), options, (epoch, position), pool).map_err(fail)?;
        Ok(Box::new(Batches {
            loader,
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
    /// The prefix that the paths of all files of the dataset share.
    directory: String,
}

impl Discretion {
    fn about(dataset: &Dataset) -> Self {
        let directory = dataset.root().join("").display().to_string();
        Discretion { directory }
    }

    fn keep(&self, text: &str) -> String {
        match self.directory.as_str() {
            "" => text.to_owned(),
            directory => text.replace(directory, ""),
        }
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
