//! The loader: batches of one rank, epoch after epoch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_batch::digest::{self, Digests, EpochDigest};
use forebay_batch::{Batch, BufferPool, Layout};
use forebay_options::LoaderOptions;
use forebay_shard::Split;

use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::mix::Mix;
use crate::options::Options;
use crate::pipeline::{FinishedBatch, Pipeline, Shared};
use crate::plan::Batches;
use crate::source::{Classes, Source, SplitSource};
use crate::stats::{Queues, ReadTimes, Stats};

/// Makes the batches of one rank, in order, ahead of the consumer.
///
/// Its threads read, decode and transform until the memory budget or the number of batches ahead stops them,
/// across the ends of epochs. The batches are a pure function of the split and of the
/// [resolved](Options::resolve) options, whatever the threads and the memory.
///
/// ```no_run
/// use forebay_image::{TrainTransform, Transform};
/// use forebay_loader::{Loader, Options};
///
/// let split = forebay_shard::Dataset::open("/data/imagenet")?.split("train")?;
/// let options = Options::new(256, Transform::Train(TrainTransform::new(224)));
/// let mut loader = Loader::new(split, options)?;
/// for epoch in 0..90 {
///     while let Some(batch) = loader.next_batch()? {
///         println!("epoch {epoch}, step {}: {:?}", batch.step, batch.shape);
///     }
///     println!("{}", loader.stats().bottleneck());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Loader {
    pipeline: Pipeline,
    options: Options,
    batches: Batches,
    split: String,
    identity: Identity,
    classes: Classes,
    records: u64,
    bytes: u64,
    /// Samples of an epoch.
    samples: u64,
    epoch: u64,
    /// Position of the next global batch.
    position: u64,
    digests: Digests,
}

/// The identity of a loader's dataset.
#[derive(Default)]
pub(crate) struct Identity {
    pub(crate) fingerprint: String,
    pub(crate) samples: Option<String>,
}

/// Stops a loader, or looks at its counters, from another thread. Holding one keeps no thread alive.
#[derive(Clone)]
pub struct Monitor {
    shared: Arc<Shared>,
}

impl Loader {
    /// A loader that begins with the first batch of epoch 0.
    ///
    /// # Errors
    ///
    /// Options that cannot be, an empty split, threads that cannot be started.
    pub fn new(split: Split, options: Options) -> Result<Self> {
        Self::resume(split, options, (0, 0), None)
    }

    /// A loader that begins at `(epoch, position)`, as [`Loader::current_epoch`] and [`Loader::position`] said, with any
    /// world size and batch size. `pool` is where batch buffers come from and go back to; loaders may share one.
    ///
    /// # Errors
    ///
    /// As [`Loader::new`]; a position beyond the end of the epoch.
    pub fn resume(
        split: Split,
        options: Options,
        at: (u64, u64),
        pool: Option<BufferPool>,
    ) -> Result<Self> {
        let name = split.name().to_owned();
        let identity = Identity {
            fingerprint: split.fingerprint().to_owned(),
            samples: split.sample_fingerprint().map(str::to_owned),
        };
        let source = Box::new(
            SplitSource::new(split)?
                .keeping(options.page_cache)
                .counting_from(options.label_base),
        );
        Self::from_source(source, name, identity, options, at, pool)
    }

    /// A loader of several datasets, that begins with the first batch of epoch 0.
    ///
    /// # Errors
    ///
    /// As [`Loader::new`]; invalid weights or labels.
    pub fn mixed(mix: &Mix, options: Options) -> Result<Self> {
        Self::resume_mixed(mix, options, (0, 0), None)
    }

    /// As [`Loader::resume`], of several datasets.
    ///
    /// # Errors
    ///
    /// As [`Loader::mixed`]; a position beyond the end of the epoch.
    pub fn resume_mixed(
        mix: &Mix,
        options: Options,
        at: (u64, u64),
        pool: Option<BufferPool>,
    ) -> Result<Self> {
        let source = Box::new(mix.source(options.page_cache, options.label_base)?);
        let identity = Identity {
            fingerprint: mix.fingerprint(),
            samples: mix.sample_fingerprint(),
        };
        Self::from_source(source, mix.split(), identity, options, at, pool)
    }

