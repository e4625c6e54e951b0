//! The decoder of JPEGs and fast images, and what is known about an image without decoding it.

use super::baseline::Baseline;
use super::encoding::Encoding;
use super::error::{Error, Result};
use super::fast;
use super::general::{self, General};
use super::header::JpegHeader;
use super::learned::SeekPoints;
use super::limits::Limits;
use super::markers;
use super::region::{Region, RegionJob, RgbImage};
use super::rows::{Memory, Rows};

/// Reads the header of a JPEG or a fast image, from the whole file or a prefix of it.
///
/// # Errors
/// [`Error::Incomplete`] if the bytes end before the header does (it says how many are needed),
/// [`Error::UnknownEncoding`], [`Error::Corrupt`] and [`Error::Unsupported`].
///
/// ```
/// use forebay_jpeg::{ColorModel, Error, read_header};
/// # use libjpeg_turbo_rs::{Encoder, PixelFormat};
/// # let jpeg = Encoder::new(&[90; 30 * 20 * 3], 30, 20, PixelFormat::Rgb).encode().unwrap();
///
/// let header = read_header(&jpeg)?;
/// assert_eq!((header.width, header.color), (30, ColorModel::YCbCr));
/// let short = read_header(&jpeg[..100]);
/// assert!(matches!(short, Err(Error::Incomplete { needed, .. }) if needed > 100));
/// # Ok::<(), Error>(())
/// ```
pub fn read_header(bytes: &[u8]) -> Result<JpegHeader> {
    match Encoding::detect(bytes) {
        Some(Encoding::Jpeg) => JpegHeader::of_jpeg(bytes),
        Some(Encoding::Fast) => fast::header(bytes),
        None => Err(unknown(bytes)),
    }
}

fn unknown(bytes: &[u8]) -> Error {
    let may_be = |encoding: &Encoding| encoding.signature().starts_with(bytes);
    if let Some(encoding) = [Encoding::Jpeg, Encoding::Fast].into_iter().find(may_be) {
        return Error::Incomplete {
            format: encoding.name(),
            needed: encoding.min_header_bytes(),
            found: bytes.len() as u64,
        };
    }
    let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
    Error::UnknownEncoding {
        start: start.join(" "),
    }
}

/// Returns the offset after the image, or `None` if it does not end within `bytes`. Follows the
/// markers of a JPEG; bytes after a fast image make it invalid.
pub fn image_end(bytes: &[u8]) -> Option<usize> {
    match Encoding::detect(bytes)? {
        Encoding::Jpeg => markers::end(bytes),
        Encoding::Fast => fast::is_intact(bytes).then_some(bytes.len()),
    }
}

/// Returns the EXIF data, a TIFF structure, if the image has any.
pub fn exif(bytes: &[u8]) -> Option<&[u8]> {
    match Encoding::detect(bytes)? {
        Encoding::Jpeg => markers::exif(bytes),
        Encoding::Fast => markers::exif(fast::head(bytes)?),
    }
}

/// Checks from its markers and tables that an image is of a supported kind, without reading its
/// entropy-coded data.
///
/// # Errors
/// As [`JpegDecoder::decode`], except for damage to the image data.
pub fn check_structure(bytes: &[u8], limits: &Limits) -> Result<()> {
    let header = read_header(bytes)?;
    header.check(limits)?;
    match header.encoding {
        Encoding::Jpeg => general::check_structure(bytes, limits),
        Encoding::Fast => fast::check_structure(bytes),
    }
}

/// The decoders of both encodings, with the memory that they reuse from image to image. A
/// [`RegionJob`] is not checked.
#[derive(Debug, Default)]
pub struct Decoders {
    baseline: Baseline,
    fast: fast::Reader,
    general: General,
}

impl Decoders {
    /// Decodes a region row by row. Returns `false`, possibly after some rows, for a JPEG that only
    /// [`Decoders::general`] decodes, and for a damaged one.
    pub fn stream(&mut self, job: &RegionJob<'_>, rows: &mut dyn Rows) -> Result<bool> {
        match job.encoding {
            Encoding::Jpeg => {
                let (points, size) = (job.seek_points, job.size);
                let baseline = &mut self.baseline;
                let decoded = baseline.decode(job.bytes, points, size, job.scale, job.region, rows);
                Ok(decoded.is_ok())
            }
            Encoding::Fast => {
                fast::decode(job, &mut self.baseline, &mut self.fast, rows).map(|()| true)
            }
        }
    }

    /// Decodes a region of any JPEG into `out`, three bytes per pixel.
    pub fn general(&mut self, job: &RegionJob<'_>, out: &mut [u8]) -> Result<()> {
        self.general.decode(job, out)
    }

