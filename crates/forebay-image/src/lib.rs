//! Pixels: from the encoded bytes of an image to its place in a batch.
//!
//! - [`probe()`] reads a header, from the whole file or a prefix, without decoding; [`check_structure`] tells whether the whole file is of a kind that is decoded.
//! - [`Decoder`] decodes JPEG, PNG, WebP and TIFF to RGB, whole or a region; it trusts neither bytes nor decoder.
//! - [`Transform`] decodes the part that a crop needs and resizes it straight into the batch, with the pixels
//!   of Pillow, OpenCV or TensorFlow ([`Profile`]); what it draws at random is a pure function of [`SampleSeed`].
//! - [`encode_jpeg`] writes the pictures that cannot stay as they are, [`Shrink`] says how small.
//! - [`progressive_to_baseline`] makes JPEGs whose regions can be decoded, [`restore_progressive`] gives the originals back.
//! - [`contact_sheet`] shows a batch to people.
//!
//! Other crates own the sources of images and the use of batches. Errors carry no file
//! name or record number: the caller adds them.

mod decode;
mod encode;
mod error;
mod format;
mod limits;
mod mix;
pub mod ops;
mod options;
mod orientation;
mod output;
mod pixels;
mod random;
mod region;
mod resize;
mod rows;
mod sheet;
mod transcode;
mod transform;
mod varint;

pub use decode::Decoder;
pub use encode::{Shrink, encode_jpeg};
pub use error::{ImageError, Result};
pub use format::jpeg::{SeekDensity, SeekPointBuilder, build_seek_points};
pub use format::{
    Color, Ending, Format, Probe, check_structure, ending, probe, sniff, trailing_bytes,
};
pub use limits::Limits;
pub use mix::{BatchTransform, Mix, Mixing};
pub use ops::{Compose, Op, Size};
pub use options::{DecodeOptions, Profile};
pub use orientation::{orientation, set_orientation};
pub use output::{Dtype, Layout, Normalize, Output};
pub use pixels::Interpolation;
pub use random::SampleSeed;
pub use region::{Region, RgbImage};
pub use sheet::{contact_sheet, encode_png};
pub use transcode::{Transcoded, progressive_to_baseline, restore_progressive};
pub use transform::{Encoded, EvalTransform, Timing, TrainTransform, Transform, resize};
