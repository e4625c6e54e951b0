//! Encoded images: from the records of a batch to one payload.
//!
//! The size of a batch is known only when all its images have been read. So each image is copied
//! out of its record, which can then be released, and the thread that finishes the last one
//! concatenates them in the order of the batch.

use std::sync::Arc;

use forebay_batch::FLAG_FAILED;
use forebay_batch::{Buffer, BufferPool, EncodedImages};
use forebay_image::{ImageError, Limits, probe};

use forebay_options::OnError;

use crate::error::{Error, Result};
use crate::options::Options;

/// An image as stored, with the size in its header.
#[derive(Default)]
pub(super) struct RawImage {
    bytes: Vec<u8>,
    width: u32,
    height: u32,
}

impl RawImage {
    /// Copies an image. Only its header is read; an unknown format is passed on, since the receiver
    /// may support it.
    pub(super) fn new(bytes: &[u8], limits: &Limits) -> Result<RawImage, ImageError> {
        let (width, height) = match probe(bytes, limits) {
            Ok(probe) => (probe.width, probe.height),
            Err(ImageError::UnknownFormat { .. } | ImageError::Unsupported { .. })
                if !bytes.is_empty() =>
            {
                (0, 0)
            }
            Err(error) => return Err(error),
        };
        Ok(RawImage {
            bytes: bytes.to_vec(),
            width,
            height,
        })
    }

    /// Returns its size in bytes.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// A batch whose images are complete.
pub(super) struct Gather {
    pub(super) generation: u64,
    pub(super) batch: u64,
    /// The image of each sample; empty if it failed.
    pub(super) images: Vec<RawImage>,
    pub(super) flags: Vec<u8>,
}

/// The concatenated images of a batch.
pub(super) struct Gathered {
    pub(super) payload: Buffer,
    pub(super) encoded: EncodedImages,
}

/// Returns the replacement of sample `i`: itself, or if it failed the next good one, or the first
/// after the last.
pub(super) fn stand_in(flags: &[u8], i: usize) -> Option<usize> {
    let mut others = (i..flags.len()).chain(0..i);
    others.find(|&other| flags[other] & FLAG_FAILED == 0)
}

impl Gather {
    /// Concatenates the images in memory of `pool`.
    pub(super) fn run(&self, options: &Options, pool: &BufferPool) -> Result<Gathered> {
        let images: Vec<&RawImage> = (0..self.images.len())
            .map(|i| match options.on_error {
                OnError::Skip => &self.images[stand_in(&self.flags, i).unwrap_or(i)],
                _ => &self.images[i],
            })
            .collect();
        let mut offsets = vec![0];
        let mut total = 0u64;
        for image in &images {
            total += image.len();
            offsets.push(total);
        }
        if total > options.raw.most {
            return Err(options.too_large(total));
        }
        let taken = usize::try_from(total)
            .map_err(|_| std::io::ErrorKind::OutOfMemory.into())
            .and_then(|len| pool.try_take(len));
        let mut payload = taken.map_err(|error| Error::System {
            what: "allocate a batch",
            source: Arc::new(error),
        })?;
        let mut rest = &mut payload[..];
        for image in &images {
            let (place, after) = std::mem::take(&mut rest).split_at_mut(image.bytes.len());
            place.copy_from_slice(&image.bytes);
            rest = after;
        }
        Ok(Gathered {
            payload,
            encoded: EncodedImages {
                offsets,
                widths: images.iter().map(|image| image.width).collect(),
                heights: images.iter().map(|image| image.height).collect(),
            },
        })
    }
}
