//! Assembles the encoded images and columns of a batch into one payload.
//!
//! The size of such a batch is known only when all its samples have been read. Until then images
//! stay in the records that were read, and the thread that finishes the last sample copies each image once. If memory
//! for records is short, images are copied out of their records earlier, so that the records can be
//! released.

use std::ops::Range;
use std::sync::Arc;

use forebay_batch::FLAG_FAILED;
use forebay_batch::{BatchColumn, Buffer, BufferPool, EncodedImages};
use forebay_image::{DecodeError, ImageError, Limits, probe};

use forebay_options::OnError;

use super::batch_buffer::BatchBuffer;
use super::extent::{Extent, ExtentBuffer};
use crate::columns::{Columns, SampleColumns};
use crate::error::{Error, Result};
use crate::options::Options;

/// An encoded image, with the width and height from its header.
#[derive(Default)]
pub(super) struct RawImage {
    bytes: Stored,
    width: u32,
    height: u32,
}

/// The bytes of an image.
enum Stored {
    Own(Vec<u8>),
    /// A part of a record. The extent is released after the image was copied.
    Held {
        extent: Arc<Extent>,
        sample: u64,
        at: Range<usize>,
    },
}

impl Default for Stored {
    fn default() -> Self {
        Stored::Own(Vec::new())
    }
}

impl RawImage {
    /// Creates the image `bytes`. If `bytes` is a part of `record` and `extent` is given, the extent is referenced;
    /// otherwise the image is copied. Only the header is parsed. An image of unknown format is passed on, since the
    /// receiver may support it.
    pub(super) fn new(
        bytes: &[u8],
        (sample, record): (u64, &[u8]),
        extent: Option<&Arc<Extent>>,
        limits: &Limits,
    ) -> Result<RawImage, ImageError> {
        let (width, height) = match probe(bytes, limits) {
            Ok(probe) => (probe.width, probe.height),
            Err(
                ImageError::UnknownFormat { .. }
                | ImageError::Image(DecodeError::Unsupported { .. }),
            ) if !bytes.is_empty() => (0, 0),
            Err(error) => return Err(error),
        };
        // A restored image is in its own memory, so it is not a part of the record.
        let held = extent.and_then(|extent| {
            Some(Stored::Held {
                extent: Arc::clone(extent),
                sample,
                at: part_of(record, bytes)?,
            })
        });
        let bytes = held.unwrap_or_else(|| Stored::Own(bytes.to_vec()));
        Ok(RawImage {
            bytes,
            width,
            height,
        })
    }

    /// Returns width and height; 0 if unknown.
    pub(super) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// Returns the size of the encoded image in bytes.
    pub(super) fn len(&self) -> u64 {
        match &self.bytes {
            Stored::Own(bytes) => bytes.len() as u64,
            Stored::Held { at, .. } => at.len() as u64,
        }
    }

    /// Returns the number of bytes in memory of its own, outside of extents.
    pub(super) fn own_len(&self) -> u64 {
        match &self.bytes {
            Stored::Own(bytes) => bytes.len() as u64,
            Stored::Held { .. } => 0,
        }
    }

    /// Releases the extents that images reference.
    pub(super) fn release(images: impl IntoIterator<Item = RawImage>, store: &mut ExtentBuffer) {
        for image in images {
            if let Stored::Held { extent, .. } = image.bytes {
                store.release(extent);
            }
        }
    }

    fn bytes(&self) -> Result<&[u8]> {
        match &self.bytes {
            Stored::Own(bytes) => Ok(bytes),
            Stored::Held { extent, sample, at } => {
                let record = extent.record(*sample).transpose()?;
                let bytes = record.and_then(|record| record.get(at.clone()));
                bytes.ok_or_else(unfinished)
            }
        }
    }
}

/// Returns the range of `part` within `whole`, if it lies inside.
fn part_of(whole: &[u8], part: &[u8]) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    let at = start..start.checked_add(part.len())?;
    (at.end <= whole.len()).then_some(at)
}

/// A batch whose samples are complete and whose payload is still to be assembled.
pub(super) struct Gather {
    pub(super) generation: u64,
    pub(super) batch: u64,
    /// The pixels, if images are decoded.
    pub(super) buffer: Option<Arc<BatchBuffer>>,
    /// The encoded image of each sample; empty if it failed, or if images are decoded.
    pub(super) images: Vec<RawImage>,
    /// The columns of each sample, if there are any; `None` if it failed.
    pub(super) columns: Vec<Option<SampleColumns>>,
    pub(super) flags: Vec<u8>,
}

