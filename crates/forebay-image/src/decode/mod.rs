//! Decoders: one file each, one line each in [`CODECS`].
//!
//! A decoder turns a region of an image into RGB. Nothing here trusts it: limits are checked on our own
//! reading of the header first, a panic inside it is caught and becomes an error for that image alone, and
//! what it delivers is checked for size.

mod baseline;
mod jpeg_turbo;
mod picture;
mod png;
mod webp;

pub use baseline::{SeekDensity, SeekPointBuilder, build_seek_points};
pub(crate) use picture::Picture as Opened;

use crate::error::{ImageError, Result};
use crate::limits::Limits;
use crate::options::DecodeOptions;
use crate::probe::{Format, Probe};
use crate::resize::Resizer;
use crate::rows::Rows;
use crate::transform::{Converter, Layout, Picture};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A rectangle of pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Left column.
    pub x: u32,
    /// Top row.
    pub y: u32,
    /// Columns, at least one.
    pub width: u32,
    /// Rows, at least one.
    pub height: u32,
}

impl Region {
    /// The whole of an image.
    pub const fn whole(width: u32, height: u32) -> Self {
        Self {
            x: 0,
            y: 0,
            width,
            height,
        }
    }

    fn check(&self, image_width: u32, image_height: u32) -> Result<()> {
        let inside = |start: u32, length: u32, limit: u32| {
            length > 0 && start.checked_add(length).is_some_and(|end| end <= limit)
        };
        if inside(self.x, self.width, image_width) && inside(self.y, self.height, image_height) {
            return Ok(());
        }
        let Self {
            x,
            y,
            width,
            height,
        } = *self;
        Err(ImageError::Region {
            x,
            y,
            width,
            height,
            image_width,
            image_height,
        })
    }
}

/// An RGB image in memory: `height` rows of `width` pixels of three bytes, no padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// `3 * width * height` bytes.
    pub data: Vec<u8>,
}

/// Where a decoder leaves the pixels of a region: it may deliver more columns and rows than asked for.
#[derive(Debug, Default)]
pub(crate) struct Canvas {
    /// RGB rows.
    pub(crate) data: Vec<u8>,
    /// Bytes from a row to the next.
    pub(crate) stride: usize,
    /// Offset of the region's first pixel.
    pub(crate) start: usize,
    /// Room for turned pictures.
    turned: Vec<u8>,
}

impl Canvas {
    /// Bytes that are readable past the last row, so that SIMD may load whole vectors.
    const TAIL: usize = 64;

    /// Makes room for rows of exactly a region's width; what is in it is left over.
    fn reset(&mut self, width: usize, height: usize) {
        self.stride = width * 3;
        self.start = 0;
        let size = self.stride * height + Self::TAIL;
        // Never shorter: growing again would write zeros over what is written over anyway.
        if self.data.len() < size {
            self.data.resize(size, 0);
        }
    }

    /// Checks that the region is really there: decoders are not trusted.
    fn holds(&self, region: &Region) -> bool {
        let row = region.width as usize * 3;
        let last = (region.height as usize - 1)
            .checked_mul(self.stride)
            .and_then(|n| n.checked_add(self.start))
            .and_then(|n| n.checked_add(row));
        row <= self.stride && last.is_some_and(|end| end <= self.data.len())
    }

    /// The region alone.
    fn cut(&self, region: &Region) -> RgbImage {
        let row = region.width as usize * 3;
        let mut data = Vec::with_capacity(row * region.height as usize);
        for line in self
            .rows_from()
            .chunks(self.stride)
            .take(region.height as usize)
        {
            data.extend_from_slice(&line[..row]);
        }
        RgbImage {
            width: region.width,
            height: region.height,
            data,
        }
    }

    /// From the region's first pixel on: its rows, and whatever lies beside them.
    pub(crate) fn rows_from(&self) -> &[u8] {
        &self.data[self.start..]
    }
}

