//! The decoder of all formats: decodes regions of images to RGB, with the decoders in the files of
//! the formats.
//!
//! Format decoders are not trusted: limits are first checked on the header as read by this crate, a
//! panic becomes an error for that image alone, and the size of the decoder's result is checked.

mod mask;
mod picture;

pub use mask::{check_mask, decode_mask};
pub(crate) use picture::ImageGeometry as Opened;

use crate::error::{ImageError, Result};
use crate::format::{Canvas, DecodeJob, Format, Probe, Scratch, probe};
use crate::guard::catch_panic;
use crate::options::DecodeOptions;
use crate::output::{Converter, Layout};
use crate::pixels::PixelBuffer;
use crate::resize::Resizer;
use forebay_jpeg::{Limits, Region, RgbImage, SeekPoints};
use std::any::Any;
use std::time::Duration;

/// Decodes images to RGB. Use one per thread: it reuses its memory from image to image.
///
/// Colors follow `tf.io.decode_image(channels=3)` where that is defined: gray is repeated in the
/// three channels; alpha is dropped, not blended; palettes are looked up; 16-bit channels keep
/// their high byte; CMYK and YCCK become `(255 - ink) * (255 - black) / 255`, where files store
/// `255 - ink`. ICC profiles are ignored, and so is EXIF orientation unless [`DecodeOptions::exif`]
/// is set.
#[derive(Debug, Default)]
pub struct Decoder {
    options: DecodeOptions,
    scratch: Scratch,
    pub(crate) canvas: Canvas,
    pub(crate) resizer: Resizer,
    /// The resized image, before conversion into the batch.
    pub(crate) picture: PixelBuffer,
    pub(crate) converter: Converter,
}

impl Decoder {
    /// Creates a decoder with default options that refuses images over `limits`.
    pub fn new(limits: Limits) -> Self {
        Self::with_options(DecodeOptions::new(limits))
    }

    /// Creates a decoder with options.
    pub fn with_options(options: DecodeOptions) -> Self {
        let mut decoder = Self {
            options,
            ..Self::default()
        };
        decoder.resizer.resize_like = options.resize_like;
        decoder
    }

    /// Returns the limits.
    pub fn limits(&self) -> &Limits {
        &self.options.limits
    }

    /// Returns the options.
    pub fn options(&self) -> &DecodeOptions {
        &self.options
    }

    /// Decodes a whole image at full size, applying its EXIF orientation if the options say so.
    ///
    /// # Errors
    /// Every [`ImageError`]. A truncated file is an error, never a partly gray image.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<RgbImage> {
        let picture = self.open(bytes)?;
        let (width, height) = picture.size();
        let region = Region::whole(width, height);
        self.fill(bytes, &picture, region, SeekPoints::None, false)?;
        Ok(self.canvas.cut(&region))
    }

    /// Checks that an image can be decoded, without producing pixels. For a JPEG this reads the
    /// entropy-coded data of all scans; for other formats only the header.
    ///
    /// # Errors
    /// As [`Decoder::decode`].
    pub fn check_codes(&mut self, bytes: &[u8]) -> Result<()> {
        let format = probe(bytes, &self.options.limits)?.format;
        let (scratch, limits) = (&mut self.scratch, &self.options.limits);
        guarded(format, || format.imp().check_codes(bytes, limits, scratch))
    }

    /// Decodes a region of the stored image (not oriented, at full size). The pixels equal those of
    /// a full decode, but only the necessary work is done. `probe` is the result of
    /// [`probe`](crate::probe()) for these bytes.
    ///
    /// # Errors
    /// As [`Decoder::decode`], and [`DecodeError::Region`](crate::DecodeError::Region).
    pub fn decode_region(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        region: Region,
    ) -> Result<RgbImage> {
        self.fill_canvas(bytes, probe, region, SeekPoints::None)?;
        Ok(self.canvas.cut(&region))
    }

    /// Decodes a region of the stored image into `self.canvas`.
    pub(crate) fn fill_canvas(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        region: Region,
        seek_points: SeekPoints<'_>,
    ) -> Result<()> {
        self.fill_scaled(bytes, probe, 1, region, seek_points, false)
    }

    /// As [`Decoder::fill_canvas`], at a decode scale; `declined` says whether
    /// [`stream`](Self::stream) has declined the image.
    fn fill_scaled(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        scale: u32,
        region: Region,
        seek_points: SeekPoints<'_>,
        declined: bool,
    ) -> Result<()> {
        region.check(probe.width.div_ceil(scale), probe.height.div_ceil(scale))?;
        let format = probe.format;
        let job = DecodeJob {
            bytes,
            probe,
            scale,
            region,
            limits: &self.options.limits,
            seek_points,
            declined,
        };
        let (scratch, canvas) = (&mut self.scratch, &mut self.canvas);
        guarded(format, || format.imp().decode(&job, scratch, canvas))?;
        if !self.canvas.holds(&region) {
            let what = "it delivered too few pixels".into();
            return Err(ImageError::Decoder { format, what });
        }
        Ok(())
    }

    /// Decodes a region at a scale and resizes it as planned, row by row, if the format supports
    /// this and does not decline. Returns the time spent on resizing; if the
    /// decoder declines, the content of `out` is undefined.
    fn stream(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        scale: u32,
        region: Region,
        seek_points: SeekPoints<'_>,
        (layout, out): (Layout, &mut [u8]),
    ) -> Result<Option<Duration>> {
        region.check(probe.width.div_ceil(scale), probe.height.div_ceil(scale))?;
        let format = probe.format;
        let job = DecodeJob {
            bytes,
            probe,
            scale,
            region,
            limits: &self.options.limits,
            seek_points,
            declined: false,
        };
        let mut passes = self.resizer.passes(layout, out);
        let scratch = &mut self.scratch;
        let done = guarded(format, || format.imp().stream(&job, scratch, &mut passes))?;
        Ok(done.then(|| passes.finish()))
    }
}

/// Runs a decoder and converts a panic to an error. A panic may leave state behind, all of which is
/// overwritten for the next image.
fn guarded<T>(format: Format, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = catch_panic(decode);
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
