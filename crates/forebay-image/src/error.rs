//! Errors about an image. They name expected and found values; the caller adds file and record.

use crate::file_format::Format;
use forebay_jpeg::Error;

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
    /// The bytes end before the header does. A prefix of a file is too short: read more and probe
    /// again. A whole file is truncated.
    #[error("{format} header is incomplete: at least {needed} bytes are needed, {found} are there")]
    Incomplete {
        /// The format the bytes begin with.
        format: Format,
        /// Number of bytes, from the start of the file, that the next step needs at least.
        needed: u64,
        /// Number of bytes given.
        found: u64,
    },
    /// The image exceeds one of the [`Limits`](crate::Limits); nothing was allocated for it.
    #[error("image has {found} {what}, the limit is {limit}")]
    OverLimit {
        /// The limited quantity, with its unit.
        what: &'static str,
        /// The value in the header.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The image data end before the last pixel.
    #[error("{format} data end early: {what}")]
    Truncated {
        /// The format.
        format: Format,
        /// The structure being read.
        what: String,
    },
    /// The data contradict the format.
    #[error("corrupt {format}: {what}")]
    Corrupt {
        /// The format.
        format: Format,
        /// The fault, with the byte offset where it is known.
        what: String,
    },
    /// A valid variant of the format that is not supported.
    #[error("unsupported {format}: {what}")]
    Unsupported {
        /// The format.
        format: Format,
        /// The feature.
        what: String,
    },
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
    /// A region that is empty or reaches outside the image.
    #[error(
        "region {width}x{height} at ({x}, {y}) is not inside the {image_width}x{image_height} image"
    )]
    Region {
        /// Left column.
        x: u32,
        /// Top row.
        y: u32,
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// Columns of the image.
        image_width: u32,
        /// Rows of the image.
        image_height: u32,
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
    pub(crate) fn corrupt(format: Format, what: impl Into<String>) -> Self {
        Self::Corrupt {
            format,
            what: what.into(),
        }
    }

    pub(crate) fn unsupported(format: Format, what: impl Into<String>) -> Self {
        Self::Unsupported {
            format,
            what: what.into(),
        }
    }

    pub(crate) fn truncated(format: Format, what: impl Into<String>) -> Self {
        Self::Truncated {
            format,
            what: what.into(),
        }
    }
}

impl From<Error> for ImageError {
    fn from(error: Error) -> Self {
        match error {
            Error::UnknownEncoding { start } => Self::UnknownFormat { start },
            Error::Incomplete {
                encoding,
                needed,
                found,
            } => Self::Incomplete {
                format: encoding.into(),
                needed,
                found,
            },
            Error::OverLimit { what, found, limit } => Self::OverLimit { what, found, limit },
            Error::Truncated { encoding, what } => Self::truncated(encoding.into(), what),
            Error::Corrupt { encoding, what } => Self::corrupt(encoding.into(), what),
            Error::Unsupported { encoding, what } => Self::unsupported(encoding.into(), what),
            Error::Region {
                x,
                y,
                width,
                height,
                image_width,
                image_height,
            } => Self::Region {
                x,
                y,
                width,
                height,
                image_width,
                image_height,
            },
            // The enum may get more variants.
            other => Self::Decoder {
                format: Format::Jpeg,
                what: other.to_string(),
            },
        }
    }
}
