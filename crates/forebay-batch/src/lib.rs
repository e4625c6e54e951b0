//! A batch of samples: made by the loader, sent by `forebay-wire`, received by a trainer.
//!
//! This crate owns the structure of a batch, its pooled memory ([`BufferPool`], optionally shared
//! between processes) and the [`digest`] over its samples. It does not choose, decode or send
//! samples.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod column;
pub mod digest;
mod pool;
pub mod positions;
mod registry;
mod shared;
mod slots;
pub mod splitmix;

pub use column::{BatchColumn, ColumnArray, ColumnKind, Element};
pub use pool::{Buffer, BufferPool, Lender, PoolStats};
pub use registry::{DeviceDriver, HostRegistry};
pub use shared::SharedMemory;

/// Flag of a normal sample.
pub const FLAG_SAMPLE: u8 = 0;
/// Flag of padding: a repeated sample that fills the last batch of an epoch.
pub const FLAG_PADDING: u8 = 1;
/// Label of padding, which losses ignore by default.
pub const PADDING_LABEL: i64 = -100;
/// Flag of a sample that could not be read or decoded and was replaced. May be combined with
/// [`FLAG_PADDING`].
pub const FLAG_FAILED: u8 = 2;

/// The order of the axes of a batch's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Batch, height, width, channel: interleaved RGB, as decoders return it.
    #[default]
    Nhwc,
    /// Batch, channel, height, width: planar, as PyTorch models expect it.
    Nchw,
}

/// The data type of pixels, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Unsigned 8-bit integers.
    #[default]
    Uint8,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// bfloat16: the upper half of a binary32.
    Bfloat16,
}

impl Dtype {
    /// Bytes per element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::Uint8 => 1,
            Dtype::Float32 => 4,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
        }
    }

    /// Name of the type, as in NumPy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Uint8 => "uint8",
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
        }
    }
}

/// The mixing partners of samples, for MixUp and CutMix.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mixed {
    /// Label of each sample's partner; the sample's own if it was not mixed.
    pub labels: Vec<i64>,
    /// Weight of each sample, 0 to 1; the rest is its partner's.
    pub lam: Vec<f32>,
}

/// Location of encoded images in the payload, with the sizes in their headers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EncodedImages {
    /// Start of each image in bytes, followed by the end of the last one: one more than there are
    /// samples.
    pub offsets: Vec<u64>,
    /// Width of each image as stored, in pixels; 0 if unknown.
    pub widths: Vec<u32>,
    /// Height of each image as stored, in pixels; 0 if unknown.
    pub heights: Vec<u32>,
}

impl EncodedImages {
    /// Returns the byte range of sample `i` in the payload.
    #[must_use]
    pub fn range(&self, i: usize) -> Option<std::ops::Range<usize>> {
        let at = |i: usize| usize::try_from(*self.offsets.get(i)?).ok();
        Some(at(i)?..at(i.checked_add(1)?)?)
    }

