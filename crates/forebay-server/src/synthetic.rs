//! A synthetic source, to measure the cost of serving alone.
//!
//! A [`Synthetic`] source behaves like a dataset of any size, but reads and decodes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_batch::{FLAG_PADDING, FLAG_SAMPLE, digest};
use forebay_loader::plan::Batches;
use forebay_wire::batch::{dtype_from_wire, layout_from_wire, layout_to_wire};
use forebay_wire::wire::{self, error::Kind, transform};
use forebay_wire::{Batch, BufferPool, Dtype, Layout};

use crate::source::{BatchSource, Description, Failure, Monitor, Source, StreamRequest};

/// Side of the images when a client does not say.
const DEFAULT_SIDE: u64 = 224;
/// Largest side.
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

impl Source for Synthetic {
    fn describe(&self) -> Description {
        Description {
            fingerprint: format!("synthetic-{}", self.records),
            sample_fingerprint: None,
            splits: vec![wire::SplitInfo {
                name: "train".to_owned(),
                records: self.records,
            }],
            label_base: 0,
            class_titles: Arc::default(),
        }
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        let mut spec = request.spec.clone();
        if spec.split.is_empty() {
            "train".clone_into(&mut spec.split);
        }
        if spec.split != "train" {
            let text = format!("no split {:?}; there is train", spec.split);
            return Err(Failure::new(Kind::NotFound, text));
        }
        spec.world_size = spec.world_size.max(1);
        let batches = Batches::new(
            self.records,
            spec.batch_size,
            spec.rank,
            spec.world_size,
            spec.keep_last,
        )
        .map_err(|e| Failure::new(Kind::Invalid, e))?;
        let side = match spec.transform.as_ref().and_then(|t| t.kind.as_ref()) {
            Some(transform::Kind::Train(train)) => train.size.into(),
            Some(transform::Kind::Eval(eval)) => eval.crop.into(),
            Some(transform::Kind::List(_) | transform::Kind::Raw(_)) => {
                let text = "made-up batches know TrainTransform and EvalTransform only";
                return Err(Failure::new(Kind::Invalid, text));
            }
            None => DEFAULT_SIDE,
        };
        if !(1..=MAX_SIDE).contains(&side) {
            let text = format!("images of {side} pixels a side: expected 1 to {MAX_SIDE}");
            return Err(Failure::new(Kind::Invalid, text));
        }
        let layout = layout_from_wire(spec.layout)
            .ok_or_else(|| Failure::new(Kind::Invalid, "a layout of another time"))?;
        spec.layout = layout_to_wire(layout).into();
        if spec
            .output
            .as_ref()
            .is_some_and(|output| dtype_from_wire(output.dtype) != Some(Dtype::Uint8))
        {
            return Err(Failure::new(
                Kind::Invalid,
                "made-up batches have bytes only: dtype uint8",
            ));
        }
        let first_label = match wire::LabelBase::try_from(spec.label_base) {
            Ok(wire::LabelBase::One) => 1,
            Ok(_) => 0,
            Err(_) => {
                let text = "option label_base: expected 1 (zero), 2 (one) or 3 (stored)";
                return Err(Failure::new(Kind::Invalid, text));
            }
        };
        if spec.label_base() == wire::LabelBase::Unspecified {
            spec.set_label_base(wire::LabelBase::Zero);
        }
        spec.shuffle = Some(wire::Shuffle {
            name: "none".to_owned(),
            ..Default::default()
        });
        // Neither factor is above 2^30.
        let batch_bytes = spec.batch_size * (side * side * 3);
        if batch_bytes > request.max_batch_bytes {
            let text = format!(
                "a batch of {batch_bytes} bytes is more than the limit of {}",
                request.max_batch_bytes
            );
            return Err(Failure::new(Kind::Invalid, text));
        }
        let (n, side) = (spec.batch_size as usize, side as usize);
        Ok(Box::new(SyntheticBatches {
            records: self.records,
            batches,
            shape: match layout {
                Layout::Nhwc => [n, side, side, 3],
                Layout::Nchw => [n, 3, side, side],
            },
            layout,
            first_label,
            spec,
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
    spec: wire::StreamSpec,
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
    fn opened(&self) -> wire::Opened {
        wire::Opened {
            spec: Some(self.spec.clone()),
            records: self.records,
            samples: self.records,
            batches_per_epoch: self.batches.per_epoch(),
            batch_bytes: self.shape.iter().product::<usize>() as u64,
            label_base: self.first_label,
            ..wire::Opened::default()
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
        let places = || {
            self.batches
                .slots()
                .map(|i| self.batches.position(self.position, i))
        };
        let samples: Vec<u64> = places().map(|(sample, _)| sample).collect();
        let flags: Vec<u8> = places()
            .map(|(_, padding)| if padding { FLAG_PADDING } else { FLAG_SAMPLE })
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
        let (rank, world_size) = (self.spec.rank, self.spec.world_size);
        let batch = Batch {
            epoch: self.epoch,
            step: self.position / self.batches.global_size(),
            position: self.position,
            images,
            dtype: Dtype::Uint8,
            mixed: None,
            encoded: None,
            shape: self.shape,
            layout: self.layout,
            labels: samples
                .iter()
                .map(|&sample| Synthetic::label(sample) + self.first_label)
                .collect(),
            digest: digest::batch(self.position, rank, world_size, &samples, &flags),
            samples,
            flags,
        };
        self.position += self.batches.global_size();
        Ok(Some(batch))
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        Arc::clone(&self.cancelled) as Arc<dyn Monitor>
    }
}

#[derive(Default)]
struct Cancelled(AtomicBool);

impl Monitor for Cancelled {
    fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn stats(&self) -> wire::Stats {
        wire::Stats::default()
    }
}
