//! Errors about an image. They name expected and found values; the caller adds the file.

use super::encoding::Encoding;

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an image was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The first bytes are neither those of a JPEG nor those of a fast image.
    #[error("not a JPEG: it begins with {start}")]
    UnknownEncoding {
        /// The first bytes in hexadecimal.
        start: String,
    },
    /// The bytes end before the header does. A prefix of a file is too short: read more and try
    /// again. A whole file is truncated.
    #[error("{format} header is incomplete: at least {needed} bytes are needed, {found} are there")]
    Incomplete {
        /// The name of the format the bytes begin with.
        format: &'static str,
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
        /// The name of the format.
        format: &'static str,
        /// The structure being read.
        what: String,
    },
    /// The data contradict the format.
    #[error("corrupt {format}: {what}")]
    Corrupt {
        /// The name of the format.
        format: &'static str,
        /// The fault, with the byte offset where it is known.
        what: String,
    },
    /// A valid variant of the format that is not supported.
    #[error("unsupported {format}: {what}")]
    Unsupported {
        /// The name of the format.
        format: &'static str,
        /// The feature.
        what: String,
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
}

impl Error {
    pub(crate) fn corrupt(encoding: Encoding, what: impl Into<String>) -> Self {
        Self::Corrupt {
            format: encoding.name(),
            what: what.into(),
        }
    }

    pub(crate) fn unsupported(encoding: Encoding, what: impl Into<String>) -> Self {
        Self::Unsupported {
            format: encoding.name(),
            what: what.into(),
        }
    }

    pub(crate) fn truncated(encoding: Encoding, what: impl Into<String>) -> Self {
        Self::Truncated {
            format: encoding.name(),
            what: what.into(),
        }
    }
}
