//! A batch of samples: the loader makes it, the wire carries it, a trainer receives it.
//!
//! Owns the shape of a batch, its pooled memory ([`BufferPool`], optionally shared between processes) and the
//! [`digest`] over its samples. The loader chooses and decodes samples; `forebay-wire` sends batches.

use std::fmt;

use serde::{Deserialize, Serialize};

pub mod digest;
mod pool;
mod shared;
mod slots;

pub use pool::{Buffer, BufferPool, Lender, PoolStats};
pub use shared::SharedMemory;

/// Flag of an ordinary sample.
pub const FLAG_SAMPLE: u8 = 0;
/// Flag of padding: a repeated sample that fills the last batch of an epoch.
pub const FLAG_PADDING: u8 = 1;
/// Flag of a sample that could not be read or decoded, and was replaced. Added to [`FLAG_PADDING`] where both are so.
pub const FLAG_FAILED: u8 = 2;

/// The order of the axes of a batch's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Batch, height, width, channel: interleaved RGB, as decoders give it.
    #[default]
    Nhwc,
    /// Batch, channel, height, width: planes, as torch models take it.
    Nchw,
}

/// The type of the numbers of a batch, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Bytes.
    #[default]
    Uint8,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// The upper half of a binary32.
    Bfloat16,
}

impl Dtype {
    /// Bytes of a number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Dtype::Uint8 => 1,
            Dtype::Float32 => 4,
            Dtype::Float16 | Dtype::Bfloat16 => 2,
        }
    }

    /// Its name, as numpy has it.
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

/// The partners of mixed samples.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mixed {
    /// Label of each sample's partner; its own where it was not mixed.
    pub labels: Vec<i64>,
    /// Share of each sample itself, 0 to 1; the rest is its partner's.
    pub lam: Vec<f32>,
}

/// The places of encoded images in the payload, and the sizes in their headers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EncodedImages {
    /// Byte at which each image begins, then the end of the last one: one more than there are samples.
    pub offsets: Vec<u64>,
    /// Columns of each image as stored, in pixels; 0 where that is not known.
    pub widths: Vec<u32>,
    /// Rows of each image as stored, in pixels; 0 where that is not known.
    pub heights: Vec<u32>,
}

impl EncodedImages {
    /// The bytes of sample `i` in the payload.
    #[must_use]
    pub fn range(&self, i: usize) -> Option<std::ops::Range<usize>> {
        let at = |i: usize| usize::try_from(*self.offsets.get(i)?).ok();
        Some(at(i)?..at(i.checked_add(1)?)?)
    }

    /// Whether all parts speak of `samples` samples in `bytes` bytes.
    fn check(&self, samples: usize, bytes: usize) -> Result<(), Uneven> {
        let ends = samples.saturating_add(1);
        // Those before the first one that is not where it could be.
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
                return Err(Uneven {
                    what,
                    expected,
                    found,
                });
            }
        }
        Ok(())
    }
}

/// Samples, decoded or as stored, in the order of the plan, and where in the epoch they are.
///
/// `shape`, `labels`, `samples` and `flags` all speak of the same number of
/// samples, and `images` holds exactly the product of `shape` numbers of type
/// `dtype`, or what `encoded` says; see [`Batch::check`].
pub struct Batch {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Number of this batch within its epoch, from 0; the same on every rank.
    pub step: u64,
    /// Position in the epoch of the first sample of this *global* batch: how
    /// many samples all ranks together were given before it. To resume after
    /// this batch, add the size of the global batch.
    pub position: u64,
    /// Pixels, without gaps, axes as `shape` and `layout` say, numbers as `dtype` says; or the bytes of encoded
    /// images, one after the other, where `encoded` says.
    pub images: Buffer,
    /// The places of encoded images; `None` for pixels.
    pub encoded: Option<Box<EncodedImages>>,
    /// The type of the numbers in `images`.
    pub dtype: Dtype,
    /// Samples, then height, width, channels or channels, height, width; zeros after the samples where images are
    /// encoded.
    pub shape: [usize; 4],
    /// Order of the axes in `shape`.
    pub layout: Layout,
    /// Label of each sample, counted from the label base of the stream; -1 for a record without one.
    pub labels: Vec<i64>,
    /// The partners of the samples, if they were mixed.
    pub mixed: Option<Box<Mixed>>,
    /// Index of each sample in its split.
    pub samples: Vec<u64>,
    /// For each sample [`FLAG_SAMPLE`], or the sum of [`FLAG_PADDING`] and [`FLAG_FAILED`], as far as they hold.
    pub flags: Vec<u8>,
    /// [`digest::batch`] of the samples and their positions.
    pub digest: u64,
}

impl Batch {
    /// Number of samples, padding included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape[0]
    }

    /// Whether the batch has no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pixels of sample `i`, in the batch's layout, or its encoded bytes.
    #[must_use]
    pub fn image(&self, i: usize) -> Option<&[u8]> {
        if let Some(encoded) = &self.encoded {
            return self.images.get(encoded.range(i)?);
        }
        let bytes = self.shape[1..].iter().product::<usize>() * self.dtype.bytes();
        let start = i.checked_mul(bytes)?;
        self.images.get(start..start.checked_add(bytes)?)
    }

    /// Whether all parts speak of the same number of samples; if not, which
    /// part does not, with what was expected and found.
    pub fn check(&self) -> Result<(), Uneven> {
        let samples = self.shape[0];
        let bytes = match &self.encoded {
            Some(encoded) => {
                encoded.check(samples, self.images.len())?;
                self.images.len()
            }
            None => self
                .shape
                .iter()
                .try_fold(self.dtype.bytes(), |product, &side| {
                    product.checked_mul(side)
                })
                .unwrap_or(usize::MAX),
        };
        let (partners, shares) = match &self.mixed {
            Some(mixed) => (mixed.labels.len(), mixed.lam.len()),
            None => (samples, samples),
        };
        for (what, expected, found) in [
            ("bytes of pixels", bytes, self.images.len()),
            ("labels", samples, self.labels.len()),
            ("sample numbers", samples, self.samples.len()),
            ("flags", samples, self.flags.len()),
            ("labels of partners", samples, partners),
            ("shares", samples, shares),
        ] {
            if expected != found {
                return Err(Uneven {
                    what,
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

/// A batch whose parts disagree about its size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a batch with {found} {what} where its shape asks for {expected}")]
pub struct Uneven {
    /// The part that is too short or too long.
    pub what: &'static str,
    /// The number that the shape implies.
    pub expected: usize,
    /// The number found.
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
            images: pool.take(2 * 4 * 4 * 3),
            encoded: None,
            dtype: Dtype::Uint8,
            shape: [2, 4, 4, 3],
            layout: Layout::Nhwc,
            labels: vec![1, 2],
            mixed: None,
            samples: vec![10, 11],
            flags: vec![0, 0],
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
        b.images = pool.take(192);
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
        assert_eq!(b.check().unwrap_err().what, "bytes of pixels");
    }

    #[test]
    fn encoded_images_lie_one_after_the_other() {
        let pool = BufferPool::new(1 << 20);
        let with = |offsets: &[u64], sizes: usize| {
            let mut b = batch(&pool);
            b.images = pool.take(9);
            b.images.copy_from_slice(b"123456789");
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
