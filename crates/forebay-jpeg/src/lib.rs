//! JPEG: a fast decoder for the common case ([`baseline`]), and one for all other files
//! ([`general`]). Fast images ([`fast`]) are JPEGs in another encoding.

mod baseline;
mod decoder;
mod encoding;
mod error;
mod fast;
mod general;
mod header;
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
pub use limits::Limits;
pub use markers::ColorModel;
pub use region::{Region, RgbImage};

/// The parts that `forebay-image` builds on. They may change in any release.
#[doc(hidden)]
pub mod internals {
    pub use crate::decoder::Decoders;
    pub use crate::header::decoded_bytes_per_pixel;
    pub use crate::markers::{DHT, DQT, DRI, EOI, EXIF, SOF2, SOS, Segment, scans, segment};
    pub use crate::region::RegionJob;
    pub use crate::rows::{Memory, Room, Rows};
    pub use crate::varint::{put_varint, varint};
    pub use crate::writer::{BitWriter, CodeTables, Codes};
}
