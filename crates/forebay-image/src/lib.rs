//! Pixels: from the encoded bytes of an image to its place in a batch.
//!
//! - [`probe()`] reads a header, from the whole file or a prefix, without decoding.
//! - [`Decoder`] decodes JPEG, PNG and WebP to RGB, whole or a region; it trusts neither bytes nor decoder.
//! - [`Transform`] decodes the part that a crop needs and resizes it straight into the batch, with the pixels
//!   of Pillow, OpenCV or TensorFlow ([`Profile`]); what it draws at random is a pure function of [`SampleSeed`].
//! - [`encode_jpeg`] writes the pictures that cannot stay as they are, [`Shrink`] says how small.
//! - [`progressive_to_baseline`] makes JPEGs whose regions can be decoded, [`restore_progressive`] gives the originals back.
//! - [`contact_sheet`] shows a batch to people.
//!
//! Where images come from, and what becomes of batches, is other crates' business. Errors carry no file
//! name or record number: the caller adds them.

mod decode;
mod encode;
mod error;
mod limits;
mod mix;
mod options;
mod orientation;
mod probe;
mod random;
mod resize;
mod rows;
mod sheet;
mod transcode;
mod transform;
mod varint;

pub use decode::{Decoder, Region, RgbImage, SeekDensity, SeekPointBuilder, build_seek_points};
pub use encode::{Shrink, encode_jpeg};
pub use error::{ImageError, Result};
pub use limits::Limits;
pub use mix::{BatchTransform, Mix, Mixing};
pub use options::{DecodeOptions, Profile};
pub use orientation::{orientation, set_orientation};
pub use probe::{Color, Ending, Format, Probe, ending, probe, sniff, trailing_bytes};
pub use random::SampleSeed;
pub use sheet::{contact_sheet, encode_png};
pub use transcode::{Transcoded, progressive_to_baseline, restore_progressive};
pub use transform::{
    Bounds, ColorJitter, Dtype, Encoded, EvalTransform, Fill, Interpolation, Layout, Motion,
    Normalize, Output, RandAugment, RandomErasing, RandomGrayscale, RandomResizedCrop, ResizeTo,
    Size, Step, Timing, TrainTransform, Transform, TransformList, TrivialAugmentWide, resize,
};
