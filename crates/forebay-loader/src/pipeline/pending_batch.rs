//! A batch in progress: its buffer, divided into slots, and what is known of its samples.

use std::sync::Arc;

use forebay_batch::{FLAG_FAILED, FLAG_PADDING, FLAG_SAMPLE};

use super::batch_buffer::{BatchBuffer, Slot};
use super::extent::ExtentBuffer;
use super::finished_batch::FinishedBatch;
use super::raw::{self, Gather, Gathered, RawImage};
use crate::columns::SampleColumns;
use crate::error::Result;

/// A decoded sample.
pub(super) struct Done {
    pub(super) label: i64,
    /// The image, if images stay encoded.
    pub(super) image: Option<RawImage>,
    /// The columns, if there are any.
    pub(super) columns: Option<SampleColumns>,
}

/// A batch in progress.
pub(super) struct PendingBatch {
    epoch: u64,
    start: u64,
    /// The pixels, until they are part of the payload.
    buffer: Option<Arc<BatchBuffer>>,
    slots: std::vec::IntoIter<Slot>,
    labels: Vec<i64>,
    samples: Vec<u64>,
    flags: Vec<u8>,
    /// Samples that are not done.
    left: usize,
    varying: Varying,
}

/// The part of a batch that varies in size: encoded images and columns.
struct Varying {
    /// Whether it is still to be concatenated.
    is_due: bool,
    /// Encoded images, until they are concatenated; empty if images are decoded.
    images: Vec<RawImage>,
    /// Columns of each sample, until they are concatenated; `None` for a failed sample.
    columns: Vec<Option<SampleColumns>>,
    gathered: Option<Gathered>,
    /// Size in bytes.
    bytes: u64,
    /// The part of `bytes` that is not in extents.
    own_bytes: u64,
}

impl PendingBatch {
    /// Creates a batch that begins at `start` of `epoch`. With `is_raw` it gets encoded images.
    pub(super) fn new(
        (epoch, start): (u64, u64),
        (buffer, slots): (Arc<BatchBuffer>, Vec<Slot>),
        is_raw: bool,
        has_columns: bool,
    ) -> Self {
        let varying = |has: bool| 0..if has { slots.len() } else { 0 };
        PendingBatch {
            epoch,
            start,
            buffer: Some(buffer),
            labels: vec![-1; slots.len()],
            samples: Vec::with_capacity(slots.len()),
            flags: Vec::with_capacity(slots.len()),
            left: slots.len(),
            varying: Varying {
                is_due: is_raw || has_columns,
                images: varying(is_raw).map(|_| RawImage::default()).collect(),
                columns: varying(has_columns).map(|_| None).collect(),
                gathered: None,
                bytes: 0,
                own_bytes: 0,
            },
            slots: slots.into_iter(),
        }
    }

    /// Gives the next slot to a sample, and returns its index; `None` if all are taken.
    pub(super) fn place(&mut self, sample: u64, padding: bool) -> Option<(usize, Slot)> {
        let slot = self.slots.next()?;
        self.samples.push(sample);
        self.flags.push(match padding {
            true => FLAG_PADDING,
            false => FLAG_SAMPLE,
        });
        Some((self.samples.len() - 1, slot))
    }

    /// Records that a sample is done; `None` if it failed. The caller has dropped its slot before.
    pub(super) fn finish(&mut self, index: usize, done: Option<Done>) {
        self.left -= 1;
        let Some(done) = done else {
            self.flags[index] |= FLAG_FAILED;
            return;
        };
        self.labels[index] = done.label;
        let varying = &mut self.varying;
        if let Some(image) = done.image {
            varying.bytes += image.len();
            varying.own_bytes += image.own_len();
            varying.images[index] = image;
        }
        if let Some(columns) = done.columns {
            varying.bytes += columns.len();
            varying.own_bytes += columns.len();
            varying.columns[index] = Some(columns);
        }
    }

    /// Returns the samples to concatenate, if all are done and the batch varies in size.
    pub(super) fn gather(&mut self, generation: u64, batch: u64) -> Option<Gather> {
        (self.left == 0 && self.varying.is_due).then(|| {
            // Bytes outside of extents now exist twice: in the samples and in the payload.
            self.varying.bytes += self.varying.own_bytes;
            Gather {
                generation,
                batch,
                buffer: self.buffer.take(),
                images: std::mem::take(&mut self.varying.images),
                columns: std::mem::take(&mut self.varying.columns),
                flags: self.flags.clone(),
            }
        })
    }

    /// Stores the payload, of which `pixel_bytes` do not vary in size. The caller has dropped the samples before.
    pub(super) fn finish_gathering(
        &mut self,
        payload: Result<Gathered>,
        pixel_bytes: u64,
    ) -> Result<()> {
        self.varying.is_due = false;
        let payload = payload?;
        self.varying.bytes = (payload.payload.len() as u64).saturating_sub(pixel_bytes);
        self.varying.gathered = Some(payload);
        Ok(())
    }

    /// Returns whether it is complete.
    pub(super) fn is_whole(&self) -> bool {
        self.left == 0 && !self.varying.is_due
    }

    /// Returns the size of encoded images and columns in bytes, as far as they are known: at least `expected` until all
    /// samples are done.
    pub(super) fn varying_bytes(&self, expected: u64) -> u64 {
        match self.left {
            0 => self.varying.bytes,
            _ => self.varying.bytes.max(expected),
        }
    }

    /// Returns the batch. All slots have to be dropped.
    pub(super) fn into_finished(self) -> Result<FinishedBatch> {
        let gathered = match self.varying.gathered {
            Some(gathered) => gathered,
            None => Gathered {
                payload: self
                    .buffer
                    .and_then(BatchBuffer::whole)
                    .ok_or_else(raw::unfinished)?,
                encoded: None,
                columns: Vec::new(),
            },
        };
        Ok(FinishedBatch {
            epoch: self.epoch,
            start: self.start,
            payload: gathered.payload,
            encoded: gathered.encoded.map(Box::new),
            columns: gathered.columns,
            labels: self.labels,
            mixed: None,
            samples: self.samples,
            flags: self.flags,
        })
    }

    /// Discards the batch, and releases the extents that its images reference.
    pub(super) fn discard(self, store: &mut ExtentBuffer) {
        RawImage::release(self.varying.images, store);
    }

    /// Describes which samples are missing, for the message of a timeout.
    pub(super) fn missing(&self) -> String {
        format!(
            "{} of {} samples are missing in the batch at position {} of epoch {}",
            self.left,
            self.labels.len(),
            self.start,
            self.epoch
        )
    }
}
