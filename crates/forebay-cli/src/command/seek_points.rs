//! The option `--seek-points` of several commands.

use forebay_image::SeekDensity;

/// How many seek points are stored with each JPEG.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SeekPoints {
    /// One for each row of blocks, or fewer, as long as they take less than 1 % of the image's bytes
    Auto,
    /// One for each row of blocks, whatever they take
    On,
    /// None
    Off,
    /// Eight for each row of blocks
    Dense,
}

impl SeekPoints {
    pub(crate) fn density(self) -> Option<SeekDensity> {
        match self {
            Self::Auto => Some(SeekDensity::Auto),
            Self::On => Some(SeekDensity::Rows),
            Self::Off => None,
            Self::Dense => Some(SeekDensity::Fine),
        }
    }
}
