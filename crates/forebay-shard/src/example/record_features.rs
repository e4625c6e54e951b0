//! The features of a record that hold its image and its label.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::view::walk;
use super::{ExampleError, ExampleView, IMAGE_ENCODED, IMAGE_FAST, IMAGE_LABEL, IMAGE_SEEK_POINTS};

/// Image, seek points and label of a record; see [`RecordFeatures::image_record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageRecord<'a> {
    /// The encoded image; a fast image if the record has a feature [`IMAGE_FAST`].
    pub image: &'a [u8],
    /// The image's seek points, not validated: the decoder does that.
    pub seek_points: Option<&'a [u8]>,
    /// The class label as stored.
    pub label: Option<i64>,
}

/// Names of the features that hold image and label, as given in the manifest of a dataset.
///
/// The default names are those of TensorFlow's ImageNet tool, which `forebay pack` uses. Other
/// tools write other names: TensorFlow Datasets writes `image` and `label`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordFeatures {
    /// The bytes feature that holds the encoded image.
    pub image: String,
    /// The int64 feature that holds the label.
    pub label: String,
    /// Whether to use the first value if a record has several images or labels. Otherwise they are
    /// an error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_of_several: bool,
}

impl Default for RecordFeatures {
    fn default() -> Self {
        Self {
            image: IMAGE_ENCODED.to_owned(),
            label: IMAGE_LABEL.to_owned(),
            first_of_several: false,
        }
    }
}

static STANDARD: LazyLock<RecordFeatures> = LazyLock::new(RecordFeatures::default);

impl RecordFeatures {
    /// Returns the default names.
    pub fn standard() -> &'static Self {
        &STANDARD
    }

    /// Returns whether these are the default names.
    pub fn is_standard(&self) -> bool {
        *self == *STANDARD
    }

    /// Returns image, seek points and label of a record, in one pass over it and without copies.
    ///
    /// Seek points are optional: a feature of that name with another kind is ignored.
    ///
    /// # Errors
    /// If the record is not an Example, has no image, or has an image or a label of another kind or
    /// several of them.
    ///
    /// ```
    /// use forebay_shard::{ExampleBuilder, example::RecordFeatures};
    ///
    /// let mut builder = ExampleBuilder::new();
    /// builder.add_bytes("image", b"jpeg").add_int64("label", 3);
    /// let record = builder.to_vec();
    /// let features = RecordFeatures {
    ///     image: "image".to_owned(),
    ///     label: "label".to_owned(),
    ///     ..RecordFeatures::default()
    /// };
    /// let record = features.image_record(&record)?;
    /// assert_eq!((record.image, record.label), (&b"jpeg"[..], Some(3)));
    /// # Ok::<(), forebay_shard::ExampleError>(())
    /// ```
    pub fn image_record<'a>(&self, record: &'a [u8]) -> Result<ImageRecord<'a>, ExampleError> {
        let (mut image, mut fast, mut seek_points, mut label) = (None, None, None, None);
        let mut features = walk(record);
        while let Some(feature) = features.step()? {
            let name = feature.name();
            if name == self.image {
                image = feature.one_bytes(self.first_of_several)?;
            } else if name == IMAGE_FAST {
                fast = feature.one_bytes(false)?;
            } else if name == IMAGE_SEEK_POINTS {
                seek_points = feature.one_bytes(true).ok().flatten();
            } else if name == self.label {
                label = feature.one_int64(self.first_of_several)?;
            }
        }
        match image.or(fast) {
            Some(image) => Ok(ImageRecord {
                image,
                seek_points,
                label,
            }),
            None => Err(ExampleError::Missing {
                name: self.image.clone(),
            }),
        }
    }

    /// Returns the encoded image; `None` if the record has none. It is a fast image if the record has a feature
    /// [`IMAGE_FAST`] instead of the image feature.
    ///
    /// # Errors
    /// If the feature holds numbers or several images, or is invalid.
    pub fn image<'a>(&self, example: ExampleView<'a>) -> Result<Option<&'a [u8]>, ExampleError> {
        let feature = example.get(&self.image);
        let image = feature.map_or(Ok(None), |feature| feature.one_bytes(self.first_of_several));
        match image? {
            None => example
                .get(IMAGE_FAST)
                .map_or(Ok(None), |feature| feature.one_bytes(false)),
            image => Ok(image),
        }
    }

    /// Returns the label as stored; `None` if the record has none.
    ///
    /// # Errors
    /// If the feature does not hold integers, holds several labels, or is invalid.
    pub fn label(&self, example: ExampleView<'_>) -> Result<Option<i64>, ExampleError> {
        let feature = example.get(&self.label);
        feature.map_or(Ok(None), |feature| feature.one_int64(self.first_of_several))
    }
}

