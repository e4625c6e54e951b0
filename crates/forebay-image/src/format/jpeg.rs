//! JPEGs and fast images in the table of formats.

use super::{
    Canvas, Color, DecodeJob, Ending, Format, ImageFormat, Probe, Scratch, Sniff, ends_with, sniff,
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

    fn stream(
        &self,
        job: &DecodeJob<'_>,
        scratch: &mut Scratch,
        rows: &mut dyn Rows,
    ) -> Result<bool> {
        Ok(scratch.jpeg.stream(&region_job(job, self.0), rows)?)
    }

    fn decode(
        &self,
        job: &DecodeJob<'_>,
        scratch: &mut Scratch,
        canvas: &mut Canvas,
    ) -> Result<()> {
        let (width, height) = (job.region.width as usize, job.region.height as usize);
        canvas.reset(width, height);
        let out = &mut canvas.data[..width * height * 3];
        if job.declined || !self.stream(job, scratch, &mut Memory::new(out, width))? {
            scratch.jpeg.general(&region_job(job, self.0), out)?;
        }
        Ok(())
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

fn region_job<'a>(job: &DecodeJob<'a>, encoding: Encoding) -> RegionJob<'a> {
    RegionJob {
        bytes: job.bytes,
        encoding,
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