    /// Checks all fields against `samples` samples in `bytes` bytes.
    fn check(&self, samples: usize, bytes: usize) -> Result<(), InconsistentBatch> {
        let ends = samples.saturating_add(1);
        // Counts the offsets before the first invalid one.
        let mut last = 0;
        let ascending = self.offsets.iter().enumerate().take_while(|&(i, &offset)| {
            let first = i > 0 || offset == 0;
            let end = i < samples || offset == bytes as u64;
            let good = first && end && (last..=bytes as u64).contains(&offset);
            last = offset;
            good
        });
        for (what, expected, found) in [
            ("offsets", ends, self.offsets.len()),
            (
                "ascending offsets from 0 to the payload's end",
                ends,
                ascending.count(),
            ),
            ("widths", samples, self.widths.len()),
            ("heights", samples, self.heights.len()),
        ] {
            if expected != found {
                return Err(InconsistentBatch {
                    what: what.into(),
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }
}

/// Samples, decoded or encoded, in the order of the plan, with their position in the epoch.
///
/// `shape`, `labels`, `samples`, `flags` and `columns` have the same number of samples, and
/// `payload` holds exactly the product of `shape` elements of type `dtype`, or the bytes that
/// `encoded` describes, and then the arrays of `columns`; see [`Batch::check`].
pub struct Batch {
    /// Number of the epoch, from 0.
    pub epoch: u64,
    /// Number of this batch in its epoch, from 0; the same on every rank.
    pub step: u64,
    /// Position in the epoch at which this *global* batch begins: the number of samples that all
    /// ranks together received before it. To resume after this batch, add the size of the global
    /// batch.
    pub position: u64,
    /// Contiguous pixels, with axes by `shape` and `layout` and elements of `dtype`; or, with
    /// `encoded`, the concatenated bytes of encoded images. The arrays of `columns` follow.
    pub payload: Buffer,
    /// Location of encoded images; `None` for pixels.
    pub encoded: Option<Box<EncodedImages>>,
    /// Type of the pixels.
    pub dtype: Dtype,
    /// Number of samples, then height, width, channels or channels, height, width by `layout`;
    /// zeros after the number of samples if images are encoded.
    pub shape: [usize; 4],
    /// Order of the axes in `shape`.
    pub layout: Layout,
    /// Label of each sample, counted from the label base of the stream; -1 for a record without
    /// one, [`PADDING_LABEL`] for padding.
    pub labels: Vec<i64>,
    /// Mixing partners of the samples, if mixed.
    pub mixed: Option<Box<Mixed>>,
    /// Index of each sample in its split.
    pub samples: Vec<u64>,
    /// [`FLAG_SAMPLE`] for each sample, or the sum of [`FLAG_PADDING`] and [`FLAG_FAILED`] as they
    /// apply.
    pub flags: Vec<u8>,
    /// Further columns of the records, if any were requested.
    pub columns: Vec<BatchColumn>,
    /// [`digest::batch`] of the samples and their positions.
    pub digest: u64,
}

impl Batch {
    /// Returns the number of samples, padding included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape[0]
    }

    /// Returns whether the batch has no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the pixels of sample `i` in the batch's layout, or its encoded bytes.
    #[must_use]
    pub fn image(&self, i: usize) -> Option<&[u8]> {
        if let Some(encoded) = &self.encoded {
            return self.payload.get(encoded.range(i)?);
        }
        let bytes = self.shape[1..].iter().product::<usize>() * self.dtype.bytes();
        let start = i.checked_mul(bytes).filter(|_| i < self.len())?;
        self.payload.get(start..start.checked_add(bytes)?)
    }

    /// Returns the pixels or the encoded images of all samples: the payload without columns.
    #[must_use]
    pub fn images(&self) -> &[u8] {
        &self.payload[..self.image_bytes().min(self.payload.len())]
    }

    /// Returns the size of the images in bytes; `usize::MAX` on overflow.
    fn image_bytes(&self) -> usize {
        let product = |product: usize, &side: &usize| product.checked_mul(side);
        let bytes = match &self.encoded {
            Some(encoded) => encoded
                .offsets
                .last()
                .map_or(Some(0), |&end| end.try_into().ok()),
            None => self.shape.iter().try_fold(self.dtype.bytes(), product),
        };
        bytes.unwrap_or(usize::MAX)
    }

    /// Removes the padding samples at the end. The payload does not shrink, so it is longer than
    /// [`Batch::check`] expects.
    pub fn trim_padding(&mut self) {
        let is_padding = |flag: &&u8| **flag & FLAG_PADDING != 0;
        let padding = self.flags.iter().rev().take_while(is_padding).count();
        if padding == 0 {
            return;
        }
        let samples = self.flags.len() - padding;
        self.shape[0] = samples;
        self.flags.truncate(samples);
        self.labels.truncate(samples);
        self.samples.truncate(samples);
        if let Some(mixed) = &mut self.mixed {
            mixed.labels.truncate(samples);
            mixed.lam.truncate(samples);
        }
        if let Some(encoded) = &mut self.encoded {
            encoded.offsets.truncate(samples + 1);
            encoded.widths.truncate(samples);
            encoded.heights.truncate(samples);
        }
        for column in &mut self.columns {
            column.truncate(samples);
        }
    }

    /// Returns the column with this name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&BatchColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns the bytes of an array of one of the columns.
    #[must_use]
    pub fn array(&self, array: &ColumnArray) -> Option<&[u8]> {
        self.payload
            .get(array.start..array.start.checked_add(array.bytes()?)?)
    }

    /// Checks that all fields agree about the number of samples. If one does not, returns it with
    /// the expected and the actual size.
    pub fn check(&self) -> Result<(), InconsistentBatch> {
        let samples = self.shape[0];
        let mut images = self.image_bytes();
        if let Some(encoded) = &self.encoded {
            if self.columns.is_empty() {
                images = self.payload.len();
            }
            encoded.check(samples, images)?;
        }
        let bytes = match self.columns.is_empty() {
            true => images,
            false => column::check(&self.columns, samples, images)?,
        };
        let (partners, shares) = match &self.mixed {
            Some(mixed) => (mixed.labels.len(), mixed.lam.len()),
            None => (samples, samples),
        };
        for (what, expected, found) in [
            ("bytes of payload", bytes, self.payload.len()),
            ("labels", samples, self.labels.len()),
            ("sample numbers", samples, self.samples.len()),
            ("flags", samples, self.flags.len()),
            ("labels of partners", samples, partners),
            ("shares", samples, shares),
        ] {
            if expected != found {
                return Err(InconsistentBatch {
                    what: what.into(),
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("epoch", &self.epoch)
            .field("step", &self.step)
            .field("position", &self.position)
            .field("shape", &self.shape)
            .field("dtype", &self.dtype)
            .field("layout", &self.layout)
            .field("digest", &format_args!("{:016x}", self.digest))
            .finish_non_exhaustive()
    }
}

/// A batch whose fields disagree about its size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a batch with {found} {what} where its shape asks for {expected}")]
pub struct InconsistentBatch {
    /// The field that is too short or too long.
    pub what: Cow<'static, str>,
    /// The size that the shape implies.
    pub expected: usize,
    /// The actual size.
    pub found: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(pool: &BufferPool) -> Batch {
        Batch {
            epoch: 0,
            step: 0,
            position: 0,
            payload: pool.take(2 * 4 * 4 * 3),
            encoded: None,
            dtype: Dtype::Uint8,
            shape: [2, 4, 4, 3],
            layout: Layout::Nhwc,
            labels: vec![1, 2],
            mixed: None,
            samples: vec![10, 11],
            flags: vec![0, 0],
            columns: Vec::new(),
            digest: 0,
        }
    }

    #[test]
    fn parts_must_agree() {
        let pool = BufferPool::new(1 << 20);
        let mut b = batch(&pool);
        b.check().unwrap();
        assert_eq!(b.image(1).unwrap().len(), 48);
        assert!(b.image(2).is_none());
        b.dtype = Dtype::Float16;
        assert_eq!(b.check().unwrap_err().expected, 192);
        b.payload = pool.take(192);
        b.check().unwrap();
        assert_eq!(b.image(1).unwrap().len(), 96);
        b.mixed = Some(Box::new(Mixed {
            labels: vec![2, 1],
            lam: vec![0.5],
        }));
        assert_eq!(b.check().unwrap_err().what, "shares");
        b.mixed = None;
        b.labels.pop();
        assert_eq!(b.check().unwrap_err().what, "labels");
        b.shape = [usize::MAX, 2, 2, 2];
        assert_eq!(b.check().unwrap_err().what, "bytes of payload");
    }

    #[test]
    fn encoded_images_lie_one_after_the_other() {
        let pool = BufferPool::new(1 << 20);
        let with = |offsets: &[u64], sizes: usize| {
            let mut b = batch(&pool);
            b.payload = pool.take(9);
            b.payload.copy_from_slice(b"123456789");
            b.shape = [2, 0, 0, 0];
            b.encoded = Some(Box::new(EncodedImages {
                offsets: offsets.to_vec(),
                widths: vec![5; sizes],
                heights: vec![6; 2],
            }));
            b
        };
        let good = with(&[0, 4, 9], 2);
        good.check().unwrap();
        assert_eq!(good.image(0), Some(&b"1234"[..]));
        assert_eq!(good.image(1), Some(&b"56789"[..]));
        assert_eq!(good.image(2), None);
        assert_eq!(good.image(usize::MAX), None);
        with(&[0, 0, 9], 2).check().unwrap();
        for bad in [
            &[1, 4, 9],
            &[0, 4, 8],
            &[0, 4, 10],
            &[0, 10, 9],
            &[0, u64::MAX, 9],
        ] {
            let what = with(bad, 2).check().unwrap_err().what;
            assert!(what.starts_with("ascending"), "{bad:?}: {what}");
        }
        for few in [&[][..], &[0], &[0, 9], &[0, 1, 2, 9]] {
            assert_eq!(with(few, 2).check().unwrap_err().what, "offsets");
        }
        assert_eq!(with(&[0, 4, 9], 1).check().unwrap_err().what, "widths");
    }
}
