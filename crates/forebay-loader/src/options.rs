//! Options of a loader, and their resolution for one split.
//!
//! This module owns defaults and validation. Defaults that affect the order of samples are in
//! [`plan::defaults`] and depend on the dataset alone.

use std::sync::Arc;

use forebay_batch::HostRegistry;
use forebay_batch::positions::WindowedOrder;
use forebay_image::{BatchTransform, DecodeOptions, Dtype, Layout, Output, ResizeLike, Transform};

use crate::error::{Error, Result};
use crate::fair::FairShare;
use crate::plan::{Batches, Shuffle, defaults};
use crate::sampling::Sampling;
use crate::source::{DEFAULT_READERS, PageCache};
use forebay_options::{LabelBase, OnError};

/// Default memory budget of a loader: the windows of the default shuffle (at most 512 MiB), reads in flight,
/// and a few batches.
pub const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;
/// Default number of batches that are in progress or ready.
const DEFAULT_BATCHES_AHEAD: usize = 4;
/// Minimum: one batch is finished while the next one is started.
const MIN_BATCHES_AHEAD: usize = 2;
const MAX_THREADS: usize = 1024;
/// Additional batches of encoded images to reserve memory for: a batch exists twice while it is assembled, and some
/// batches are larger than others.
pub(crate) const RAW_EXTRA: u64 = 2;

/// Options of a loader. The number 0 selects a value automatically.
///
/// ```
/// use forebay_image::{TrainTransform, Transform};
/// use forebay_loader::Options;
///
/// let mut options = Options::new(256, Transform::Train(TrainTransform::new(224)));
/// options.seed = 42;
/// options.threads = 2;
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Samples per batch of this rank.
    pub batch_size: u64,
    /// Rank of this loader, from 0.
    pub rank: u64,
    /// Number of ranks that share an epoch.
    pub world_size: u64,
    /// Parts of the epoch that are read in parallel; 0 for
    /// [`defaults::VIRTUAL_RANKS`]. Changes the order of samples.
    pub virtual_ranks: u64,
    /// Seed of the order and of random transforms.
    pub seed: u64,
    /// Order of the samples.
    pub shuffle: Shuffle,
    /// Conversion of an image to pixels.
    pub transform: Transform,
    /// Axis order, element type and normalization of a batch.
    pub output: Output,
    /// Mixing of the samples within a batch, if any.
    pub batch_transform: Option<BatchTransform>,
    /// Whether to leave out the last, incomplete batch of an epoch instead of padding it.
    pub drop_last: bool,
    /// Selection of the records of each epoch.
    pub sampling: Sampling,
    /// Policy for samples that cannot be read or decoded.
    pub on_error: OnError,
    /// Label of the first class, in batches and in `sampling`.
    pub label_base: LabelBase,
    /// Decode threads. 0 selects the number of cores of this process (CPU affinity and cgroup limits count); all its loaders
    /// with 0 then share these cores, sample by sample.
    pub threads: usize,
    /// Share of the cores, relative to other loaders of this process. If set, threads take turns whatever their number;
    /// `None` creates a new share of weight 1.
    pub share: Option<FairShare>,
    /// Read threads, which mostly wait for storage; 0 for [`DEFAULT_READERS`], or for remote storage the number that its
    /// latency calls for, if the memory allows.
    pub readers: usize,
    /// Batches in progress or ready; 0 for 4, or for fewer if 4 would take more than
    /// half of the memory.
    pub batches_ahead: usize,
    /// Budget in bytes for records and batches together; 0 for [`DEFAULT_MEMORY_BYTES`]. Batches that the caller holds
    /// are not counted. A single record or batch above the budget is still made, and reused buffers may be somewhat
    /// larger than their contents.
    pub memory_bytes: u64,
    /// Registers the memory of batches for a device, which then copies them from there.
    pub registry: Option<HostRegistry>,
    /// Limit in bytes for the seek points that JPEGs without stored ones get in the first epoch, so that later epochs decode
    /// their crops faster, with the same pixels; 0 for none. It does not count in `memory_bytes`. See
    /// [`LearnedSeekPoints`](crate::LearnedSeekPoints).
    pub learn_seek_points: u64,
    /// Page cache policy for records.
    pub page_cache: PageCache,
    /// Decoding: which library's pixels to reproduce, EXIF orientation, scaled decoding, limits against decompression bombs.
    pub decode: DecodeOptions,
    /// Names of the columns in batches, in addition to images and labels.
    pub columns: Arc<[String]>,
    /// Whether to keep boxes that are less than a pixel after the transform.
    pub keep_empty_boxes: bool,
    /// Expected sizes of batches that vary in size.
    pub(crate) raw: RawSizes,
}

