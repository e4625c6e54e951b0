//! Files of byte strings (values): encoded images, Caffe datums, or records.

use super::conversion::Conversion;
use super::datum::Datum;
use super::label_value::from_zero;
use super::{
    ForeignSchema, RecordFile, RecordInput, RecordSource, RecordSplit, SourceFacts, order_by_sizes,
};
use crate::archive::{Archive, FileVersion};
use crate::error::{Error, Result};
use forebay_shard::example::{FeatureKind, RecordFeatures, feature_kinds};
use forebay_shard::manifest::{EpochOrder, FeatureEntry};
use forebay_shard::schema::{self, Column, ColumnType, ColumnValue, Schema};
use forebay_shard::{ExampleBuilder, ExampleView};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A file of values, such as an LMDB database.
pub(super) trait ValueFile: Sized {
    /// Opens the file.
    fn open(archive: Archive) -> Result<Self>;

    /// Returns the identity of the file at the time of opening.
    fn version(&self) -> &FileVersion;

    /// Reads the first value; `None` if the file has no values.
    fn first(&self) -> Result<Option<Vec<u8>>>;

    /// Wraps the file so that its values are read as records.
    fn into_records(self, values: Arc<Values>) -> Box<dyn RecordFile>;
}

/// Opens the files of each split. The kind of the values is decided by the split whose first value has the most features:
/// records of a test split may lack the label.
pub(super) fn open<F: ValueFile>(
    files: BTreeMap<String, Vec<(String, Archive)>>,
    input: &RecordInput,
    conversion: Option<Conversion>,
    root: &Path,
) -> Result<RecordSource> {
    let mut opened: Vec<(String, Vec<F>)> = Vec::new();
    let mut hasher = blake3::Hasher::new();
    for (split, archives) in files {
        let mut files = Vec::new();
        for (_, archive) in archives {
            let file = F::open(archive)?;
            file.version().add_to(&split, &mut hasher);
            files.push(file);
        }
        opened.push((split, files));
    }
    let mut first = None;
    let mut most = 0;
    for (_, files) in &opened {
        for file in files {
            if let Some(value) = file.first()? {
                let features = feature_kinds(&value).len();
                if first.is_none() || features > most {
                    (first, most) = (Some((file, value)), features);
                }
                break;
            }
        }
    }
    let values = match &first {
        Some((file, value)) => Values::decide(value, input, conversion.as_ref())
            .map_err(|what| Error::source(&file.version().path, what))?,
        None => Values::Image,
    };
    let first = first.map(|(_, value)| value);
    let mut facts = values.facts(input, first, conversion, root, &hasher);
    let values = Arc::new(values);
    let splits = opened.into_iter().map(|(name, files)| {
        let records = |file: F| file.into_records(Arc::clone(&values));
        RecordSplit {
            name,
            files: files.into_iter().map(records).collect(),
        }
    });
    let splits: Vec<RecordSplit> = splits.collect();
    if facts.order.block_records.is_empty() {
        facts.order = order_by_sizes(&splits);
    }
    Ok(RecordSource { splits, facts })
}

/// The kind of the values, decided by the first value of a split.
#[derive(Debug)]
pub(super) enum Values {
    /// Encoded images.
    Image,
    /// Caffe datums.
    Datum { label_base: i64 },
    /// Records of another tool.
    Foreign(Box<ForeignSchema>),
    /// Records that Forebay wrote, with these features.
    Own(Box<RecordFeatures>),
}

impl Values {
    fn decide(
        value: &[u8],
        input: &RecordInput,
        conversion: Option<&Conversion>,
    ) -> std::result::Result<Self, String> {
        if let Some(conversion) = conversion {
            return Ok(Self::Own(Box::new(conversion.record_features.clone())));
        }
        if forebay_image::sniff(value).is_some() {
            return Ok(Self::Image);
        }
        if is_example(value) {
            return Ok(Self::Foreign(Box::new(input.features.decide(Some(value))?)));
        }
        if Datum::parse(value).is_some_and(|datum| datum.is_image()) {
            let label_base = input.features.label_base.unwrap_or(0);
            return Ok(Self::Datum { label_base });
        }
        // A pickle: this prefix from protocol 2 on, and this suffix in every protocol.
        if value.starts_with(b"\x80") && value.ends_with(b".") {
            return Err("its values are pickled, and reading them would execute what they say: write the encoded images, or Examples, into a database".to_owned());
        }
        Err("its first value is neither an encoded image, nor a datum of Caffe, nor a tensorflow.Example".to_owned())
    }

