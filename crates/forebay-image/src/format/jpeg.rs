//! JPEGs and fast images in the table of formats.

use super::{
    Canvas, Color, DecodeJob, Ending, Format, FormatDecoder, ImageFormat, Outcome, Probe, Scratch,
    Sniff, ends_with, sniff,
};
use crate::error::Result;
use forebay_jpeg::internals::{EOI, Memory, RegionJob, Rows, decoded_bytes_per_pixel};
use forebay_jpeg::{
    ColorModel, Encoding, Limits, check_structure, exif, image_end, read_header, restore_fast,
};
use std::borrow::Cow;

/// One of the encodings in the table of formats.
pub(crate) struct Jpeg(pub(crate) Encoding);

impl ImageFormat for Jpeg {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn extensions(&self) -> &'static [&'static str] {
        match self.0 {
            Encoding::Jpeg => &["jpg", "jpeg", "jpe", "jfif"],
            Encoding::Fast => &["fjpg"],
        }
    }

    fn sniff(&self, head: &[u8]) -> Sniff {
        Sniff::magic(head, self.0.signature(), self.0.min_header_bytes())
    }

    fn probe(&self, bytes: &[u8]) -> Result<Probe> {
        let header = read_header(bytes)?;
        Ok(Probe {
            format: header.encoding.into(),
            width: header.width,
            height: header.height,
            channels: header.color.channels(),
            bits: 8,
            color: header.color.into(),
            progressive: header.progressive,
            header_bytes: header.header_bytes,
        })
    }

    fn decoded_bytes_per_pixel(&self, probe: &Probe) -> u64 {
        decoded_bytes_per_pixel(self.0, probe.channels, probe.progressive)
    }

    fn decoders(&self) -> &'static [FormatDecoder] {
        let all = &[
            FormatDecoder {
                decode,
                stream: Some(stream),
            },
            FormatDecoder {
                decode: general,
                stream: None,
            },
        ];
        match self.0 {
            Encoding::Jpeg => all,
            Encoding::Fast => &all[..1],
        }
    }

    fn end(&self, bytes: &[u8]) -> Option<usize> {
        image_end(bytes)
    }

    fn ending(&self, bytes: &[u8], probe: &Probe) -> Ending {
        let end = [0xff, EOI];
        if self.0 == Encoding::Fast {
            return Ending::at(self.end(bytes), bytes);
        }
        if ends_with(bytes, probe, &end) {
            return Ending::Whole;
        }
        let header = usize::try_from(probe.header_bytes).unwrap_or(usize::MAX);
        let rest = bytes.get(header..).unwrap_or_default();
        // Entropy-coded data cannot contain the marker; if it is missing, the slower walk finds none either.
        match memchr::memmem::find(rest, &end) {
            None => Ending::Cut,
            Some(_) => Ending::at(self.end(bytes), bytes),
        }
    }

    fn exif<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        exif(bytes)
    }

    fn check_structure(&self, bytes: &[u8], limits: &Limits) -> Result<()> {
        Ok(check_structure(bytes, limits)?)
    }

    fn check_codes(&self, bytes: &[u8], limits: &Limits, scratch: &mut Scratch) -> Result<()> {
        Ok(scratch.jpeg.check_codes(bytes, self.0, limits)?)
    }

    fn scales(&self) -> bool {
        true
    }
}

/// Decodes a region onto a canvas, or declines.
fn decode(job: &DecodeJob<'_>, scratch: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    let rows = &mut Memory::new(pixels(job, canvas), job.region.width as usize);
    stream(job, scratch, rows)
}

/// Decodes a region row by row, or declines, possibly after some of the rows.
fn stream(job: &DecodeJob<'_>, scratch: &mut Scratch, rows: &mut dyn Rows) -> Result<Outcome> {
    Ok(match scratch.jpeg.stream(&region_job(job), rows)? {
        true => Outcome::Done,
        false => Outcome::Declined,
    })
}

/// Decodes a region of any JPEG onto a canvas.
fn general(job: &DecodeJob<'_>, scratch: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    (scratch.jpeg).general(&region_job(job), pixels(job, canvas))?;
    Ok(Outcome::Done)
}

/// Resizes the canvas for the region of a job. Returns the bytes of its pixels.
fn pixels<'a>(job: &DecodeJob<'_>, canvas: &'a mut Canvas) -> &'a mut [u8] {
    let (width, height) = (job.region.width as usize, job.region.height as usize);
    canvas.reset(width, height);
    &mut canvas.data[..width * height * 3]
}

fn region_job<'a>(job: &DecodeJob<'a>) -> RegionJob<'a> {
    RegionJob {
        bytes: job.bytes,
        encoding: match job.probe.format {
            Format::Fast => Encoding::Fast,
            _ => Encoding::Jpeg,
        },
        size: (job.probe.width, job.probe.height),
        scale: job.scale,
        region: job.region,
        limits: job.limits,
        seek_points: job.seek_points,
    }
}

/// Returns an image in a standard format: [restores](restore_fast) a fast image, and returns all
/// other bytes unchanged.
///
/// # Errors
/// Those of a fast image that is damaged or over the limits.
pub fn standard_image<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Cow<'a, [u8]>> {
    match sniff(bytes) {
        Some(Format::Fast) => Ok(Cow::Owned(restore_fast(bytes, limits)?)),
        _ => Ok(Cow::Borrowed(bytes)),
    }
}

impl From<Encoding> for Format {
    fn from(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Jpeg => Self::Jpeg,
            Encoding::Fast => Self::Fast,
        }
    }
}

impl From<ColorModel> for Color {
    fn from(color: ColorModel) -> Self {
        match color {
            ColorModel::Gray => Self::Gray,
            ColorModel::Rgb => Self::Rgb,
            ColorModel::YCbCr => Self::YCbCr,
            ColorModel::Cmyk => Self::Cmyk,
            ColorModel::Ycck => Self::Ycck,
        }
    }
}