/// Sizes of batches of [`Transform::KeepEncoded`], which depend on the images, and of batches with columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawSizes {
    /// Average size of an encoded image in bytes, once resolved.
    pub(crate) typical: u64,
    /// Size of a sample in columns of constant size, in bytes, once resolved.
    pub(crate) columns: u64,
    /// Maximum size of a batch in bytes.
    pub(crate) most: u64,
}

impl Options {
    /// Creates options for batches of `batch_size` samples on a single rank, with defaults for everything else.
    #[must_use]
    pub fn new(batch_size: u64, transform: Transform) -> Self {
        Options {
            batch_size,
            rank: 0,
            world_size: 1,
            virtual_ranks: 0,
            seed: 0,
            shuffle: Shuffle::default(),
            transform,
            output: Output::default(),
            batch_transform: None,
            drop_last: true,
            sampling: Sampling::default(),
            on_error: OnError::default(),
            label_base: LabelBase::default(),
            threads: 0,
            share: None,
            readers: 0,
            batches_ahead: 0,
            memory_bytes: 0,
            registry: None,
            learn_seek_points: crate::learned::DEFAULT_BYTES,
            page_cache: PageCache::default(),
            decode: DecodeOptions::default(),
            columns: Arc::default(),
            keep_empty_boxes: false,
            raw: RawSizes {
                typical: 0,
                columns: 0,
                most: isize::MAX as u64 / 2,
            },
        }
    }