    fn label_base(&self) -> i64 {
        match self {
            Self::Datum { label_base } => *label_base,
            Self::Foreign(schema) => schema.label_base,
            Self::Image | Self::Own(_) => 0,
        }
    }

    /// Returns whether values are records and need no encoding.
    pub(super) fn are_records(&self) -> bool {
        matches!(self, Self::Foreign(_) | Self::Own(_))
    }

    /// Returns the facts about all records; `first` is the value that decided the kind.
    fn facts(
        &self,
        input: &RecordInput,
        first: Option<Vec<u8>>,
        conversion: Option<Conversion>,
        root: &Path,
        files: &blake3::Hasher,
    ) -> SourceFacts {
        let mut columns = vec![Column::new(schema::IMAGE, ColumnType::Image)];
        if matches!(self, Values::Datum { .. }) {
            columns.push(Column::new(schema::LABEL, ColumnType::Label));
        }
        let schema = Schema::new(columns).unwrap_or_default();
        let mut identity = vec![("label_base", self.label_base().to_string())];
        if let Values::Foreign(schema) = self {
            let RecordFeatures { image, label, .. } = &schema.features;
            identity.push(("image_feature", image.clone()));
            identity.push(("label_feature", label.clone()));
        }
        let mut facts = SourceFacts::new(self.label_base(), schema, files, identity);
        if let Values::Foreign(schema) = self {
            facts.record_features = schema.features.clone();
            facts.schema = Schema::default();
            facts.foreign = Some(((**schema).clone(), root.to_path_buf()));
            let kinds: BTreeMap<String, (FeatureKind, bool)> =
                first.map(|first| feature_kinds(&first)).unwrap_or_default();
            let kinds = kinds.into_iter();
            facts.features = kinds
                .map(|(name, (kind, is_one))| FeatureEntry::new(name, kind, !is_one))
                .collect();
        }
        let mut facts = facts.with_conversion(conversion.as_ref(), EpochOrder::default);
        facts.schema = without(facts.schema, input);
        facts
    }
}

impl Values {
    /// Encodes a value that is not a record yet, and returns its label.
    pub(super) fn encode(
        &self,
        value: &[u8],
        record: &mut Vec<u8>,
    ) -> std::result::Result<Option<i64>, String> {
        let own: Vec<u8>;
        let (image, label) = match self {
            Self::Image => match forebay_image::sniff(value) {
                Some(_) => (value, None),
                None => return Err("its value is no image, as the first one is".to_owned()),
            },
            Self::Datum { label_base } => {
                let datum = Datum::parse(value).filter(Datum::is_image);
                let datum = datum.ok_or("its value is no datum of Caffe, as the first one is")?;
                own = datum.image()?;
                let label = datum.label.unwrap_or(-1);
                from_zero(label, *label_base)?;
                (own.as_slice(), Some(label))
            }
            Self::Foreign(schema) => {
                schema.check(value)?;
                return label(value, &schema.features);
            }
            Self::Own(features) => return label(value, features),
        };
        let mut builder = ExampleBuilder::new();
        let columns = [
            (
                Column::new(schema::IMAGE, ColumnType::Image),
                Some(ColumnValue::Bytes(image)),
            ),
            (
                Column::new(schema::LABEL, ColumnType::Label),
                label.map(ColumnValue::Int),
            ),
        ];
        let features = columns.each_ref().map(|(column, _)| column.features());
        for ((column, value), features) in columns.iter().zip(&features) {
            if let Some(value) = value {
                let added = column.add(features, value, &mut builder);
                added.map_err(|error| error.to_string())?;
            }
        }
        builder.encode_into(record);
        Ok(label)
    }
}

fn label(record: &[u8], features: &RecordFeatures) -> std::result::Result<Option<i64>, String> {
    let example = ExampleView::parse(record).map_err(|error| error.to_string())?;
    Ok(features.label(example).ok().flatten())
}

fn is_example(value: &[u8]) -> bool {
    ExampleView::parse(value).is_ok_and(|example| example.iter().next().is_some())
}

/// Returns the schema without the columns that options drop.
fn without(schema: Schema, input: &RecordInput) -> Schema {
    let is_kept = |column: &&Column| {
        let mut features = column.features().into_iter();
        features.all(|feature| !input.drop_features.contains(&feature.name))
    };
    Schema::new(schema.columns().iter().filter(is_kept).cloned().collect()).unwrap_or_default()
}
