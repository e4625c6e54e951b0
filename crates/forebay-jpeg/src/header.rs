//! Headers of images.

use super::encoding::Encoding;
use super::error::{Error, Result};
use super::limits::Limits;
use super::markers::{self, ColorModel, DHP, EOI, EXP, SOF2, SOS};

/// The fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct JpegHeader {
    /// The encoding.
    pub encoding: Encoding,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Color model, which also gives the number of channels.
    pub color: ColorModel,
    /// Whether the JPEG is progressive.
    pub progressive: bool,
    /// Number of bytes that were read: in a JPEG, the offset of the data of its first scan.
    pub header_bytes: u64,
}

impl JpegHeader {
    /// Reads the header of a JPEG from the whole file or a prefix.
    pub(crate) fn of_jpeg(bytes: &[u8]) -> Result<Self> {
        let corrupt = |what: &str| Err(Error::corrupt(Encoding::Jpeg, what));
        let mut at = 2;
        let (mut found, mut jfif, mut adobe) = (None, false, None);
        loop {
            let segment = markers::segment(bytes, at)?;
            at = segment.end;
            jfif |= markers::is_jfif(&segment);
            adobe = markers::adobe_transform(&segment).or(adobe);
            match segment.marker {
                marker if markers::is_frame(marker) => {
                    if found.is_some() {
                        return corrupt("two frame headers");
                    }
                    found = Some(markers::frame(marker, segment.payload)?);
                }
                DHP | EXP => {
                    return Err(Error::unsupported(Encoding::Jpeg, "hierarchical coding"));
                }
                SOS => break,
                EOI => return corrupt("the image ends before its first scan"),
                _ => {}
            }
        }
        let Some(frame) = found else {
            return corrupt("a scan without a frame header");
        };
        let mut ids = [0; 4];
        for (id, description) in ids.iter_mut().zip(frame.descriptions) {
            *id = description[0];
        }
        let components = frame.descriptions.len();
        let Some(color) = markers::color(&ids[..components], jfif, adobe) else {
            let what = "this number of color components";
            return Err(Error::unsupported(Encoding::Jpeg, what));
        };
        Ok(Self {
            encoding: Encoding::Jpeg,
            width: frame.width.into(),
            height: frame.height.into(),
            color,
            progressive: frame.marker == SOF2,
            header_bytes: at as u64,
        })
    }

    /// Checks that decoding the image keeps within the limits.
    ///
    /// # Errors
    /// [`Error::OverLimit`].
    pub fn check(&self, limits: &Limits) -> Result<()> {
        let channels = self.color.channels();
        let bytes_per_pixel = decoded_bytes_per_pixel(self.encoding, channels, self.progressive);
        limits.check(self.width, self.height, bytes_per_pixel)
    }
}

/// Returns the total memory for decoding in bytes per pixel: RGB output and planes of samples; for
/// progressive files also 16-bit coefficients of every channel.
pub fn decoded_bytes_per_pixel(encoding: Encoding, channels: u8, progressive: bool) -> u64 {
    let planes = if progressive && encoding == Encoding::Jpeg {
        3
    } else {
        1
    };
    3 + u64::from(channels) * planes
}