/// A decoder of one format.
struct Codec {
    format: Format,
    decode: fn(&Job<'_>, &mut Scratch, &mut Canvas) -> Result<Outcome>,
    stream: Option<Stream>,
}

/// Decodes row by row. [`Outcome::Declined`] may come after some of the rows.
type Stream = fn(&Job<'_>, &mut Scratch, &mut dyn Rows) -> Result<Outcome>;

/// Whether a decoder took an image on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The region is on the canvas.
    Done,
    /// Not one of its kind: the next decoder of the format is asked.
    Declined,
}

/// What decoders keep from image to image.
#[derive(Debug, Default)]
struct Scratch {
    baseline: baseline::Baseline,
}

/// What a decoder is asked for; `region` is inside the image and the image is within the limits.
struct Job<'a> {
    bytes: &'a [u8],
    probe: &'a Probe,
    /// Width and height are divided by this: 1, or for JPEG 2, 4 or 8.
    scale: u32,
    /// Of the picture at that scale.
    region: Region,
    limits: &'a Limits,
    /// The image's seek points, of which nothing is known.
    seek_points: Option<&'a [u8]>,
}

/// Every decoder; those of one format in the order in which they are asked. Only the first of a format may stream.
const CODECS: &[Codec] = &[
    Codec {
        format: Format::Jpeg,
        decode: baseline::decode,
        stream: Some(baseline::stream),
    },
    Codec {
        format: Format::Jpeg,
        decode: jpeg_turbo::decode,
        stream: None,
    },
    Codec {
        format: Format::Png,
        decode: png::decode,
        stream: None,
    },
    Codec {
        format: Format::WebP,
        decode: webp::decode,
        stream: None,
    },
];

/// Decodes images to RGB. One per thread: it keeps its memory from image to image.
///
/// What becomes of the colours, following `tf.io.decode_image(channels=3)` where that is defined:
/// grey is repeated in the three channels; alpha is dropped, not blended; palettes are looked up; 16-bit
/// channels keep their high byte; CMYK and YCCK become `(255 - ink) * (255 - black) / 255`, where files
/// with Adobe's marker store `255 - ink`. ICC profiles are ignored, and EXIF orientation too
/// unless [`DecodeOptions::exif`] is set.
#[derive(Debug, Default)]
pub struct Decoder {
    options: DecodeOptions,
    scratch: Scratch,
    pub(crate) canvas: Canvas,
    pub(crate) resizer: Resizer,
    /// The resized picture, where it is not yet what goes into the batch.
    pub(crate) picture: Picture,
    pub(crate) converter: Converter,
}

impl Decoder {
    /// A decoder with default options that refuses images over `limits`.
    pub fn new(limits: Limits) -> Self {
        Self::with_options(DecodeOptions::new(limits))
    }

    /// A decoder with options.
    pub fn with_options(options: DecodeOptions) -> Self {
        let mut decoder = Self {
            options,
            ..Self::default()
        };
        decoder.resizer.profile = options.profile;
        decoder
    }

    /// The limits it was made with.
    pub fn limits(&self) -> &Limits {
        &self.options.limits
    }

    /// The options it was made with.
    pub fn options(&self) -> &DecodeOptions {
        &self.options
    }

