//! Decoding options that affect pixels, apart from the transform.

use crate::error::{ImageError, Result};
use forebay_jpeg::Limits;
use std::fmt;
use std::str::FromStr;

/// The library whose pixels a transform reproduces: its decoder, resize filter and arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ResizeLike {
    /// Pillow's `resize(BILINEAR)`, the default of torchvision: a triangle filter as wide as the
    /// scale, which prevents aliasing; integer arithmetic, bit for bit.
    #[default]
    Pillow,
    /// OpenCV's `resize(INTER_LINEAR)` on bytes: the two nearest pixels in each direction at any
    /// scale; integer arithmetic, bit for bit.
    OpenCv,
    /// TensorFlow's `tf.image.resize(BILINEAR, antialias=False)`: as OpenCV's, but in single
    /// precision, bit for bit; then rounded to the nearest byte, halves to even.
    TensorFlow,
}

impl ResizeLike {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Pillow, Self::OpenCv, Self::TensorFlow];

    /// Returns the name in options: `pillow`, `opencv`, `tensorflow`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pillow => "pillow",
            Self::OpenCv => "opencv",
            Self::TensorFlow => "tensorflow",
        }
    }
}

impl fmt::Display for ResizeLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ResizeLike {
    type Err = ImageError;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL
            .into_iter()
            .find(|resize_like| resize_like.name() == name.to_ascii_lowercase());
        found.ok_or_else(|| ImageError::Transform {
            what: format!("resize_like is {name:?}, expected pillow, opencv or tensorflow"),
        })
    }
}

/// Options of a [`Decoder`](crate::Decoder).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DecodeOptions {
    /// Limits against decompression bombs.
    pub limits: Limits,
    /// The library to reproduce.
    pub resize_like: ResizeLike,
    /// Whether images are rotated and mirrored by their EXIF orientation. Off by default, as in the
    /// decoders of TensorFlow and torchvision.
    pub exif: bool,
    /// Whether a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size if the crop is then still no
    /// smaller than the output: faster, with slightly different pixels.
    pub scaled: bool,
}

impl DecodeOptions {
    /// Default options with these limits.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }
}
