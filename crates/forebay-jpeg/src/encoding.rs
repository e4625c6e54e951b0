//! The two encodings of an image, which their first bytes tell apart.

use std::fmt;

/// The first bytes of a JPEG: the start of the image, and of the next marker.
pub(crate) const JPEG_MAGIC: [u8; 3] = [0xff, 0xd8, 0xff];
/// The first bytes of a fast image.
pub(crate) const FAST_MAGIC: [u8; 4] = [0x89, b'F', b'B', b'J'];
/// Length of the fixed header of a fast image, in bytes.
pub(crate) const FAST_HEADER: usize = 32;

/// How the bytes of an image encode its coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// A JPEG.
    Jpeg,
    /// A fast image, see [`FastEncoder`](crate::FastEncoder).
    Fast,
}

impl Encoding {
    /// Detects the encoding from the first bytes.
    pub fn detect(bytes: &[u8]) -> Option<Self> {
        let mut all = [Self::Jpeg, Self::Fast].into_iter();
        all.find(|encoding| bytes.starts_with(encoding.signature()))
    }

    /// Returns the name in error messages: `JPEG` or `FAST`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Fast => "FAST",
        }
    }

    /// Returns the bytes with which every image begins.
    pub const fn signature(self) -> &'static [u8] {
        match self {
            Self::Jpeg => &JPEG_MAGIC,
            Self::Fast => &FAST_MAGIC,
        }
    }

    /// Returns the number of bytes that every header has at least.
    pub const fn min_header_bytes(self) -> u64 {
        match self {
            Self::Jpeg => 24,
            Self::Fast => FAST_HEADER as u64,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
