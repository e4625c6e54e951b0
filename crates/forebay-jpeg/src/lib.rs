//! Decodes JPEGs to RGB: whole images, regions, and smaller scales.
//!
//! - [`JpegDecoder`] decodes an [`ImagePart`], with the pixels of libjpeg-turbo.
//! - [`read_header`] reads a header from a whole file or a prefix, [`check_structure`] checks whether
//!   the file is of a supported kind, and [`exif`] and [`image_end`] find parts of it.
//! - [`SeekPointBuilder`] builds seek points, with which the decoder reaches a region without
//!   decoding the rows above it; with [`Learning`], the decoder records them itself.
//! - [`FastEncoder`] encodes JPEGs as fast images, which decode twice as fast; [`restore_fast`]
//!   restores them. The decoder reads both [encodings](Encoding).
//! - [`Limits`] bound the size of an image and the memory for decoding it.
//!
//! ```
//! use forebay_jpeg::{DecodeScale, ImagePart, JpegDecoder, Limits, read_header};
//! # use libjpeg_turbo_rs::{Encoder, PixelFormat};
//! # let jpeg = Encoder::new(&vec![90; 301 * 200 * 3], 301, 200, PixelFormat::Rgb).encode()?;
//! let header = read_header(&jpeg)?;
//! assert_eq!((header.width, header.height), (301, 200));
//!
//! let mut decoder = JpegDecoder::new(Limits::default());
//! let half = ImagePart {
//!     scale: DecodeScale::Half,
//!     ..ImagePart::default()
//! };
//! // The buffer can be reused for the next image.
//! let mut rgb = Vec::new();
//! assert_eq!(decoder.decode_part_into(&jpeg, &half, &mut rgb)?, (151, 100));
//! assert_eq!(rgb.len(), 3 * 151 * 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The module `baseline` decodes the common case, `general` all other files, `fast` the other
//! encoding; `decoder` calls them. Resizing, other formats and EXIF orientation are left to
//! `forebay-image`. Errors contain no file name: the caller adds it.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod baseline;
mod decoder;
mod encoding;
mod error;
mod fast;
mod general;
mod header;
mod instructions;
mod learned;
mod limits;
mod markers;
mod region;
mod rows;
mod varint;
mod writer;

pub use baseline::{SeekDensity, SeekPointBuilder, build_seek_points};
pub use decoder::{
    DecodeScale, ImagePart, JpegDecoder, check_structure, exif, image_end, read_header,
};
pub use encoding::Encoding;
pub use error::{Error, Result};
pub use fast::{FastCoding, FastEncoder, restore_fast};
pub use header::JpegHeader;
pub use learned::{LearnedPoints, Learning, SeekPoints};
pub use limits::Limits;
pub use markers::ColorModel;
pub use region::{Region, RgbImage};

/// The parts that `forebay-image` builds on. They may change in any release.
#[doc(hidden)]
pub mod internals {
    pub use crate::decoder::Decoders;
    pub use crate::header::decoded_bytes_per_pixel;
    pub use crate::instructions::may_use_avx512;
    pub use crate::markers::{DHT, DQT, DRI, EOI, EXIF, SOF2, SOS, Segment, scans, segment};
    pub use crate::region::RegionJob;
    pub use crate::rows::{Memory, Room, Rows};
    pub use crate::varint::{put_varint, varint};
    pub use crate::writer::{BitWriter, CodeTables, Codes};
}
