//! Decoding of masks.

use crate::error::{ImageError, Result};
use crate::format::{Format, decode_png_ids, probe};
use crate::geometry::Mask;
use crate::limits::Limits;

/// Decodes a mask from a PNG: levels of gray as they are, entries of a palette by their index, and
/// colors as red + 256 green + 65536 blue, as in COCO's panoptic masks.
///
/// # Errors
/// Every [`ImageError`]; [`ImageError::Unsupported`] for other formats and for alpha.
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
