//! The option `--images` of `pack` and `convert`: the encoding of images in records.

use clap::Args as ClapArgs;
use forebay_image::FastCoding;
use forebay_pack::{FastCount, ImageForm};

use crate::quantity;

/// The encoding of images.
#[derive(Debug, ClapArgs)]
pub(crate) struct ImageArgs {
    /// Form of JPEGs: jpeg, fast or fast-raw [default: as they are]
    #[arg(
        long,
        value_name = "FORM",
        hide_possible_values = true,
        help_heading = "Shards"
    )]
    images: Option<Images>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Images {
    Jpeg,
    Fast,
    FastRaw,
}

impl ImageArgs {
    /// Returns the encoding; `None` without the option.
    pub(crate) fn form(&self) -> Option<ImageForm> {
        self.images.map(|images| match images {
            Images::Jpeg => ImageForm::Jpeg,
            Images::Fast => ImageForm::Fast(FastCoding::Coded),
            Images::FastRaw => ImageForm::Fast(FastCoding::Raw),
        })
    }
}

/// Returns a text with the counts of fast images; `None` if both counts are 0.
pub(crate) fn fast_in_words(count: &FastCount) -> Option<String> {
    (count.images + count.left > 0).then(|| {
        format!(
            "{} in the fast encoding, {} left as they are",
            quantity::counted(count.images, "image", "images"),
            quantity::count(count.left),
        )
    })
}
