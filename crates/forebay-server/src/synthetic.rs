//! A synthetic source, to measure the cost of serving alone.
//!
//! A [`Synthetic`] source behaves like a dataset of any size, but reads and decodes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_batch::{FLAG_PADDING, FLAG_SAMPLE, PADDING_LABEL, digest};
use forebay_image::Transform;
use forebay_loader::plan::Batches;
use forebay_loader::{Options, Shuffle};
use forebay_options::{LoaderOptions, StreamInfo};
use forebay_wire::wire::{self, error::Kind};
use forebay_wire::{Batch, BufferPool, Dtype, Layout};

use crate::source::{
    BatchSource, Description, Failure, StreamMonitor, StreamRequest, StreamSource,
};

/// Name of the only split.
const SPLIT: &str = "train";
/// Maximum image side.
const MAX_SIDE: u64 = 16_384;

/// Content of the pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pixels {
    /// A function of the sample number, see [`Synthetic::pixel`].
    #[default]
    Pattern,
    /// Uninitialized: nothing is written, for benchmarks.
    Arbitrary,
}

/// A source of generated images, in the order of their numbers. Label and pixels are functions of
/// the number.
#[derive(Debug, Clone)]
pub struct Synthetic {
    records: u64,
    pixels: Pixels,
}

impl Synthetic {
    /// Creates a source with one split, `train`, of `records` samples.
    #[must_use]
    pub fn new(records: u64, pixels: Pixels) -> Self {
        Synthetic { records, pixels }
    }

    /// Returns byte `i` of sample `sample` under [`Pixels::Pattern`], in any layout.
    #[must_use]
    pub fn pixel(sample: u64, i: usize) -> u8 {
        (sample.wrapping_mul(31) as usize).wrapping_add(i) as u8
    }

    /// Returns the label of sample `sample`, counted from 0.
    #[must_use]
    pub fn label(sample: u64) -> i64 {
        (sample % 1000) as i64
    }
}

impl StreamSource for Synthetic {
    fn describe(&self) -> Description {
        Description {
            fingerprint: format!("synthetic-{}", self.records),
            sample_fingerprint: None,
            splits: vec![wire::SplitInfo {
                name: SPLIT.to_owned(),
                records: self.records,
            }],
            label_base: 0,
            class_titles: Arc::default(),
        }
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        let mut given = request.options.clone();
        let split = given.split.get_or_insert_with(|| SPLIT.to_owned());
        if split != SPLIT {
            let text = format!("no split {split:?}; there is {SPLIT}");
            return Err(Failure::new(Kind::NotFound, text));
        }
        // Nothing is shuffled, and nothing normalized.
        (given.block_records, given.window_blocks) = (None, None);
        given.shuffle = Some(false.into());
        let invalid = |text: String| Failure::new(Kind::Invalid, text);
        let mut options = Options::from_schema(&given).map_err(|e| invalid(e.to_string()))?;
        options.shuffle = Shuffle::NONE;
        let batches = options
            .batches(self.records)
            .map_err(|e| invalid(e.to_string()))?;
        if !matches!(options.transform, Transform::Train(_) | Transform::Eval(_)) {
            let text = "made-up batches know TrainTransform and EvalTransform only";
            return Err(invalid(text.to_owned()));
        }
        let side = u64::from(options.transform.output_size().0);
        if !(1..=MAX_SIDE).contains(&side) {
            let text = format!("images of {side} pixels a side: expected 1 to {MAX_SIDE}");
            return Err(invalid(text));
        }
        if options.output.dtype != Dtype::Uint8 {
            let text = "made-up batches have bytes only: dtype uint8";
            return Err(invalid(text.to_owned()));
        }
        let layout = options.output.layout;
        let mut resolved = options.to_schema();
        resolved.split = given.split;
        // No overflow: neither factor exceeds 2^30.
        let batch_bytes = options.batch_size * (side * side * 3);
        if batch_bytes > request.max_batch_bytes {
            let text = format!(
                "a batch of {batch_bytes} bytes is more than the limit of {}",
                request.max_batch_bytes
            );
            return Err(Failure::new(Kind::Invalid, text));
        }
        let (n, side) = (options.batch_size as usize, side as usize);
        Ok(Box::new(SyntheticBatches {
            records: self.records,
            batches,
            shape: match layout {
                Layout::Nhwc => [n, side, side, 3],
                Layout::Nchw => [n, 3, side, side],
            },
            layout,
            first_label: options.label_base.or_stored(0),
            options: resolved,
            pixels: self.pixels,
            // Only one batch is sent at a time.
            pool: request
                .pool
                .clone()
                .unwrap_or_else(|| BufferPool::new(batch_bytes as usize * 2)),
            epoch: request.epoch,
            position: request.position,
            cancelled: Arc::default(),
        }))
    }
}

struct SyntheticBatches {
    records: u64,
    options: LoaderOptions,
    batches: Batches,
    shape: [usize; 4],
    layout: Layout,
    first_label: i64,
    pixels: Pixels,
    pool: BufferPool,
    epoch: u64,
    position: u64,
    cancelled: Arc<Cancelled>,
}

impl BatchSource for SyntheticBatches {
    fn info(&self) -> StreamInfo {
        StreamInfo {
            options: self.options.clone(),
            records: self.records,
            samples: self.records,
            batches_per_epoch: self.batches.per_epoch(),
            batch_bytes: self.shape.iter().product::<usize>() as u64,
            label_base: self.first_label,
            ..StreamInfo::default()
        }
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        if self.cancelled.0.load(Ordering::Acquire) {
            return Err(Failure::new(Kind::Shutdown, "cancelled"));
        }
        if self.batches.remaining(self.position) == 0 {
            self.epoch += 1;
            self.position = 0;
            return Ok(None);
        }
        let assignment = self.batches.assignment();
        let positions = assignment.positions(self.epoch, self.position);
        let samples: Vec<u64> = positions.iter().map(|p| p % self.records).collect();
        let flags: Vec<u8> = positions
            .iter()
            .map(|&p| {
                if p < self.records {
                    FLAG_SAMPLE
                } else {
                    FLAG_PADDING
                }
            })
            .collect();
        let mut images = self.pool.take(self.shape.iter().product());
        if self.pixels == Pixels::Pattern {
            let bytes = images.len() / samples.len();
            for (image, &sample) in images.chunks_exact_mut(bytes).zip(&samples) {
                for (i, byte) in image.iter_mut().enumerate() {
                    *byte = Synthetic::pixel(sample, i);
                }
            }
        }
        let batch = Batch {
            epoch: self.epoch,
            step: self.position / self.batches.global_size(),
            position: self.position,
            payload: images,
            dtype: Dtype::Uint8,
            mixed: None,
            columns: Vec::new(),
            encoded: None,
            shape: self.shape,
            layout: self.layout,
            labels: positions
                .iter()
                .map(|&p| match p < self.records {
                    true => Synthetic::label(p) + self.first_label,
                    false => PADDING_LABEL,
                })
                .collect(),
            digest: digest::batch(positions, &samples, &flags),
            samples,
            flags,
        };
        self.position += self.batches.global_size();
        Ok(Some(batch))
    }

    fn monitor(&self) -> Arc<dyn StreamMonitor> {
        Arc::clone(&self.cancelled) as Arc<dyn StreamMonitor>
    }
}

#[derive(Default)]
struct Cancelled(AtomicBool);

impl StreamMonitor for Cancelled {
    fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn stats(&self) -> wire::Stats {
        wire::Stats::default()
    }
}