/// The assembled payload of a batch that varies in size.
pub(super) struct Gathered {
    pub(super) payload: Buffer,
    pub(super) encoded: Option<EncodedImages>,
    pub(super) columns: Vec<BatchColumn>,
}

/// Returns the index of the sample that is used for sample `i`: `i` itself, or if it failed the next good one, wrapping
/// around at the end of the batch.
pub(super) fn stand_in(flags: &[u8], i: usize) -> Option<usize> {
    let mut others = (i..flags.len()).chain(0..i);
    others.find(|&other| flags[other] & FLAG_FAILED == 0)
}

impl Gather {
    /// Assembles the payload in memory of `pool`: images, followed by `columns`.
    pub(super) fn run(
        &mut self,
        options: &Options,
        columns: Option<&Columns>,
        pool: &BufferPool,
    ) -> Result<Gathered> {
        let source = |i| match options.on_error {
            OnError::Skip => stand_in(&self.flags, i).unwrap_or(i),
            _ => i,
        };
        let (mut encoded, mut pixels) = (None, options.pixel_bytes() as u64);
        if options.is_raw() {
            let images: Vec<&RawImage> = (0..self.flags.len())
                .map(|i| &self.images[source(i)])
                .collect();
            pixels = images.iter().map(|image| image.len()).sum();
            encoded = Some(images);
        }
        let too_large = |bytes: Option<usize>| match bytes {
            Some(bytes) if bytes as u64 <= options.raw.most => Ok(bytes),
            bytes => Err(options.too_large(bytes.map_or(u64::MAX, |bytes| bytes as u64))),
        };
        let pixels = too_large(usize::try_from(pixels).ok())?;
        let none = columns.map(Columns::none).unwrap_or_default();
        let samples: Vec<&SampleColumns> = match columns {
            Some(_) => (0..self.flags.len())
                .map(|i| self.columns[source(i)].as_ref().unwrap_or(&none))
                .collect(),
            None => Vec::new(),
        };
        let (described, bytes) = match columns {
            Some(columns) => match columns.place(&samples, pixels) {
                Some((described, bytes)) => (described, too_large(Some(bytes))?),
                None => (Vec::new(), too_large(None)?),
            },
            None => (Vec::new(), pixels),
        };
        let mut payload = match encoded {
            Some(_) => take(pool, bytes)?,
            None => enlarged(
                self.buffer.take().and_then(BatchBuffer::whole),
                pixels,
                bytes,
                pool,
            )?,
        };
        if let Some(images) = &encoded {
            let mut rest = &mut payload[..];
            for image in images {
                let bytes = image.bytes()?;
                let (place, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
                place.copy_from_slice(bytes);
                rest = after;
            }
        }
        Columns::write(&described, &samples, &mut payload, pixels);
        Ok(Gathered {
            payload,
            encoded: encoded.map(|images| describe(&images)),
            columns: described,
        })
    }
}

/// Returns the offsets and sizes of concatenated images.
fn describe(images: &[&RawImage]) -> EncodedImages {
    let mut offsets = vec![0];
    let mut total = 0u64;
    for image in images {
        total += image.len();
        offsets.push(total);
    }
    EncodedImages {
        offsets,
        widths: images.iter().map(|image| image.width).collect(),
        heights: images.iter().map(|image| image.height).collect(),
    }
}

fn take(pool: &BufferPool, bytes: usize) -> Result<Buffer> {
    pool.try_take(bytes).map_err(|error| Error::System {
        what: "allocate a batch",
        source: Arc::new(error),
    })
}

/// Returns a buffer of `bytes` that begins with the `pixels` bytes of `buffer`. Usually `buffer` itself
/// is large enough for the columns; otherwise its pixels are copied.
fn enlarged(
    buffer: Option<Buffer>,
    pixels: usize,
    bytes: usize,
    pool: &BufferPool,
) -> Result<Buffer> {
    let mut buffer = buffer.ok_or_else(unfinished)?;
    if buffer.len() >= bytes {
        buffer.truncate(bytes);
        return Ok(buffer);
    }
    let mut larger = take(pool, bytes)?;
    larger[..pixels].copy_from_slice(&buffer[..pixels]);
    Ok(larger)
}

/// Returns the error for a buffer that a sample still writes to.
pub(super) fn unfinished() -> Error {
    Error::System {
        what: "hand out a batch",
        source: Arc::new(std::io::Error::other("a sample is still being written")),
    }
}
