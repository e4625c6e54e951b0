//! Decoding of masks.

use crate::error::{ImageError, Result};
use crate::format::{Color, Format, decode_png_ids, probe};
use crate::geometry::Mask;
use forebay_jpeg::Limits;

/// Checks from the header whether [`decode_mask`] can decode a mask. Returns its width and height.
///
/// # Errors
/// Those of the header; [`DecodeError::Unsupported`](crate::DecodeError::Unsupported) for other formats and for alpha.
pub fn check_mask(bytes: &[u8], limits: &Limits) -> Result<(u32, u32)> {
    let probe = probe(bytes, limits)?;
    let has_alpha = matches!(probe.color, Color::GrayAlpha | Color::Rgba);
    match probe.format {
        Format::Png if !has_alpha => Ok((probe.width, probe.height)),
        format => Err(ImageError::unsupported(
            format,
            format!(
                "expected a PNG without alpha, found {format} of {} channels",
                probe.channels
            ),
        )),
    }
}

/// Decodes a mask from a PNG. The number of a pixel is its gray level, its palette index, or for
/// colors red + 256 green + 65536 blue, as in COCO's panoptic masks.
///
/// # Errors
/// Every [`ImageError`]; [`DecodeError::Unsupported`](crate::DecodeError::Unsupported) for other formats and for alpha.
pub fn decode_mask(bytes: &[u8], limits: &Limits) -> Result<Mask> {
    let probe = probe(bytes, limits)?;
    if probe.format != Format::Png {
        return Err(ImageError::unsupported(
            probe.format,
            "a mask has to be a PNG, whose numbers survive encoding",
        ));
    }
    let ids = decode_png_ids(bytes, &probe, limits)?;
    Ok(Mask {
        width: probe.width,
        height: probe.height,
        ids,
    })
}