    pub(crate) fn from_source(
        source: Box<dyn Source>,
        split: String,
        identity: Identity,
        options: Options,
        (epoch, position): (u64, u64),
        pool: Option<BufferPool>,
    ) -> Result<Self> {
        let (records, bytes) = (source.records(), source.bytes());
        let classes = source.classes();
        let mut options = options;
        let (sampling, selection) = options.sampling.resolve(&*source)?;
        options.sampling = sampling;
        let num_samples = selection.len();
        let selected_bytes = match (source.portions(), selection.portions()) {
            (Some(portions), Some(counts)) => portions.bytes_of(counts),
            _ => {
                let bytes =
                    u128::from(bytes) * u128::from(num_samples) / u128::from(records.max(1));
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        };
        let columns = Columns::resolve(&options, &source.schemas())?;
        options.raw.columns = columns.as_ref().map_or(0, Columns::sample_bytes);
        let options =
            options.resolve_within(num_samples, selected_bytes, source.block_records())?;
        let samples = num_samples.saturating_mul(options.sampling.times());
        let batches = options.batches(samples)?;
        check_position(position, samples)?;
        let mean_bytes = (selected_bytes / num_samples.max(1)).max(1);
        let selected = (selection, mean_bytes);
        let pipeline = Pipeline::start(
            source,
            options.clone(),
            columns,
            selected,
            pool,
            (epoch, position),
        )?;
        Ok(Loader {
            pipeline,
            options,
            batches,
            split,
            identity,
            classes,
            records,
            bytes,
            samples,
            epoch,
            position,
            digests: Digests::begin(epoch, position),
        })
    }

    /// The next batch, or `None` at the end of an epoch; asked again, the next epoch begins.
    ///
    /// # Errors
    ///
    /// Error of the first sample that cannot be read or decoded; batches before it were handed out. It stays
    /// so until [`Loader::seek`]. [`Error::Interrupted`] after [`Monitor::interrupt`].
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        self.next_until(None)
    }

    /// [`Loader::next_batch`] that waits for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Loader::next_batch`]; [`Error::Timeout`], which says who waits for whom. The loader works on, and a later
    /// call gives the batch.
    pub fn next_batch_within(&mut self, timeout: Duration) -> Result<Option<Batch>> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    fn next_until(&mut self, until: Option<Instant>) -> Result<Option<Batch>> {
        if self.batches.remaining(self.position) == 0 {
            self.epoch = self.epoch.wrapping_add(1);
            self.position = 0;
            self.digests.end();
            return Ok(None);
        }
        let made = self.pipeline.shared().next(until)?;
        let batch = self.batch(made);
        self.position = self.batches.after(self.position);
        self.digests.add(&batch, self.position);
        Ok(Some(batch))
    }

    fn batch(&self, made: FinishedBatch) -> Batch {
        let Options {
            rank,
            world_size,
            transform,
            ..
        } = &self.options;
        let (height, width) = transform.output_size();
        let (height, width) = (height as usize, width as usize);
        let count = made.samples.len();
        let (shape, layout) = match self.options.output.layout {
            _ if made.encoded.is_some() => ([count, 0, 0, 0], Layout::default()),
            Layout::Nhwc => ([count, height, width, 3], Layout::Nhwc),
            Layout::Nchw => ([count, 3, height, width], Layout::Nchw),
        };
        Batch {
            epoch: made.epoch,
            step: made.start / self.batches.global_size(),
            position: made.start,
            digest: digest::batch(made.start, *rank, *world_size, &made.samples, &made.flags),
            payload: made.payload,
            encoded: made.encoded,
            columns: made.columns,
            dtype: self.options.output.dtype,
            shape,
            layout,
            labels: made.labels,
            mixed: made.mixed.map(Box::new),
            samples: made.samples,
            flags: made.flags,
        }
    }

    /// Goes on with the batch that begins at `position` of `epoch`. What was made ahead is thrown away. Also the way
    /// on after an error.
    ///
    /// # Errors
    ///
    /// A position beyond the end of the epoch.
    pub fn seek(&mut self, epoch: u64, position: u64) -> Result<()> {
        check_position(position, self.samples)?;
        self.pipeline.seek(epoch, position)?;
        (self.epoch, self.position) = (epoch, position);
        self.digests.seek(epoch, position);
        Ok(())
    }

