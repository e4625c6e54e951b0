//! The loader, which makes the batches of one rank, epoch after epoch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_batch::digest::{self, Digests, EpochDigest};
use forebay_batch::{Batch, BufferPool, Layout};
use forebay_options::LoaderOptions;
use forebay_shard::Split;

use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::learned::LearnedSeekPoints;
use crate::mix::Mix;
use crate::options::Options;
use crate::pipeline::{FinishedBatch, Pipeline, Shared};
use crate::plan::Batches;
use crate::source::{Classes, Source, SplitSource};
use crate::stats::{Queues, ReadTimes, Stats};

/// Makes the batches of one rank, in order, ahead of the consumer.
///
/// Its threads read, decode and transform until the memory budget or the limit on prefetched batches is reached;
/// they continue across the ends of epochs. The batches depend only on the split and the
/// [resolved](Options::resolve) options, not on the number of threads or the memory.
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
    /// Samples per epoch.
    samples: u64,
    epoch: u64,
    /// Position of the next global batch in the epoch, in samples of all ranks.
    position: u64,
    digests: Digests,
}

/// The identity of a loader's dataset.
#[derive(Default)]
pub(crate) struct Identity {
    pub(crate) fingerprint: String,
    pub(crate) samples: Option<String>,
}

/// Stops a loader or reads its counters from another thread. A monitor keeps no thread of the loader alive.
#[derive(Clone)]
pub struct Monitor {
    shared: Arc<Shared>,
}

impl Loader {
    /// Creates a loader that begins with the first batch of epoch 0.
    ///
    /// # Errors
    ///
    /// Invalid options, an empty split, threads that cannot be started.
    pub fn new(split: Split, options: Options) -> Result<Self> {
        Self::resume(split, options, (0, 0), None)
    }

    /// Creates a loader that begins at `(epoch, position)`, as returned by [`Loader::current_epoch`] and [`Loader::position`];
    /// world size and batch size may differ from then. `pool` provides the batch buffers; loaders may share a pool.
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