    /// Checks that an image can be decoded, by reading all its entropy-coded data.
    pub fn check_codes(&mut self, bytes: &[u8], encoding: Encoding, limits: &Limits) -> Result<()> {
        match encoding {
            Encoding::Jpeg => self.general.check_codes(bytes, limits),
            Encoding::Fast => fast::check_codes(bytes, &mut self.baseline, &mut self.fast),
        }
    }
}

/// A size of the decoded image, as a fraction of its full size. Sizes are rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DecodeScale {
    /// Full size.
    #[default]
    Full,
    /// Half the width and height.
    Half,
    /// A quarter of the width and height.
    Quarter,
    /// An eighth of the width and height.
    Eighth,
}

impl DecodeScale {
    /// Returns the number by which width and height are divided.
    pub const fn divisor(self) -> u32 {
        match self {
            Self::Full => 1,
            Self::Half => 2,
            Self::Quarter => 4,
            Self::Eighth => 8,
        }
    }
}

/// The part of an image to decode. The default is the whole image at full size.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImagePart<'a> {
    /// The scale. A smaller inverse transform is computed, with the pixels of libjpeg-turbo.
    pub scale: DecodeScale,
    /// The region, in pixels of the scaled image; `None` for all of it.
    pub region: Option<Region>,
    /// The [seek points](crate::SeekPointBuilder) of the image, with which the decoder reaches a
    /// region without decoding the rows above it.
    pub seek_points: SeekPoints<'a>,
}

/// Decodes JPEGs and fast images to RGB. Use one per thread: it reuses its memory from image to
/// image.
///
/// Pixels equal those of libjpeg-turbo's default decoder. Gray is repeated in the three channels;
/// CMYK and YCCK become `(255 - ink) * (255 - black) / 255`, where files store `255 - ink`. ICC
/// profiles and the orientation in [EXIF data](exif) are ignored.
#[derive(Debug, Default)]
pub struct JpegDecoder {
    limits: Limits,
    decoders: Decoders,
}

impl JpegDecoder {
    /// Creates a decoder that refuses images over `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Decodes a whole image at full size.
    ///
    /// # Errors
    /// Every [`Error`]. A truncated file is an error, never a partly gray image.
    pub fn decode(&mut self, bytes: &[u8]) -> Result<RgbImage> {
        self.decode_part(bytes, &ImagePart::default())
    }

    /// Decodes a region, or at a smaller scale. The pixels equal those of the whole image at this
    /// scale, but only the necessary work is done.
    ///
    /// # Errors
    /// As [`JpegDecoder::decode`], and [`Error::Region`].
    pub fn decode_part(&mut self, bytes: &[u8], part: &ImagePart<'_>) -> Result<RgbImage> {
        let mut data = Vec::new();
        let (width, height) = self.decode_part_into(bytes, part, &mut data)?;
        Ok(RgbImage {
            width,
            height,
            data,
        })
    }

    /// As [`JpegDecoder::decode_part`], into a buffer for reuse: `out` becomes the rows of the
    /// region, three bytes per pixel. Returns width and height of the region.
    ///
    /// # Errors
    /// As [`JpegDecoder::decode_part`]; the content of `out` is then undefined.
    pub fn decode_part_into(
        &mut self,
        bytes: &[u8],
        part: &ImagePart<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(u32, u32)> {
        let header = read_header(bytes)?;
        header.check(&self.limits)?;
        let scale = part.scale.divisor();
        let (width, height) = (header.width.div_ceil(scale), header.height.div_ceil(scale));
        let region = part.region.unwrap_or(Region::whole(width, height));
        region.check(width, height)?;
        let job = RegionJob {
            bytes,
            encoding: header.encoding,
            size: (header.width, header.height),
            scale,
            region,
            limits: &self.limits,
            seek_points: part.seek_points,
        };
        let (width, height) = (region.width as usize, region.height as usize);
        out.resize(width * height * 3, 0);
        if !self.decoders.stream(&job, &mut Memory::new(out, width))? {
            self.decoders.general(&job, out)?;
        }
        Ok((region.width, region.height))
    }

    /// Checks that an image can be decoded, by reading all its entropy-coded data, without
    /// producing pixels.
    ///
    /// # Errors
    /// As [`JpegDecoder::decode`].
    pub fn check_codes(&mut self, bytes: &[u8]) -> Result<()> {
        let header = read_header(bytes)?;
        header.check(&self.limits)?;
        (self.decoders).check_codes(bytes, header.encoding, &self.limits)
    }
}

#[cfg(test)]
mod tests;
