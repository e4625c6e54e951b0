//! `tensorflow.Example` without copies: a view that borrows the record, and a builder that writes
//! the same bytes as TensorFlow's deterministic serialization.

mod builder;
mod edit;
mod kinds;
mod record_features;
mod view;
mod wire;

pub use builder::ExampleBuilder;
pub use edit::{FeatureEdit, edit_features, set_bytes};
pub use kinds::feature_kinds;
pub use record_features::{ImageRecord, RecordFeatures, image_and_label, image_record};
pub use view::{ExampleView, FeatureKind, FeatureView, Features};

/// The feature that holds an encoded image.
pub const IMAGE_ENCODED: &str = "image/encoded";
/// The feature that holds a class label.
pub const IMAGE_LABEL: &str = "image/class/label";
/// The feature that holds a fast image, a JPEG in another encoding, in place of the feature with the
/// image.
pub const IMAGE_FAST: &str = "image/fast";
/// The feature that holds the recipe for restoring the progressive JPEG from which the stored
/// baseline one was transcoded.
pub const IMAGE_PROGRESSIVE: &str = "image/progressive";
/// The feature that holds the seek points of a JPEG.
pub const IMAGE_SEEK_POINTS: &str = "image/seek_points";

/// Why bytes are not a `tensorflow.Example`, or a feature does not have the requested kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExampleError {
    /// The protobuf encoding is invalid.
    #[error("byte {offset}: {problem}")]
    Encoding {
        /// Offset in the record.
        offset: usize,
        /// The problem at this byte.
        problem: &'static str,
    },
    /// A feature does not have the requested kind.
    #[error("feature {name}: expected {expected}, found {found}")]
    Kind {
        /// The feature's name.
        name: String,
        /// The requested kind.
        expected: FeatureKind,
        /// The actual kind.
        found: FeatureKind,
    },
    /// A feature that should have one image or label has several.
    #[error("feature {name} holds {values} values, expected one")]
    Several {
        /// The feature's name.
        name: String,
        /// The number of values.
        values: usize,
    },
    /// A value does not fit the type of its column.
    #[error("column {name}: {problem}")]
    Column {
        /// The column's name.
        name: String,
        /// The problem.
        problem: String,
    },
    /// A required feature is missing.
    #[error("feature {name} is missing")]
    Missing {
        /// The feature's name.
        name: String,
    },
}
