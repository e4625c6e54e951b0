//! Limits against decompression bombs, checked on the header before anything is allocated.

use super::error::{Error, Result};

/// Limits of an image. A header that exceeds any of them is refused before pixels are allocated.
///
/// ```
/// use forebay_jpeg::{Error, JpegDecoder, Limits};
/// # use libjpeg_turbo_rs::{Encoder, PixelFormat};
/// # let jpeg = Encoder::new(&[90; 30 * 20 * 3], 30, 20, PixelFormat::Rgb).encode().unwrap();
///
/// let limits = Limits {
///     max_side: 24,
///     ..Limits::default()
/// };
/// let refused = JpegDecoder::new(limits).decode(&jpeg);
/// assert!(matches!(refused, Err(Error::OverLimit { found: 30, limit: 24, .. })));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest side, in pixels.
    pub max_side: u32,
    /// Width times height, in pixels.
    pub max_pixels: u64,
    /// Bytes of the decoded RGB image, including the decoder's own buffers for it (coefficients of
    /// a progressive JPEG, rows of a 16-bit PNG in `forebay-image`).
    pub max_decoded_bytes: u64,
    /// Scans of a progressive JPEG: each one is a pass over the whole image.
    pub max_scans: u32,
}

impl Default for Limits {
    /// 16,384 pixels per side, 64 Mi pixels, 256 MiB decoded, 100 scans: well above any training
    /// image, well below a harmful size.
    fn default() -> Self {
        Self {
            max_side: 16_384,
            max_pixels: 64 << 20,
            max_decoded_bytes: 256 << 20,
            max_scans: 100,
        }
    }
}

impl Limits {
    /// Checks a size from a header; `bytes_per_pixel` is the total memory for decoding it.
    ///
    /// # Errors
    /// [`Error::OverLimit`].
    pub fn check(&self, width: u32, height: u32, bytes_per_pixel: u64) -> Result<()> {
        let over = |what, found, limit| Err(Error::OverLimit { what, found, limit });
        if width > self.max_side {
            return over("pixels of width", width.into(), self.max_side.into());
        }
        if height > self.max_side {
            return over("pixels of height", height.into(), self.max_side.into());
        }
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.max_pixels {
            return over("pixels", pixels, self.max_pixels);
        }
        self.check_bytes(pixels.saturating_mul(bytes_per_pixel))
    }

    /// Checks the total memory for decoding, in bytes.
    ///
    /// # Errors
    /// [`Error::OverLimit`].
    pub fn check_bytes(&self, bytes: u64) -> Result<()> {
        if bytes > self.max_decoded_bytes {
            return Err(Error::OverLimit {
                what: "bytes when decoded",
                found: bytes,
                limit: self.max_decoded_bytes,
            });
        }
        Ok(())
    }

    /// Checks the number of scans.
    ///
    /// # Errors
    /// [`Error::OverLimit`].
    pub fn check_scans(&self, scans: u32) -> Result<()> {
        if scans > self.max_scans {
            return Err(Error::OverLimit {
                what: "scans",
                found: scans.into(),
                limit: self.max_scans.into(),
            });
        }
        Ok(())
    }
}