    /// The batches of an epoch, from its beginning, unless the loader is inside it already: then those that are left.
    ///
    /// # Errors
    ///
    /// As [`Loader::seek`].
    pub fn epoch(&mut self, epoch: u64) -> Result<EpochBatches<'_>> {
        if self.epoch != epoch {
            self.seek(epoch, 0)?;
        }
        Ok(EpochBatches {
            loader: self,
            ended: false,
        })
    }

    /// Epoch of the next batch.
    #[must_use]
    pub fn current_epoch(&self) -> u64 {
        self.epoch
    }

    /// Samples of this epoch that all ranks together were given, padding not counted.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Digest of the delivered part of the last batch's epoch, for ranks and runs to compare. An epoch that began elsewhere,
    /// or was left by [`Loader::seek`], has a part.
    #[must_use]
    pub fn epoch_digest(&self) -> EpochDigest {
        self.digests.latest()
    }

    /// Batches of a whole epoch, the same on every rank.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.batches.per_epoch()
    }

    /// Batches from here to the end of this epoch.
    #[must_use]
    pub fn batches_left(&self) -> u64 {
        self.batches.remaining(self.position)
    }

    /// Records of the split, or of all splits of a [`Mix`].
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Samples of an epoch, all ranks together and padding not counted: the records of the split, if
    /// [`Sampling`](crate::Sampling) does not say otherwise.
    #[must_use]
    pub fn epoch_samples(&self) -> u64 {
        self.samples
    }

    /// Bytes of all records of the split as stored.
    #[must_use]
    pub fn dataset_bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are planned to be held: windows of records, reads on their way and batches, handed out ones left aside.
    /// Never more than the budget, and often much less.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.pipeline.shared().planned_bytes
    }

    /// The options with everything filled in that shapes batches.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The resolved options as the schema has them, with the split. They say nothing of a [`Mix`], which no server makes.
    #[must_use]
    pub fn schema(&self) -> LoaderOptions {
        self.options.to_schema().with_split(&self.split)
    }

    /// Identity of the dataset, or [of the mix](Mix::fingerprint).
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.identity.fingerprint
    }

    /// Identity of the samples, or [of those of the mix](Mix::sample_fingerprint), where manifests say: a conversion
    /// that keeps the samples keeps it.
    #[must_use]
    pub fn sample_fingerprint(&self) -> Option<&str> {
        self.identity.samples.as_deref()
    }

    /// Returns the label of the first class in batches; `None` for a [`Mix`] of stored labels that count from different numbers.
    #[must_use]
    pub fn label_base(&self) -> Option<i64> {
        self.classes.first
    }

    /// Returns the names of classes in the order of the labels of batches, from [`Loader::label_base`] on. Empty where the
    /// manifest has none, or a label of a [`Mix`] stands for several classes.
    #[must_use]
    pub fn classes(&self) -> &Arc<[String]> {
        &self.classes.names
    }

    /// Times and waits of each stage so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.pipeline.shared().stats()
    }

    /// A view for another thread.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor {
            shared: Arc::clone(self.pipeline.shared()),
        }
    }
}

fn check_position(position: u64, samples: u64) -> Result<()> {
    if position > samples {
        return Err(Error::Position { position, samples });
    }
    Ok(())
}

/// The batches of one epoch: see [`Loader::epoch`]. Ends after an error.
#[derive(Debug)]
pub struct EpochBatches<'a> {
    loader: &'a mut Loader,
    ended: bool,
}

impl Iterator for EpochBatches<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let batch = self.loader.next_batch().transpose();
        self.ended = !matches!(batch, Some(Ok(_)));
        batch
    }
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("split", &self.split)
            .field("epoch", &self.epoch)
            .field("position", &self.position)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Monitor {
    /// Ends the loader: threads that wait in [`Loader::next_batch`] get [`Error::Interrupted`], now and from now on,
    /// and its threads end.
    pub fn interrupt(&self) {
        self.shared.stop();
    }

    /// Times and waits of each stage so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Numbers of items in the pipeline's queues now.
    #[must_use]
    pub fn queues(&self) -> Queues {
        self.shared.queues()
    }

    /// How long reads took so far.
    #[must_use]
    pub fn reads(&self) -> ReadTimes {
        self.shared.reads.read()
    }
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}