    /// Returns whether images stay encoded; then batches have no pixels and vary in size.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        matches!(self.transform, Transform::KeepEncoded)
    }

    /// Returns whether batches vary in size: those with encoded images or with columns.
    #[must_use]
    pub fn varies(&self) -> bool {
        self.is_raw() || !self.columns.is_empty()
    }

    /// Returns the same options with the defaults of all options that affect batches filled in (threads and memory, which
    /// concern this machine, are left as they are). `records` and `bytes` describe an epoch: a split, or the records that
    /// [`Sampling`] selects. Two loaders with the same resolved options make the same batches.
    ///
    /// # Errors
    ///
    /// Any invalid option, with the allowed values.
    pub fn resolve(&self, records: u64, bytes: u64) -> Result<Options> {
        self.resolve_within(records, bytes, None)
    }

    /// As [`Options::resolve`], for a split whose manifest limits the number of records per block,
    /// see [`Split::block_records`](forebay_shard::Split::block_records).
    ///
    /// # Errors
    ///
    /// As [`Options::resolve`].
    pub fn resolve_within(
        &self,
        records: u64,
        bytes: u64,
        most_block_records: Option<u64>,
    ) -> Result<Options> {
        let mut resolved = self.clone();
        if self.virtual_ranks == 0 {
            resolved.virtual_ranks = defaults::VIRTUAL_RANKS;
        }
        let virtual_ranks = resolved.virtual_ranks;
        resolved
            .shuffle
            .resolve(records, bytes, most_block_records, virtual_ranks);
        resolved.batches(records.saturating_mul(self.sampling.times()))?;
        resolved.transform.validate().map_err(Error::Transform)?;
        resolved.output.validate().map_err(Error::Transform)?;
        if resolved.is_raw() {
            resolved.check_raw()?;
            resolved.raw.typical = (bytes / records.max(1)).max(1);
        }
        let bytes = resolved.batch_bytes()? as u64;
        if resolved.varies() && bytes > resolved.raw.most {
            return Err(resolved.too_large(bytes));
        }
        Ok(resolved)
    }

    /// Refuses options that concern pixels, since images stay encoded.
    fn check_raw(&self) -> Result<()> {
        let refused = |name, found: String| {
            let expected = "nothing: with KeepEncoded images stay as they are";
            Err(Error::option(name, found, expected))
        };
        let Output {
            layout,
            dtype,
            normalize,
        } = self.output;
        let decode = &self.decode;
        if dtype != Dtype::Uint8 || normalize.is_some() {
            return refused("dtype", format!("{dtype:?}").to_lowercase());
        }
        if layout != Layout::default() {
            return refused("layout", format!("{layout:?}").to_lowercase());
        }
        if self.batch_transform.is_some() {
            return refused("batch_transform", "given".to_owned());
        }
        if decode.resize_like != ResizeLike::default() {
            return refused("resize_like", decode.resize_like.to_string());
        }
        if decode.exif {
            return refused("exif_orientation", "asked for".to_owned());
        }
        if decode.scaled {
            return refused("dct_scaling", "asked for".to_owned());
        }
        Ok(())
    }

    /// Returns the error for a batch of varying size that is larger than allowed.
    pub(crate) fn too_large(&self, bytes: u64) -> Error {
        let found = format!("{}, for a batch of {bytes} bytes", self.batch_size);
        let expected = format!("batches of at most {} bytes", self.raw.most);
        Error::option("batch_size", found, expected)
    }

    /// Returns the batches of this rank in an epoch of `samples` samples. These options must be resolved.
    ///
    /// # Errors
    ///
    /// As [`Batches::new`].
    pub fn batches(&self, samples: u64) -> Result<Batches> {
        let batches = Batches::new(
            samples,
            self.batch_size,
            self.rank,
            self.world_size,
            self.drop_last,
        )?;
        let Shuffle {
            block_records,
            window_blocks,
            reshuffle,
            ..
        } = self.shuffle;
        Ok(match self.shuffle.has_blocks() {
            true => batches.in_order(WindowedOrder {
                virtual_ranks: self.virtual_ranks,
                block_records,
                window_blocks,
                seed: self.seed,
                reshuffle,
                repeats: self.sampling.times(),
            }),
            false => batches,
        })
    }

    /// Returns the size of a sample's image in bytes; with [`Transform::KeepEncoded`] the average, once resolved.
    #[must_use]
    pub fn sample_bytes(&self) -> usize {
        if self.is_raw() {
            return usize::try_from(self.raw.typical.max(1)).unwrap_or(usize::MAX);
        }
        self.transform.output_values() * self.output.dtype.bytes()
    }

    /// Returns the size of a batch's pixels in bytes; 0 if images stay encoded.
    pub(crate) fn pixel_bytes(&self) -> usize {
        if self.is_raw() {
            return 0;
        }
        let size = usize::try_from(self.batch_size).unwrap_or(usize::MAX);
        size.saturating_mul(self.sample_bytes())
    }

    /// Returns the size of a batch in bytes: its pixels (with [`Transform::KeepEncoded`] the average size of its images), and
    /// its columns of constant size, once resolved. Columns of varying size are not included.
    ///
    /// # Errors
    ///
    /// A batch that no buffer can hold.
    pub fn batch_bytes(&self) -> Result<usize> {
        let columns = usize::try_from(self.raw.columns).unwrap_or(usize::MAX);
        usize::try_from(self.batch_size)
            .ok()
            .and_then(|size| size.checked_mul(self.sample_bytes().checked_add(columns)?))
            .filter(|&bytes| bytes <= isize::MAX as usize / 2)
            .ok_or_else(|| {
                Error::option(
                    "batch_size",
                    self.batch_size,
                    "a batch that fits into memory",
                )
            })
    }
}

/// Returns the number of cores that this process may use: CPU affinity and cgroup limits count.
pub(crate) fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_THREADS))
}

/// The use of this machine by a loader: threads, and the division of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) threads: usize,
    pub(crate) readers: usize,
    pub(crate) batches_ahead: usize,
    /// Memory for encoded records.
    pub(crate) record_bytes: u64,
}

