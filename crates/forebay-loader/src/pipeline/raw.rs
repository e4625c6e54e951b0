//! Images that stay encoded: from the records of a batch to one payload.
//!
//! How large a batch is shows when all its images are there. So each is copied out of its record, which can be let go
//! then, and whoever finishes the last one puts them together, in the order of the batch.

use std::sync::Arc;

use forebay_batch::FLAG_FAILED;
use forebay_batch::{Buffer, BufferPool, EncodedImages};
use forebay_image::{ImageError, Limits, probe};

use forebay_options::OnError;

use crate::error::{Error, Result};
use crate::options::Options;

/// An image as it is stored, and what its header says.
#[derive(Default)]
pub(super) struct RawImage {
    bytes: Vec<u8>,
    width: u32,
    height: u32,
}

impl RawImage {
    /// A copy of an image. Its header is read, and nothing else; of a format that is not known here others may know
    /// more.
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

    /// Bytes that it holds.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

/// A batch whose images are all there.
pub(super) struct Gather {
    pub(super) generation: u64,
    pub(super) batch: u64,
    /// Of each sample; empty for one that failed.
    pub(super) images: Vec<RawImage>,
    pub(super) flags: Vec<u8>,
}

/// The images of a batch, put together.
pub(super) struct Gathered {
    pub(super) payload: Buffer,
    pub(super) encoded: EncodedImages,
}

/// What stands in for sample `i`: itself, or where it failed the next good one, after the last one the first one.
pub(super) fn stand_in(flags: &[u8], i: usize) -> Option<usize> {
    let mut others = (i..flags.len()).chain(0..i);
    others.find(|&other| flags[other] & FLAG_FAILED == 0)
}

impl Gather {
    /// Puts the images together, in memory of `pool`.
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
