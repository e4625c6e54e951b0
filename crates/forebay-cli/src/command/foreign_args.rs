//! The options that say which features of another tool's records to read.

use clap::Args;
use forebay_pack::ForeignRecords;

/// Records of another tool.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Records of another tool")]
pub(crate) struct ForeignArgs {
    /// All files belong to this split [default: as their names say]
    #[arg(long, value_name = "NAME")]
    pub(crate) split: Option<String>,

    /// Bytes feature that holds the encoded image [default: image/encoded, image, or what holds one]
    #[arg(long, value_name = "FEATURE")]
    image_feature: Option<String>,

    /// Integer feature that holds the label [default: image/class/label, label, class, ...]
    #[arg(long, value_name = "FEATURE")]
    label_feature: Option<String>,

    /// Bytes feature that holds the key [default: image/filename, file_name, ...]
    #[arg(long, value_name = "FEATURE")]
    key_feature: Option<String>,

    /// Label of the first class [default: 1 for image/class/label, as TensorFlow's ImageNet tool writes it, else 0]
    #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(i64).range(0..=1))]
    label_base: Option<i64>,

    /// Use the first image and label of records that hold several, instead of refusing them
    #[arg(long)]
    first_of_several: bool,

    /// Accept records without an image, which no loader reads
    #[arg(long)]
    allow_no_image: bool,
}

impl ForeignArgs {
    pub(crate) fn records(&self) -> ForeignRecords {
        let mut records = ForeignRecords::default();
        records.image_feature.clone_from(&self.image_feature);
        records.label_feature.clone_from(&self.label_feature);
        records.key_feature.clone_from(&self.key_feature);
        records.label_base = self.label_base;
        records.first_of_several = self.first_of_several;
        records.without_images = self.allow_no_image;
        records
    }
}
