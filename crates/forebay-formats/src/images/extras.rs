//! Data about an image in addition to its file and class: boxes, and columns of a file of labels.

use super::boxes::{BoundingBox, BoxIndex};
use crate::annotation_size::SizeFit;
use crate::finding::{Reason, Refusal};
use crate::key_path::stem;
use crate::labels::Columns;
use forebay_shard::ExampleBuilder;
use forebay_shard::example::FeatureKind;
use serde::{Deserialize, Serialize};

/// Additional data about all images.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ExtraFeatures {
    /// Boxes; `None` if records have no features for boxes.
    pub boxes: Option<BoxIndex>,
    /// The columns of a file of labels.
    pub columns: Columns,
}

/// Additional data about one image.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extras<'a> {
    /// The boxes of all images.
    pub boxes: Option<&'a BoxIndex>,
    /// The columns, and the row of the image.
    pub row: Option<(&'a Columns, u32)>,
}

impl Extras<'_> {
    /// Returns whether there is no additional data.
    pub fn is_none(&self) -> bool {
        self.boxes.is_none() && self.row.is_none()
    }
}

impl Extras<'_> {
    /// Checks that the boxes of the image with this name fit its size. Returns a remark if the boxes fit only after scaling by
    /// one factor.
    ///
    /// # Errors
    /// [`Reason::BadAnnotation`] for boxes of an image with other proportions.
    pub fn check_size(&self, name: &[u8], size: [u32; 2]) -> Result<Option<Refusal>, Refusal> {
        let fit = self.boxes.map(|boxes| boxes.compare_size(stem(name), size));
        match fit.transpose() {
            Ok(Some(SizeFit::Scaled)) => Ok(Some((Reason::ScaledBoxes, String::new()))),
            Ok(_) => Ok(None),
            Err(what) => Err((Reason::BadAnnotation, what)),
        }
    }
}

impl<'a> Extras<'a> {
    /// Adds the features to the record of the image with this name and label.
    pub fn add_to(&self, name: &[u8], label: i64, example: &mut ExampleBuilder<'a>) {
        if let Some(boxes) = self.boxes {
            let boxes = boxes.get(stem(name));
            let side =
                |side: fn(&BoundingBox) -> f32| -> Vec<f32> { boxes.iter().map(side).collect() };
            example
                .add_floats("image/object/bbox/xmin", &side(|b| b.xmin))
                .add_floats("image/object/bbox/xmax", &side(|b| b.xmax))
                .add_floats("image/object/bbox/ymin", &side(|b| b.ymin))
                .add_floats("image/object/bbox/ymax", &side(|b| b.ymax))
                // As in TensorFlow's tool: the label of the image, repeated for each box.
                .add_int64s("image/object/bbox/label", &vec![label; boxes.len()]);
        }
        if let Some((columns, row)) = self.row {
            columns.add_to(row, example);
        }
    }
}

impl ExtraFeatures {
    /// Returns whether data that was read from a file is consistent; `rows` are those of images in the file of labels.
    pub fn is_sound(&self, mut rows: impl Iterator<Item = u32>) -> bool {
        self.boxes.as_ref().is_none_or(BoxIndex::is_sound)
            && match self.columns.images() {
                Some(images) => rows.all(|row| row < images),
                None => false,
            }
    }

    /// Returns the additional features of records: name, kind, and whether a record may have more or fewer than one value.
    pub fn features(&self) -> Vec<(String, FeatureKind, bool)> {
        let mut features = Vec::new();
        if self.boxes.is_some() {
            for side in ["xmin", "xmax", "ymin", "ymax"] {
                features.push((
                    format!("image/object/bbox/{side}"),
                    FeatureKind::Float,
                    true,
                ));
            }
            features.push((
                "image/object/bbox/label".to_owned(),
                FeatureKind::Int64,
                true,
            ));
        }
        let columns = self.columns.features();
        features.extend(columns.map(|(name, kind, list)| (name.to_owned(), kind, list)));
        features
    }
}
