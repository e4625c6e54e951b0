//! [`LoaderBuilder`] creates a loader from a source and named options.

use std::path::{Path, PathBuf};

use forebay_batch::{BufferPool, Dtype, Layout};
use forebay_image::{BatchTransform, Transform};
use forebay_options::{
    Class, LabelBase, LoaderOptions, NormalizeSpec, OnError, ShuffleSpec, TransformSpec,
    Transforms, WeightsSpec,
};
use forebay_shard::{Dataset, Split, find_split, some_of};

use crate::error::{Error, Result};
use crate::loader::Loader;
use crate::mix::Mix;
use crate::options::Options;
use crate::source::PageCache;

/// The samples of a loader: a dataset (by path or already open), one of its splits, or a [`Mix`] of several.
#[derive(Debug, Clone)]
pub struct LoaderSource(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Path(PathBuf),
    Dataset(Dataset),
    Split(Split),
    Mix(Mix),
}

impl From<&str> for LoaderSource {
    fn from(path: &str) -> Self {
        LoaderSource(Kind::Path(path.into()))
    }
}

impl From<&Path> for LoaderSource {
    fn from(path: &Path) -> Self {
        LoaderSource(Kind::Path(path.to_owned()))
    }
}

impl From<PathBuf> for LoaderSource {
    fn from(path: PathBuf) -> Self {
        LoaderSource(Kind::Path(path))
    }
}

impl From<Dataset> for LoaderSource {
    fn from(dataset: Dataset) -> Self {
        LoaderSource(Kind::Dataset(dataset))
    }
}

impl From<Split> for LoaderSource {
    fn from(split: Split) -> Self {
        LoaderSource(Kind::Split(split))
    }
}

impl From<Mix> for LoaderSource {
    fn from(mix: Mix) -> Self {
        LoaderSource(Kind::Mix(mix))
    }
}

/// A value that can be passed for an option of type `T`.
pub trait IntoOption<T> {
    /// Converts the value to the type of the option.
    fn into_option(self) -> T;
}

impl<T> IntoOption<T> for T {
    fn into_option(self) -> T {
        self
    }
}

impl IntoOption<String> for &str {
    fn into_option(self) -> String {
        self.to_owned()
    }
}

impl IntoOption<ShuffleSpec> for &str {
    fn into_option(self) -> ShuffleSpec {
        ShuffleSpec(self.to_owned())
    }
}

impl IntoOption<ShuffleSpec> for bool {
    fn into_option(self) -> ShuffleSpec {
        ShuffleSpec::from(self)
    }
}

impl IntoOption<Transforms> for &str {
    fn into_option(self) -> Transforms {
        Transforms::One(TransformSpec::new(self))
    }
}

impl IntoOption<Transforms> for Transform {
    fn into_option(self) -> Transforms {
        crate::schema::transform_spec(&self)
    }
}

impl IntoOption<Transforms> for BatchTransform {
    fn into_option(self) -> Transforms {
        crate::schema::batch_transform_spec(&self)
    }
}

/// Builds a [`Loader`]. Each option of job files, command-line flags and Python has a setter of the same name.
///
/// ```no_run
/// use forebay_loader::{Loader, TrainTransform, Transform};
///
/// let mut loader = Loader::builder("/data/imagenet")
///     .split("train")
///     .batch_size(256)
///     .seed(42)
///     .transform(Transform::Train(TrainTransform::new(224)))
///     .build()?;
/// for epoch in 0..90 {
///     for batch in loader.epoch(epoch)? {
///         let batch = batch?;
///         println!("epoch {epoch}, step {}: {:?}", batch.step, batch.shape);
///     }
/// }
/// # Ok::<(), forebay_loader::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct LoaderBuilder {
    source: LoaderSource,
    options: LoaderOptions,
    threads: usize,
    readers: usize,
    memory_bytes: u64,
    learn_seek_points: u64,
    page_cache: PageCache,
    start: (u64, u64),
    pool: Option<BufferPool>,
}

impl Loader {
    /// Creates the builder of a loader for a dataset (by path or already open), one of its splits, or a [`Mix`].
    pub fn builder(source: impl Into<LoaderSource>) -> LoaderBuilder {
        LoaderBuilder::new(source.into())
    }
}

impl LoaderBuilder {
    forebay_options::option_setters!();

    fn new(source: LoaderSource) -> Self {
        LoaderBuilder {
            source,
            options: LoaderOptions::default(),
            threads: 0,
            readers: 0,
            memory_bytes: 0,
            learn_seek_points: crate::learned::DEFAULT_BYTES,
            page_cache: PageCache::default(),
            start: (0, 0),
            pool: None,
        }
    }

    /// Adds these options. Options that were set before take precedence.
    pub fn options(mut self, options: &LoaderOptions) -> Self {
        self.options = self.options.or(options);
        self
    }

    /// Sets the number of decode threads; by default the cores of this process, shared with its other loaders.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets the number of read threads; by default chosen by the type of storage.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers;
        self
    }

    /// Sets the budget in bytes for records and batches together; by default 1 GiB.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Sets the limit in bytes for seek points that are learned in the first epoch; by default 128 MiB, 0 for none.
    pub fn learn_seek_points(mut self, bytes: u64) -> Self {
        self.learn_seek_points = bytes;
        self
    }

    /// Sets whether records stay in the page cache after they were read.
    pub fn page_cache(mut self, page_cache: PageCache) -> Self {
        self.page_cache = page_cache;
        self
    }

    /// Begins at `position` of `epoch`, as returned by [`Loader::current_epoch`] and [`Loader::position`] when a run ended.
    pub fn start_at(mut self, epoch: u64, position: u64) -> Self {
        self.start = (epoch, position);
        self
    }

    /// Sets the pool of batch buffers; loaders may share one.
    pub fn pool(mut self, pool: BufferPool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Opens the source and starts the threads of the loader.
    ///
    /// # Errors
    ///
    /// A dataset that cannot be opened, invalid options, threads that cannot be started.
    pub fn build(self) -> Result<Loader> {
        let mut options = Options::from_schema(&self.options)?;
        options.threads = self.threads;
        options.readers = self.readers;
        options.memory_bytes = self.memory_bytes;
        options.learn_seek_points = self.learn_seek_points;
        options.page_cache = self.page_cache;
        let split = self.options.split.as_deref();
        match self.source.0 {
            Kind::Path(path) => {
                let split = choose(&Dataset::open(path)?, split)?;
                Loader::resume(split, options, self.start, self.pool)
            }
            Kind::Dataset(dataset) => {
                Loader::resume(choose(&dataset, split)?, options, self.start, self.pool)
            }
            Kind::Split(found) => match split {
                Some(name) if find_split(name, [found.name()]).is_none() => {
                    let expected = format!("{:?}, the split that was given", found.name());
                    Err(Error::option("split", format!("{name:?}"), expected))
                }
                _ => Loader::resume(found, options, self.start, self.pool),
            },
            Kind::Mix(mix) => Loader::resume_mixed(&mix, options, self.start, self.pool),
        }
    }
}

/// Returns the named split, or without a name the only one.
fn choose(dataset: &Dataset, name: Option<&str>) -> Result<Split> {
    if let Some(name) = name {
        return Ok(dataset.split(name)?);
    }
    let mut names = dataset.splits();
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(dataset.split(only)?),
        _ => {
            let names = dataset.splits().map(|name| format!("{name:?}"));
            let expected = format!("one of {}", some_of(names));
            Err(Error::option("split", "not given", expected))
        }
    }
}
