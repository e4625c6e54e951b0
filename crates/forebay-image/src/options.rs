//! Options of decoding, which shape pixels beside the transform.

use crate::error::{ImageError, Result};
use crate::limits::Limits;
use std::fmt;
use std::str::FromStr;

/// Whose pixels a transform gives: the decoder, the resize filter and its arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Profile {
    /// Pillow's `resize(BILINEAR)`, which torchvision uses by default: a triangle as wide as the scale, so that nothing
    /// aliases; integer arithmetic, to the bit.
    #[default]
    Pillow,
    /// OpenCV's `resize(INTER_LINEAR)` on bytes: the two nearest pixels in each direction, whatever the scale; integer
    /// arithmetic, to the bit.
    OpenCv,
    /// TensorFlow's `tf.image.resize(BILINEAR, antialias=False)`: as OpenCV's, but in single precision, to the bit; then
    /// rounded to the nearest byte, halves to even.
    TensorFlow,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Pillow, Self::OpenCv, Self::TensorFlow];

    /// The name in options: `pillow`, `opencv`, `tensorflow`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pillow => "pillow",
            Self::OpenCv => "opencv",
            Self::TensorFlow => "tensorflow",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Profile {
    type Err = ImageError;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL
            .into_iter()
            .find(|profile| profile.name() == name.to_ascii_lowercase());
        found.ok_or_else(|| ImageError::Transform {
            what: format!("profile is {name:?}, expected pillow, opencv or tensorflow"),
        })
    }
}

/// Options of a [`Decoder`](crate::Decoder).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DecodeOptions {
    /// Limits against decompression bombs.
    pub limits: Limits,
    /// Whose pixels.
    pub profile: Profile,
    /// Whether pictures are turned and mirrored as their EXIF orientation says. Off, as the decoders of TensorFlow and
    /// torchvision have it.
    pub exif: bool,
    /// Whether a JPEG may be decoded at a half, a quarter or an eighth of its size where what is left of the crop is
    /// still no smaller than the output: faster, and slightly other pixels.
    pub scaled: bool,
}

impl DecodeOptions {
    /// The default pixels, within `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }
}