    /// Decodes a whole image at its full size, turned as EXIF says if that is an option.
    ///
    /// # Errors
    /// Every [`ImageError`]; a file that is cut short is an error, never a partly grey image.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<RgbImage> {
        let picture = self.open(bytes)?;
        let (width, height) = picture.size();
        let region = Region::whole(width, height);
        self.fill(bytes, &picture, region, None, CODECS)?;
        Ok(self.canvas.cut(&region))
    }

    /// Decodes a region of the stored picture (not turned, at its full size): exactly the pixels that a full decode has there, but only the work it needs.
    /// `probe` is what [`probe`](crate::probe()) said about these bytes.
    ///
    /// # Errors
    /// As [`Decoder::decode`], and [`ImageError::Region`].
    pub fn decode_region(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        region: Region,
    ) -> Result<RgbImage> {
        self.fill_canvas(bytes, probe, region, None)?;
        Ok(self.canvas.cut(&region))
    }

    /// As [`Decoder::decode_region`], into a buffer that is used again and again: `out` becomes the rows of the
    /// region, `3 * width * height` bytes. With the image's seek points (see
    /// [`build_seek_points`](crate::build_seek_points)) a region is reached without decoding what lies above it;
    /// points that do not belong to these bytes are ignored.
    ///
    /// # Errors
    /// As [`Decoder::decode_region`]; `out` is then of no use.
    pub fn decode_region_into(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        region: Region,
        seek_points: Option<&[u8]>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        // The canvas borrows the buffer, so that decoders can write straight into it.
        std::mem::swap(&mut self.canvas.data, out);
        let outcome = self.fill_canvas(bytes, probe, region, seek_points);
        std::mem::swap(&mut self.canvas.data, out);
        outcome?;
        let row = region.width as usize * 3;
        let (start, stride) = (self.canvas.start, self.canvas.stride);
        if start != 0 || stride != row {
            for y in 0..region.height as usize {
                let from = start + y * stride;
                out.copy_within(from..from + row, y * row);
            }
        }
        out.truncate(row * region.height as usize);
        Ok(())
    }

    /// Decodes a region of the stored picture into `self.canvas`.
    pub(crate) fn fill_canvas(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        region: Region,
        seek_points: Option<&[u8]>,
    ) -> Result<()> {
        self.fill_scaled(bytes, probe, 1, region, seek_points, CODECS)
    }

    /// As [`Decoder::fill_canvas`], at a scale and by some of the decoders.
    fn fill_scaled(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        scale: u32,
        region: Region,
        seek_points: Option<&[u8]>,
        codecs: &[Codec],
    ) -> Result<()> {
        region.check(probe.width.div_ceil(scale), probe.height.div_ceil(scale))?;
        let format = probe.format;
        let job = Job {
            bytes,
            probe,
            scale,
            region,
            limits: &self.options.limits,
            seek_points,
        };
        for codec in codecs.iter().filter(|codec| codec.format == format) {
            let (scratch, canvas) = (&mut self.scratch, &mut self.canvas);
            match guarded(format, || (codec.decode)(&job, scratch, canvas))? {
                Outcome::Declined => continue,
                Outcome::Done if self.canvas.holds(&region) => return Ok(()),
                Outcome::Done => {
                    let what = "it delivered too few pixels".into();
                    return Err(ImageError::Decoder { format, what });
                }
            }
        }
        Err(ImageError::unsupported(format, "no decoder in this build"))
    }

    /// Decodes a region at a scale and resizes it as the resizer has it planned, row by row, if the first decoder of the format can do so
    /// and does not decline. Gives the time that resizing took; what is in `out` otherwise is left over.
    fn stream(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        scale: u32,
        region: Region,
        seek_points: Option<&[u8]>,
        (layout, out): (Layout, &mut [u8]),
    ) -> Result<Option<Duration>> {
        region.check(probe.width.div_ceil(scale), probe.height.div_ceil(scale))?;
        let format = probe.format;
        let first = CODECS.iter().find(|codec| codec.format == format);
        let Some(stream) = first.and_then(|codec| codec.stream) else {
            return Ok(None);
        };
        let job = Job {
            bytes,
            probe,
            scale,
            region,
            limits: &self.options.limits,
            seek_points,
        };
        let mut passes = self.resizer.passes(layout, out);
        let scratch = &mut self.scratch;
        let outcome = guarded(format, || stream(&job, scratch, &mut passes))?;
        Ok((outcome == Outcome::Done).then(|| passes.finish()))
    }
}

/// Runs a decoder. A panic becomes an error: whatever state it leaves things in, all is overwritten by the next image.
fn guarded(format: Format, decode: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
    let outcome = catch_unwind(AssertUnwindSafe(decode));
    outcome.unwrap_or_else(|panic| Err(panicked(format, &*panic)))
}

fn panicked(format: Format, panic: &(dyn Any + Send)) -> ImageError {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let what = text
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it panicked");
    ImageError::Decoder {
        format,
        what: what.to_owned(),
    }
}

#[cfg(test)]
mod tests;
