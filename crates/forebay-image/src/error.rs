//! Errors about an image. They name expected and found values; the caller adds file and record.

use crate::file_format::Format;
use forebay_jpeg::Error as DecodeError;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, ImageError>;

/// Why an image was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The first bytes match no supported image format.
    #[error("not a JPEG, PNG, WebP or TIFF image: it begins with {start}")]
    UnknownFormat {
        /// The first bytes in hexadecimal.
        start: String,
    },
    /// The image is damaged, exceeds a limit or is not supported, or the region is outside of it.
    #[error(transparent)]
    Image(DecodeError),
    /// A decoder panicked; the panic was caught and the image is refused.
    #[error("the {format} decoder failed on this image: {what}")]
    Decoder {
        /// The format.
        format: Format,
        /// The panic's message.
        what: String,
    },
    /// The caller's output buffer has the wrong length.
    #[error("output buffer has {found} bytes, {expected} are needed")]
    OutputLength {
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A mask that does not cover its image.
    #[error("mask is {width}x{height}, its image is {image_width}x{image_height}")]
    MaskSize {
        /// Columns of the mask.
        width: u32,
        /// Rows of the mask.
        height: u32,
        /// Columns of the image.
        image_width: u32,
        /// Rows of the image.
        image_height: u32,
    },
    /// Invalid transform options.
    #[error("invalid transform: {what}")]
    Transform {
        /// The invalid option, and the allowed values.
        what: String,
    },
}

/// Creates the error for invalid transform options.
pub(crate) fn invalid(what: String) -> ImageError {
    ImageError::Transform { what }
}

impl ImageError {
    /// Returns the error for a header that needs `needed` bytes.
    pub(crate) fn incomplete(format: Format, needed: u64, bytes: &[u8]) -> Self {
        Self::Image(DecodeError::Incomplete {
            format: format.name(),
            needed,
            found: bytes.len() as u64,
        })
    }

    pub(crate) fn corrupt(format: Format, what: impl Into<String>) -> Self {
        let (format, what) = (format.name(), what.into());
        Self::Image(DecodeError::Corrupt { format, what })
    }

    pub(crate) fn unsupported(format: Format, what: impl Into<String>) -> Self {
        let (format, what) = (format.name(), what.into());
        Self::Image(DecodeError::Unsupported { format, what })
    }

    pub(crate) fn truncated(format: Format, what: impl Into<String>) -> Self {
        let (format, what) = (format.name(), what.into());
        Self::Image(DecodeError::Truncated { format, what })
    }
}

impl From<DecodeError> for ImageError {
    fn from(error: DecodeError) -> Self {
        match error {
            // The message lists all formats of this crate.
            DecodeError::UnknownEncoding { start } => Self::UnknownFormat { start },
            other => Self::Image(other),
        }
    }
}
