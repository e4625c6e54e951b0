//! Options of a loader, and the values that they resolve to for one split.
//!
//! Owns defaults and validation. Where a value shapes the order of samples, its default is in
//! [`plan::defaults`] and depends on the dataset alone.

use std::sync::Arc;

use forebay_image::{BatchTransform, DecodeOptions, Dtype, Layout, Output, ResizeLike, Transform};

use crate::error::{Error, Result};
use crate::fair::FairShare;
use crate::plan::{self, Batches, Shuffle, defaults};
use crate::sampling::Sampling;
use crate::source::{DEFAULT_READERS, PageCache};
use forebay_options::{LabelBase, OnError};

/// Memory that a loader may hold when nothing is said: the windows of the default shuffle (at most 512 MiB),
/// what is being read ahead, and a few batches.
pub const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;
/// Batches in the making or ready when nothing is said.
const DEFAULT_BATCHES_AHEAD: usize = 4;
/// One is being finished while the next is being begun.
const MIN_BATCHES_AHEAD: usize = 2;
const MAX_THREADS: usize = 1024;
/// Batches of encoded images that there is room for besides: one is there twice while it is put together, and some are
/// larger than others.
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
    /// Samples in a batch of this rank.
    pub batch_size: u64,
    /// This rank, from 0.
    pub rank: u64,
    /// How many ranks share an epoch.
    pub world_size: u64,
    /// Parts of the epoch that are read side by side, a multiple of `world_size`; 0 for
    /// [`defaults::VIRTUAL_RANKS`]. Part of the order.
    pub virtual_ranks: u64,
    /// Seed of the order and of random transforms.
    pub seed: u64,
    /// In which order samples come.
    pub shuffle: Shuffle,
    /// How an image becomes pixels.
    pub transform: Transform,
    /// Order of the axes of a batch, type of its numbers, normalisation.
    pub output: Output,
    /// How the samples of a batch are mixed with each other, if they are.
    pub batch_transform: Option<BatchTransform>,
    /// Whether the last, short batch of an epoch is left out rather than filled up with padding.
    pub drop_last: bool,
    /// Which records epochs are made of.
    pub sampling: Sampling,
    /// Policy for samples that cannot be read or decoded.
    pub on_error: OnError,
    /// The label of the first class, in batches and in `sampling`.
    pub label_base: LabelBase,
    /// Threads that decode; 0 for as many as this process may use (CPU affinity and cgroup limits count), which then
    /// are shared with all its other loaders that were left the choice, sample by sample.
    pub threads: usize,
    /// Which part of the cores this loader has beside others of its process. With one, threads take turns whatever their number;
    /// `None` for a part of its own, as large as any other's.
    pub share: Option<FairShare>,
    /// Threads that read, most of the time waiting for storage; 0 for [`DEFAULT_READERS`], or as many as storage behind a network
    /// is worth, if the memory allows.
    pub readers: usize,
    /// Batches in the making or ready; 0 for 4, or fewer where they would take more than
    /// half of the memory.
    pub batches_ahead: usize,
    /// Budget in bytes for records and batches together; 0 for [`DEFAULT_MEMORY_BYTES`]. Batches that were
    /// handed out are not counted. A single record or batch that is larger is still made; memory that is used again may be
    /// somewhat larger than what it holds.
    pub memory_bytes: u64,
    /// Page cache policy for records.
    pub page_cache: PageCache,
    /// How images are decoded: whose pixels, EXIF orientation, scaled decoding, limits against decompression bombs.
    pub decode: DecodeOptions,
    /// Names of the columns that batches have besides images and labels.
    pub columns: Arc<[String]>,
    /// Keep boxes of which less than a pixel is left.
    pub keep_empty_boxes: bool,
    /// Memory to expect of batches that vary in size.
    pub(crate) raw: RawSizes,
}

/// Batches of [`Transform::KeepEncoded`] are as large as their images, those with columns as large as these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RawSizes {
    /// Bytes of an encoded image on average, once that is resolved.
    pub(crate) typical: u64,
    /// Bytes of a sample in columns of one size, once they are resolved.
    pub(crate) columns: u64,
    /// Most bytes of a batch.
    pub(crate) most: u64,
}

impl Options {
    /// Batches of `batch_size` samples for a single rank, everything else by default.
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

    /// Whether images stay encoded: then batches have no pixels, and sizes of their own.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        matches!(self.transform, Transform::KeepEncoded)
    }

    /// Whether batches vary in size: those with encoded images or with columns.
    #[must_use]
    pub fn varies(&self) -> bool {
        self.is_raw() || !self.columns.is_empty()
    }

    /// The same options with everything filled in that shapes batches (not what concerns this machine: threads
    /// and memory), for epochs of `records` records in `bytes` bytes: a split, or what [`Sampling`] leaves or draws of it. Two loaders with the same resolved
    /// options give the same batches.
    ///
    /// # Errors
    ///
    /// Every option that cannot be, with what is possible.
    pub fn resolve(&self, records: u64, bytes: u64) -> Result<Options> {
        self.resolve_within(records, bytes, None)
    }

    /// [`Options::resolve`] for a split whose manifest says how many records a block may have,
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
        plan::check_world(resolved.virtual_ranks, resolved.world_size)?;
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

    /// Refuses what is about pixels where there are none.
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

    /// A batch that varies in size and is larger than allowed.
    pub(crate) fn too_large(&self, bytes: u64) -> Error {
        let found = format!("{}, for a batch of {bytes} bytes", self.batch_size);
        let expected = format!("batches of at most {} bytes", self.raw.most);
        Error::option("batch_size", found, expected)
    }

    /// Which positions of an epoch of `records` samples this rank's batches hold.
    ///
    /// # Errors
    ///
    /// As [`Batches::new`].
    pub fn batches(&self, records: u64) -> Result<Batches> {
        Batches::new(
            records,
            self.batch_size,
            self.rank,
            self.world_size,
            self.drop_last,
        )
    }

    /// Bytes of the image of a sample; with [`Transform::KeepEncoded`] those of one on average, once they are resolved.
    #[must_use]
    pub fn sample_bytes(&self) -> usize {
        if self.is_raw() {
            return usize::try_from(self.raw.typical.max(1)).unwrap_or(usize::MAX);
        }
        self.transform.output_values() * self.output.dtype.bytes()
    }

    /// Bytes of pixels of a batch; 0 where images stay encoded.
    pub(crate) fn pixel_bytes(&self) -> usize {
        if self.is_raw() {
            return 0;
        }
        let size = usize::try_from(self.batch_size).unwrap_or(usize::MAX);
        size.saturating_mul(self.sample_bytes())
    }

    /// Bytes of one batch: of pixels, or with [`Transform::KeepEncoded`] what images have on average, and of columns whose values
    /// have one size, once they are resolved. Other columns come in addition.
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

/// Cores that this process may use: affinity and cgroup limits count.
pub(crate) fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_THREADS))
}

/// How a loader uses this machine: threads, and how its memory is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) threads: usize,
    pub(crate) readers: usize,
    pub(crate) batches_ahead: usize,
    /// For encoded records.
    pub(crate) record_bytes: u64,
}

impl Machine {
    /// Divides memory: at most half for batches but two of them at least, the rest for records.
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
        // A default budget grows with the batches; one that was chosen is kept.
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
        // Batches of 9.6 GB: the default budget follows.
        assert!(Machine::new(&options(1 << 16)).is_ok());
    }

    #[test]
    fn what_cannot_be_is_refused() {
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
        let error = resolve(&|o| o.world_size = 3).unwrap_err();
        assert!(error.contains("32, 64"), "{error}");
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