/// Returns image, seek points and label of a record with the default names: see [`RecordFeatures::image_record`].
///
/// # Errors
/// As [`RecordFeatures::image_record`].
///
/// ```
/// # let mut builder = forebay_shard::ExampleBuilder::new();
/// # builder.add_bytes("image/encoded", b"jpeg").add_bytes("image/seek_points", b"points");
/// # let record = builder.to_vec();
/// let record = forebay_shard::image_record(&record)?;
/// assert_eq!(record.image, b"jpeg");
/// assert_eq!(record.seek_points, Some(&b"points"[..]));
/// assert_eq!(record.label, None);
/// # Ok::<(), forebay_shard::ExampleError>(())
/// ```
pub fn image_record(record: &[u8]) -> Result<ImageRecord<'_>, ExampleError> {
    STANDARD.image_record(record)
}

/// Returns the encoded image and the label of a record, as [`image_record`] does.
///
/// # Errors
/// As [`image_record`].
///
/// ```
/// # let mut builder = forebay_shard::ExampleBuilder::new();
/// # builder.add_bytes("image/encoded", b"jpeg");
/// # let record = builder.to_vec();
/// let (image, label) = forebay_shard::image_and_label(&record)?;
/// assert_eq!((image, label), (&b"jpeg"[..], None));
/// # Ok::<(), forebay_shard::ExampleError>(())
/// ```
pub fn image_and_label(record: &[u8]) -> Result<(&[u8], Option<i64>), ExampleError> {
    image_record(record).map(|record| (record.image, record.label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExampleBuilder;

    #[test]
    fn a_fast_image_replaces_the_image() {
        let features = RecordFeatures {
            image: "picture".to_owned(),
            ..RecordFeatures::default()
        };
        for (names, expected) in [
            (&["image/fast"][..], "image/fast"),
            (&["image/fast", "picture"], "picture"),
        ] {
            let mut builder = ExampleBuilder::new();
            for name in names {
                builder.add_bytes(name, name.as_bytes());
            }
            let record = builder.to_vec();
            let found = features.image_record(&record).unwrap();
            assert_eq!(found.image, expected.as_bytes());
            let view = ExampleView::parse(&record).unwrap();
            assert_eq!(features.image(view), Ok(Some(expected.as_bytes())));
        }
    }

    #[test]
    fn several_images_or_labels_are_refused_by_default() {
        let mut builder = ExampleBuilder::new();
        builder
            .add_bytes_list("image", &[b"one", b"two"])
            .add_int64s("label", &[4, 5]);
        let record = builder.to_vec();
        let mut features = RecordFeatures {
            image: "image".to_owned(),
            label: "label".to_owned(),
            first_of_several: false,
        };
        let error = features.image_record(&record).unwrap_err();
        assert_eq!(
            error.to_string(),
            "feature image holds 2 values, expected one"
        );
        let view = ExampleView::parse(&record).unwrap();
        assert!(features.image(view).is_err() && features.label(view).is_err());
        features.first_of_several = true;
        let found = features.image_record(&record).unwrap();
        assert_eq!((found.image, found.label), (&b"one"[..], Some(4)));
        assert_eq!(features.image(view), Ok(Some(&b"one"[..])));
        assert_eq!(features.label(view), Ok(Some(4)));
    }
}