impl Machine {
    /// Divides the memory: at most half of it for batches, but at least two batches; the rest for records.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let count = |name, found: usize, default: usize| {
            if found > MAX_THREADS {
                return Err(Error::option(name, found, format!("0 to {MAX_THREADS}")));
            }
            Ok(if found == 0 { default } else { found })
        };
        let threads = count("threads", options.threads, usable_cores())?;
        let readers = count("readers", options.readers, DEFAULT_READERS)?;
        let budget = match options.memory_bytes {
            0 => DEFAULT_MEMORY_BYTES,
            bytes => bytes,
        };
        let batch_bytes = options.batch_bytes()? as u64;
        let affordable = usize::try_from(budget / 2 / batch_bytes.max(1)).unwrap_or(usize::MAX);
        let wanted = match options.batches_ahead {
            0 => DEFAULT_BATCHES_AHEAD.min(affordable),
            ahead => ahead,
        };
        let batches_ahead = wanted.max(MIN_BATCHES_AHEAD);
        let extra = if options.varies() { RAW_EXTRA } else { 0 };
        let for_batches = batch_bytes.saturating_mul(batches_ahead as u64 + extra);
        // A default budget grows with the batches; a budget that the caller set is kept.
        let budget = match options.memory_bytes {
            0 => budget.max(for_batches.saturating_mul(2)),
            bytes => bytes,
        };
        match budget.checked_sub(for_batches) {
            Some(record_bytes) if record_bytes > 0 => Ok(Machine {
                threads,
                readers,
                batches_ahead,
                record_bytes,
            }),
            _ => Err(Error::Memory {
                budget,
                batch_bytes,
                needed: for_batches + 1,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_image::TrainTransform;

    use super::*;

    fn options(batch_size: u64) -> Options {
        Options::new(batch_size, Transform::Train(TrainTransform::new(224)))
    }

    #[test]
    fn resolving_fills_in_what_shapes_the_order() {
        let resolved = options(256)
            .resolve(1_281_167, 1_281_167 * 110_000)
            .unwrap();
        assert_eq!(resolved.virtual_ranks, 64);
        let expected = Shuffle::blocks(32, 2);
        assert_eq!(resolved.shuffle, expected);
        assert_eq!(resolved.threads, 0, "that is the machine's business");
        assert_eq!(resolved.resolve(1_281_167, 7).unwrap(), resolved);
    }

    #[test]
    fn memory_is_divided() {
        let machine = Machine::new(&options(256)).unwrap();
        assert_eq!(machine.batches_ahead, 4);
        assert_eq!(machine.record_bytes, (1 << 30) - 4 * 256 * 224 * 224 * 3);
        let mut small = options(256);
        small.memory_bytes = 100 << 20;
        assert_eq!(Machine::new(&small).unwrap().batches_ahead, 2);
        small.memory_bytes = 50 << 20;
        let error = Machine::new(&small).unwrap_err().to_string();
        assert!(error.contains("77070337"), "{error}");
        // Batches of 9.6 GB, for which the default budget grows.
        assert!(Machine::new(&options(1 << 16)).is_ok());
    }

    #[test]
    fn invalid_options_are_refused() {
        let resolve = |change: &dyn Fn(&mut Options)| {
            let mut options = options(8);
            change(&mut options);
            options
                .resolve(1000, 1000)
                .and_then(|options| Machine::new(&options))
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        resolve(&|_| ()).unwrap();
        resolve(&|o| o.world_size = 3).unwrap();
        assert!(resolve(&|o| o.world_size = 0).is_err());
        // 8 samples for each of 126 ranks are more than an epoch has.
        let error = resolve(&|o| o.world_size = 126).unwrap_err();
        assert!(error.contains("1000 samples"), "{error}");
        assert!(error.contains("all ranks takes 1008"), "{error}");
        assert!(resolve(&|o| o.rank = 1).is_err());
        assert!(resolve(&|o| o.batch_size = 0).is_err());
        assert!(resolve(&|o| o.batch_size = 1001).is_err());
        assert!(resolve(&|o| o.threads = 1_000_000).is_err());
        let error =
            resolve(&|o| o.transform = Transform::Train(TrainTransform::new(0))).unwrap_err();
        assert!(error.contains("size"), "{error}");
        let wide = resolve(&|o| {
            o.batch_size = 1 << 24;
            o.drop_last = false;
            o.transform = Transform::Train(TrainTransform::new(8192));
        });
        assert!(wide.is_ok() || wide.unwrap_err().contains("memory"));
    }
}