    /// Creates a loader of several datasets that begins with the first batch of epoch 0.
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
        let changes = selection.portions().is_some_and(|epochs| epochs.len() > 1);
        if changes && !options.shuffle.reshuffle {
            let expected = "true with weights of a mix that change from epoch to epoch";
            return Err(Error::option("reshuffle", "false", expected));
        }
        let num_samples = selection.len();
        let selected_bytes = match (source.portions(), selection.portions()) {
            (Some(portions), Some(counts)) => {
                let epochs = counts.iter().map(|counts| portions.bytes_of(counts));
                epochs.max().unwrap_or(0)
            }
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
        let learns = options.learn_seek_points > 0 && !options.is_raw();
        let learned = learns.then(|| LearnedSeekPoints::shared(&identity.fingerprint, &split));
        let pipeline = Pipeline::start(
            source,
            options.clone(),
            (columns, learned),
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

    /// Returns the next batch, or `None` at the end of an epoch. The call after that begins the next epoch.
    ///
    /// The pixels of a batch have shape `[batch_size, height, width, 3]`, or `[batch_size, 3, height, width]` with
    /// [`Layout::Nchw`], and the element type of [`Output`](forebay_image::Output). With
    /// [`Transform::KeepEncoded`](forebay_image::Transform::KeepEncoded) a batch has encoded images instead.
    ///
    /// # Errors
    ///
    /// The error of the first sample that cannot be read or decoded, after all batches before it were returned. Every later
    /// call returns the same error until [`Loader::seek`]. [`Error::Interrupted`] after [`Monitor::interrupt`].
    pub fn next_batch(&mut self) -> Result<Option<Batch>> {
        self.next_until(None)
    }

    /// [`Loader::next_batch`] that waits for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Loader::next_batch`]; [`Error::Timeout`], which names the stage that is waited for. The loader keeps working,
    /// and a later call returns the batch.
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
        let positions = self.batches.assignment().positions(made.epoch, made.start);
        let (height, width) = self.options.transform.output_size();
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
            digest: digest::batch(positions, &made.samples, &made.flags),
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

    /// Continues with the batch that begins at `position` of `epoch`, and discards prefetched batches. Also clears
    /// the error of a failed loader.
    ///
    /// # Errors
    ///
    /// A position beyond the end of the epoch.
    pub fn seek(&mut self, epoch: u64, position: u64) -> Result<()> {
        check_position(position, self.samples)?;
        self.pipeline.shared().seek((epoch, position))?;
        (self.epoch, self.position) = (epoch, position);
        self.digests.seek(epoch, position);
        Ok(())
    }

    /// Returns the batches of an epoch: all of them, or the remaining ones if the loader is within this epoch already.
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

    /// Returns the epoch of the next batch.
    #[must_use]
    pub fn current_epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the number of samples of this epoch that all ranks together have received, without padding.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the digest of the delivered part of the last batch's epoch, for comparison across ranks and runs. It covers
    /// only a part of an epoch that did not begin at position 0 or that was left by [`Loader::seek`].
    #[must_use]
    pub fn epoch_digest(&self) -> EpochDigest {
        self.digests.latest()
    }

    /// Returns the number of batches per epoch, the same on every rank.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.batches.per_epoch()
    }

    /// Returns the number of batches up to the end of this epoch.
    #[must_use]
    pub fn batches_left(&self) -> u64 {
        self.batches.remaining(self.position)
    }

    /// Returns the number of records of the split, or of all splits of a [`Mix`].
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of samples per epoch of all ranks together, without padding: the number of records of the split,
    /// unless [`Sampling`](crate::Sampling) selects others.
    #[must_use]
    pub fn epoch_samples(&self) -> u64 {
        self.samples
    }

    /// Returns the stored size of all records of the split, in bytes.
    #[must_use]
    pub fn dataset_bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the planned memory in bytes: windows of records, reads in flight and batches, without batches that were
    /// returned to the caller. Never above the budget, and often far below it.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.pipeline.shared().planned_bytes
    }

    /// Returns the options, with the defaults of all options that affect batches filled in.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the resolved options and the split in the form of the schema. A [`Mix`] is left out, since no server makes one.
    #[must_use]
    pub fn schema(&self) -> LoaderOptions {
        self.options.to_schema().with_split(&self.split)
    }

    /// Returns the fingerprint of the dataset, or [of the mix](Mix::fingerprint).
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.identity.fingerprint
    }

    /// Returns the fingerprint of the samples, or [of those of the mix](Mix::sample_fingerprint), if the manifests have one.
    /// It does not change in a conversion that keeps the samples.
    #[must_use]
    pub fn sample_fingerprint(&self) -> Option<&str> {
        self.identity.samples.as_deref()
    }

    /// Returns the label of the first class in batches; `None` for a [`Mix`] of stored labels with different first labels.
    #[must_use]
    pub fn label_base(&self) -> Option<i64> {
        self.classes.first
    }

    /// Returns the class names in the order of the labels in batches, from [`Loader::label_base`] on. Empty if the
    /// manifest has none, or if a label of a [`Mix`] stands for several classes.
    #[must_use]
    pub fn classes(&self) -> &Arc<[String]> {
        &self.classes.names
    }

    /// Returns the times and waits of each stage since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.pipeline.shared().stats()
    }

    /// Returns a handle for use from another thread.
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

/// The batches of one epoch, see [`Loader::epoch`]. The iterator ends after an error.
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
    /// Stops the loader: its threads end, and current and later calls of [`Loader::next_batch`] return
    /// [`Error::Interrupted`].
    pub fn interrupt(&self) {
        self.shared.stop();
    }

    /// Returns the times and waits of each stage since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Returns the current number of items in the pipeline's queues.
    #[must_use]
    pub fn queues(&self) -> Queues {
        self.shared.queues()
    }

    /// Returns the times of all reads since the start.
    #[must_use]
    pub fn reads(&self) -> ReadTimes {
        self.shared.reads()
    }
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}
