//! `tensorflow.Example` without copies: a view that borrows the record, and a
//! builder that writes the same bytes as TensorFlow's deterministic
//! serialisation.
//!
//! For owned values there are the types of `forebay_proto::tensorflow`.

mod builder;
mod edit;
mod kinds;
mod record_features;
mod view;
mod wire;

pub use builder::ExampleBuilder;
pub use edit::set_bytes;
pub use kinds::feature_kinds;
pub use record_features::{ImageRecord, RecordFeatures, image_and_label, image_record};
pub use view::{ExampleView, FeatureKind, FeatureView, Features};

/// The feature that holds an encoded image.
pub const IMAGE_ENCODED: &str = "image/encoded";
/// The feature that holds a class label.
pub const IMAGE_LABEL: &str = "image/class/label";
/// The feature that tells how to make a progressive JPEG again of the baseline one that is stored.
pub const IMAGE_PROGRESSIVE: &str = "image/progressive";
/// The feature that holds the seek points of a JPEG.
pub const IMAGE_SEEK_POINTS: &str = "image/seek_points";

/// Why bytes are not a `tensorflow.Example`, or a feature not what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExampleError {
    /// The protobuf encoding is broken.
    #[error("byte {offset}: {problem}")]
    Encoding {
        /// Byte of the record.
        offset: usize,
        /// The problem at this byte.
        problem: &'static str,
    },
    /// A feature has another kind than was asked for.
    #[error("feature {name}: expected {expected}, found {found}")]
    Kind {
        /// The feature's name.
        name: String,
        /// The kind that was asked for.
        expected: FeatureKind,
        /// The kind it has.
        found: FeatureKind,
    },
    /// A feature that holds one image or label in other records holds several.
    #[error("feature {name} holds {values} values, expected one")]
    Several {
        /// The feature's name.
        name: String,
        /// How many it holds.
        values: usize,
    },
    /// A feature that has to be there is not.
    #[error("feature {name} is missing")]
    Missing {
        /// The feature's name.
        name: String,
    },
}
