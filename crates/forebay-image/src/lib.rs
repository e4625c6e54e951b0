//! Image decoding and transforms: from the encoded bytes of an image to its slot in a batch.
//!
//! - [`probe()`] reads a header, from the whole file or a prefix, without decoding;
//!   [`check_structure`] checks whether a whole file is of a supported kind.
//! - [`Decoder`] decodes JPEG, PNG, WebP and TIFF to RGB, whole images or regions; it trusts
//!   neither the bytes nor the format decoders.
//! - [`Transform`] decodes the part that a crop needs and resizes it directly into the batch, with
//!   the pixels of Pillow, OpenCV or TensorFlow ([`ResizeLike`]); its random decisions are a pure
//!   function of [`SampleSeed`].
//! - [`geometry`] moves boxes, keypoints and masks as a transform moved the pixels.
//! - [`encode_jpeg`] encodes images whose stored bytes cannot be kept; [`Shrink`] is the size
//!   to which images are reduced.
//! - [`progressive_to_baseline`] transcodes JPEGs so that regions can be decoded,
//!   [`restore_progressive`] restores the originals.
//! - [`FastEncoder`] transcodes JPEGs to an encoding that decodes twice as fast,
//!   [`standard_image`] restores them.
//! - [`contact_sheet`] renders a batch for viewing.
//!
//! Other crates own the sources of images and the use of batches. Errors contain no file name or
//! record number: the caller adds them.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod decode;
mod encode;
mod error;
mod file_format;
mod format;
pub mod geometry;
mod guard;
mod mix;
pub mod ops;
mod options;
mod orientation;
mod output;
mod pixels;
mod random;
mod resize;
mod sheet;
mod transcode;
mod transform;

pub use decode::{Decoder, check_mask, decode_mask};
pub use encode::{PngCompression, SampleFormat, Shrink, encode_jpeg, encode_png_samples};
pub use error::{ImageError, Result};
pub use forebay_jpeg::{
    Error as DecodeError, FastCoding, FastEncoder, LearnedPoints, Learning, Limits, Region,
    RgbImage, SeekDensity, SeekPointBuilder, SeekPoints, build_seek_points,
};
pub use format::{
    Color, Ending, Format, Probe, check_structure, ending, probe, sniff, standard_image,
    trailing_bytes,
};
pub use guard::catch_panic;
pub use mix::{BatchMix, BatchTransform, Mixing};
pub use ops::{Compose, Op, Size};
pub use options::{DecodeOptions, ResizeLike};
pub use orientation::{orientation, set_orientation};
pub use output::{Dtype, Layout, Normalize, Output};
pub use pixels::Interpolation;
pub use random::SampleSeed;
pub use sheet::{contact_sheet, draw_boxes, encode_png, tint};
pub use transcode::{Transcoded, progressive_to_baseline, restore_progressive};
pub use transform::{Encoded, EvalTransform, Timing, TrainTransform, Transform, resize};
