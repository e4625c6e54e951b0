//! Errors about an image. They name what was expected and found; the caller, who knows
//! file and record, adds the place.

use crate::format::Format;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, ImageError>;

/// Why an image was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The bytes begin like no image format this build decodes.
    #[error("not a JPEG, PNG, WebP or TIFF image: it begins with {start}")]
    UnknownFormat {
        /// The first bytes in hexadecimal.
        start: String,
    },
    /// The bytes end before the header does. With a prefix of a file: read more and probe again.
    /// With a whole file: it is cut short.
    #[error("{format} header is incomplete: at least {needed} bytes are needed, {found} are there")]
    Incomplete {
        /// The format the bytes begin with.
        format: Format,
        /// How many bytes, from the start of the file, the next step needs at least.
        needed: u64,
        /// How many bytes there were.
        found: u64,
    },
    /// The image is over one of the [`Limits`](crate::Limits); nothing was allocated for it.
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
    /// A legal variant that no decoder here reads.
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
    /// Transform options that make no sense.
    #[error("invalid transform: {what}")]
    Transform {
        /// The fault, and what is allowed.
        what: String,
    },
}

/// The error for options of a transform that make no sense.
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
