//! Options that name the features to read from records of another tool.

use clap::Args;
use forebay_pack::{ClassOrder, ForeignRecords};
use std::path::PathBuf;

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

    /// Feature that holds the label: integers, one-hot lists or names of classes [default: image/class/label, label, ...]
    #[arg(long, value_name = "FEATURE")]
    label_feature: Option<String>,

    /// Records have no labels, whatever their features are called
    #[arg(long, conflicts_with_all = ["label_feature", "classes", "class_order"])]
    no_labels: bool,

    /// A list of the classes in the order of their labels, one a line [default: the names that occur]
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,

    /// Order of classes that are numbered by their names: text, or natural (2 before 10)
    #[arg(long, value_name = "ORDER", default_value = "text", value_parser = parse_order, hide_possible_values = true)]
    class_order: ClassOrder,

    /// Bytes feature that holds the key [default: image/filename, file_name, ...]
    #[arg(long, value_name = "FEATURE")]
    key_feature: Option<String>,

    /// Label of the first class [default: 1 for image/class/label, as TensorFlow's ImageNet tool writes it, else 0]
    #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(i64).range(0..=1))]
    label_base: Option<i64>,

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
        records.without_labels = self.no_labels;
        records.classes.clone_from(&self.classes);
        records.class_order = self.class_order;
        records.label_base = self.label_base;
        records.without_images = self.allow_no_image;
        records
    }
}

/// Parses the name of a class order.
fn parse_order(text: &str) -> Result<ClassOrder, String> {
    ClassOrder::named(text).ok_or_else(|| "give text or natural".to_owned())
}
