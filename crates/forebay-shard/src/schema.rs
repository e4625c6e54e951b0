//! Columns, which give the features of a record a meaning for readers.
//!
//! A record is a `tensorflow.Example` with features of bytes, integers and floats. A [`Schema`]
//! names the columns that these features form, and gives each a [`ColumnType`]. It reads the
//! columns of a record ([`Schema::column`], [`Column::read`]) and adds them to a new record
//! ([`Column::add`]), so that all formats, writers and loaders agree.

mod column_type;
mod feature;
mod values;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use column_type::{ColumnType, NumberType, ParseColumnTypeError};
pub use feature::FeatureEntry;
pub use values::{ColumnValue, polygons};

use crate::example::{
    FeatureKind, IMAGE_FAST, IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS, RecordFeatures,
};

/// The name of the column with the image that loaders decode.
pub const IMAGE: &str = "image";
/// The name of the column with the class label.
pub const LABEL: &str = "label";
/// The name of the column with the boxes of objects.
pub const BOXES: &str = "boxes";
/// The prefix of the features that hold the boxes, as TensorFlow names them.
pub const BOXES_FEATURE: &str = "image/object/bbox";
/// Another feature for the labels of the boxes, of TensorFlow's object detection tools.
pub const OBJECT_LABELS: &str = "image/object/class/label";
/// The sides of a box, each a feature after the prefix of a column.
pub const BOX_SIDES: [&str; 4] = ["/xmin", "/ymin", "/xmax", "/ymax"];
/// The features that Forebay adds for its own use.
const OWN_FEATURES: [&str; 3] = [IMAGE_FAST, IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS];
/// The feature with the segmentation of each object, as `forebay convert` writes it from COCO.
const SEGMENTATION: &str = "segmentation";
/// Maximum size of a JSON document in a column, in bytes.
pub const MAX_JSON_BYTES: usize = 16 << 20;
/// Maximum length of the name of a column, in bytes.
pub const MAX_NAME_BYTES: usize = 200;

/// One column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Name, as in a batch: "caption".
    pub name: String,
    /// Type of its values.
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    /// The feature that holds the values, or the prefix of several.
    pub feature: String,
    /// The feature with the labels of boxes, if it is not "`feature`/label".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_feature: Option<String>,
}

impl Column {
    /// Creates a column with the standard feature names: TensorFlow's for [`IMAGE`], [`LABEL`] and
    /// [`BOXES`], and the name of the column for others.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> Self {
        let name = name.into();
        let standard = RecordFeatures::standard();
        let feature = match (name.as_str(), &column_type) {
            (IMAGE, ColumnType::Image) => standard.image.clone(),
            (LABEL, ColumnType::Label) => standard.label.clone(),
            (BOXES, ColumnType::Boxes) => BOXES_FEATURE.to_owned(),
            _ => name.clone(),
        };
        Self {
            name,
            column_type,
            feature,
            label_feature: None,
        }
    }

    /// Returns the features of a record that hold this column, with their kinds.
    pub fn features(&self) -> Vec<FeatureEntry> {
        let one = |name: String, kind, shape| FeatureEntry { name, kind, shape };
        let list = || vec![None];
        let own = || self.feature.clone();
        match &self.column_type {
            ColumnType::Image
            | ColumnType::Text
            | ColumnType::Json
            | ColumnType::Bytes
            | ColumnType::Mask => vec![one(own(), FeatureKind::Bytes, vec![])],
            ColumnType::Texts | ColumnType::Polygons => {
                vec![one(own(), FeatureKind::Bytes, list())]
            }
            ColumnType::Tensor { shape, .. } => {
                let mut features = vec![one(own(), FeatureKind::Bytes, vec![])];
                if shape.contains(&None) {
                    let dims = vec![Some(shape.len() as u64)];
                    features.push(one(self.shape_feature(), FeatureKind::Int64, dims));
                }
                features
            }
            ColumnType::Label | ColumnType::Int => vec![one(own(), FeatureKind::Int64, vec![])],
            ColumnType::Float => vec![one(own(), FeatureKind::Float, vec![])],
            ColumnType::Labels => vec![one(own(), FeatureKind::Int64, list())],
            ColumnType::Vector { len, number } => {
                vec![one(own(), number.kind(), vec![*len])]
            }
            ColumnType::Boxes => {
                let side = |side: &str| one(own() + side, FeatureKind::Float, list());
                let mut features: Vec<_> = BOX_SIDES.iter().map(|name| side(name)).collect();
                features.push(one(self.labels_feature(), FeatureKind::Int64, list()));
                features
            }
            ColumnType::Keypoints => vec![
                one(own() + "/x", FeatureKind::Float, list()),
                one(own() + "/y", FeatureKind::Float, list()),
                one(own() + "/visibility", FeatureKind::Int64, list()),
            ],
        }
    }

    fn labels_feature(&self) -> String {
        let own = || format!("{}/label", self.feature);
        self.label_feature.clone().unwrap_or_else(own)
    }

    fn shape_feature(&self) -> String {
        format!("{}/shape", self.feature)
    }
}

/// The columns of a dataset's records, in the order in which they are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schema {
    columns: Vec<Column>,
}

impl Schema {
    /// Creates a schema.
    ///
    /// # Errors
    /// The problem: a name that is empty, too long or given twice, or a feature of two columns.
    pub fn new(columns: Vec<Column>) -> Result<Self, String> {
        let schema = Self { columns };
        schema.check()?;
        Ok(schema)
    }

