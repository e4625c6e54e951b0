//! The features of a record that come from the header of its image.

use forebay_formats::Reason;
use forebay_formats::images::Refusal;
use forebay_image::{Color, Probe};
use forebay_shard::MAX_RECORD_BYTES;

/// Maximum size of an image in bytes: that of a record, minus space for the other features.
const MAX_IMAGE_BYTES: u64 = MAX_RECORD_BYTES - (1 << 20);

/// The values of an image header, as stored in features.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Header {
    pub(super) format: &'static str,
    pub(super) colorspace: &'static str,
    pub(super) channels: i64,
    pub(super) width: i64,
    pub(super) height: i64,
}

/// The guess. Any width and height that take two bytes as varints give the same lengths.
pub(super) const GUESS: Header = Header {
    format: "JPEG",
    colorspace: "RGB",
    channels: 3,
    width: 500,
    height: 375,
};

impl Header {
    pub(super) fn of(probe: &Probe) -> Self {
        let (channels, colorspace) = match probe.color {
            Color::Gray => (1, "Grayscale"),
            Color::GrayAlpha => (2, "GrayscaleAlpha"),
            Color::Rgba => (4, "RGBA"),
            Color::Cmyk | Color::Ycck => (4, "CMYK"),
            // Palettes contain RGB colors, and YCbCr is the JPEG representation of RGB.
            _ => (3, "RGB"),
        };
        Self {
            format: probe.format.name(),
            colorspace,
            channels,
            width: i64::from(probe.width),
            height: i64::from(probe.height),
        }
    }
}

/// Checks that a file or an image of this size fits into a record.
pub(super) fn check_size(bytes: u64) -> Result<(), Refusal> {
    if bytes > MAX_IMAGE_BYTES {
        return Err((
            Reason::TooLarge,
            format!("{bytes} bytes, at most {MAX_IMAGE_BYTES} fit a record"),
        ));
    }
    if bytes == 0 {
        return Err((Reason::Empty, String::new()));
    }
    Ok(())
}