    /// Infers the columns of records from their features, for datasets whose manifest lists no columns.
    ///
    /// Image, label and boxes get the names of [`Column::new`]. Every other feature becomes a column
    /// with the name of the feature, of bytes, integers or floats; a list if a record may have several values.
    /// Features that Forebay adds for its own use, such as seek points, do not become columns.
    pub fn infer(features: &[FeatureEntry], record_features: &RecordFeatures) -> Self {
        let has = |name: &str| features.iter().any(|feature| feature.name == name);
        let mut columns = Vec::new();
        let mut taken: BTreeSet<String> = OWN_FEATURES.map(String::from).into();
        let mut add = |column: Column, taken: &mut BTreeSet<String>| {
            taken.extend(column.features().into_iter().map(|feature| feature.name));
            columns.push(column);
        };
        for (name, feature, column_type) in [
            (IMAGE, &record_features.image, ColumnType::Image),
            (LABEL, &record_features.label, ColumnType::Label),
        ] {
            if has(feature) {
                let mut column = Column::new(name, column_type);
                column.feature.clone_from(feature);
                add(column, &mut taken);
            }
        }
        if BOX_SIDES
            .iter()
            .all(|side| has(&format!("{BOXES_FEATURE}{side}")))
        {
            let mut boxes = Column::new(BOXES, ColumnType::Boxes);
            if !has(&boxes.labels_feature()) && has(OBJECT_LABELS) {
                boxes.label_feature = Some(OBJECT_LABELS.to_owned());
            }
            add(boxes, &mut taken);
        }
        for feature in features {
            let one = feature.shape.is_empty();
            let len = feature.shape.first().copied().flatten();
            let vector = |number| ColumnType::Vector { len, number };
            let column_type = match (feature.kind, one) {
                (FeatureKind::Bytes, true) => ColumnType::Bytes,
                (FeatureKind::Int64, true) => ColumnType::Int,
                (FeatureKind::Float, true) => ColumnType::Float,
                (FeatureKind::Int64, false) => vector(NumberType::Int64),
                (FeatureKind::Float, false) => vector(NumberType::Float32),
                // Files of other formats hold lists of byte strings as features: see `with_lists`.
                (FeatureKind::Bytes | FeatureKind::Unset, _) => continue,
            };
            if !taken.contains(&feature.name) {
                add(Column::new(feature.name.clone(), column_type), &mut taken);
            }
        }
        Self { columns }
    }

    /// Adds a column for each list of byte strings that has none: `polygons` for the segmentation of boxes, `texts` for others.
    #[must_use]
    pub fn with_lists(mut self, features: &[FeatureEntry]) -> Self {
        let mut taken: BTreeSet<String> = self.features().into_iter().map(|f| f.name).collect();
        taken.extend(OWN_FEATURES.map(String::from));
        let has_boxes = self.column(BOXES).is_some();
        let is_list = |f: &&FeatureEntry| f.kind == FeatureKind::Bytes && !f.shape.is_empty();
        for FeatureEntry { name, .. } in features.iter().filter(is_list) {
            if !taken.contains(name) && self.column(name).is_none() {
                let column_type = match has_boxes && name == SEGMENTATION {
                    true => ColumnType::Polygons,
                    false => ColumnType::Texts,
                };
                self.columns.push(Column::new(name, column_type));
            }
        }
        self
    }

    /// Returns the column that a reader asks for: its name, or `NAME:TYPE` to read the same features as another type.
    ///
    /// # Errors
    /// Why the values cannot be of that type; `None` if there is no such column.
    pub fn requested(&self, text: &str) -> Result<Column, Option<String>> {
        if let Some(column) = self.column(text) {
            return Ok(column.clone());
        }
        let (name, column_type) = text.rsplit_once(':').ok_or(None)?;
        let stored = self.column(name).ok_or(None)?;
        let column_type: ColumnType = column_type
            .parse()
            .map_err(|error: ParseColumnTypeError| Some(error.to_string()))?;
        let read = Column {
            name: text.to_owned(),
            column_type,
            ..stored.clone()
        };
        let kinds = |column: &Column| -> Vec<_> {
            let features = column.features().into_iter();
            features
                .map(|feature| (feature.name, feature.kind))
                .collect()
        };
        let is_image = stored.column_type == ColumnType::Image;
        if is_image || text.len() > MAX_NAME_BYTES || kinds(&read) != kinds(stored) {
            let (found, read) = (&stored.column_type, &read.column_type);
            return Err(Some(format!(
                "a type that is stored in the same way: {name:?} is {found}, which cannot be read as {read}"
            )));
        }
        Ok(read)
    }

    /// Returns the columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns whether it has no columns.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Returns the column with this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// Returns the features of all columns, sorted by name.
    pub fn features(&self) -> Vec<FeatureEntry> {
        let mut features: Vec<_> = self.columns.iter().flat_map(Column::features).collect();
        features.sort_by(|a, b| a.name.cmp(&b.name));
        features
    }

    /// Checks names and features: see [`new`](Self::new).
    pub(crate) fn check(&self) -> Result<(), String> {
        let (mut names, mut features) = (BTreeSet::new(), BTreeSet::new());
        for column in &self.columns {
            let name = &column.name;
            if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
                return Err(format!(
                    "column {name:?}: a name has 1 to {MAX_NAME_BYTES} bytes and no control characters"
                ));
            }
            if !names.insert(name) {
                return Err(format!("column {name:?} is given twice"));
            }
            for feature in column.features() {
                if !features.insert(feature.name.clone()) {
                    return Err(format!(
                        "column {name:?}: feature {:?} belongs to another column",
                        feature.name
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
