//! Finds the column that holds the labels in records of other tools, and converts its values to class numbers.
//!
//! Readers accept columns of any type, and return a label only if it is an integer. All other labels are handled here for all
//! formats: text, floats and one-hot lists become integers, and class names are numbered in sorted order. A column with the
//! name of a label whose values cannot be labels is an error, so that labels are never dropped silently.

use super::class_names::{listed_classes, names, order};
use super::first_records::FirstRecord;
use super::foreign_records::LABEL_NAMES;
use super::label_value::{Candidate, LabelForm, LabelRole, LabelValue, shown, unusable};
use super::{RecordInput, RecordSource};
use crate::archive::hash_text;
use crate::error::{Error, Result};
use crate::option_names::LABEL_FEATURE;
use forebay_shard::ExampleView;
use forebay_shard::manifest::ClassEntry;
use forebay_shard::schema::{Column, ColumnType, ColumnValue, LABEL, Schema};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The column of WebDataset's JSON member. One of its fields may hold the label.
const JSON_COLUMN: &str = "json";

/// Reads the labels of records from a column.
#[derive(Debug)]
pub(super) struct LabelReader {
    candidate: Candidate,
    form: LabelForm,
    /// The number of each class, if the labels are class names.
    numbers: BTreeMap<String, i64>,
    label_base: i64,
}

impl LabelReader {
    /// Returns the label of a record; `None` if it has none.
    pub(super) fn label(&self, example: ExampleView<'_>) -> Result<Option<i64>, String> {
        let value = self.candidate.value(example);
        let value = value.map_err(|what| format!("{}: {what}", self.candidate.name()))?;
        let number = match value {
            None => return Ok(None),
            Some(LabelValue::Number(number, form)) if self.form != LabelForm::Text => match form {
                LabelForm::OneHot => number.saturating_add(self.label_base),
                _ => number,
            },
            Some(LabelValue::Number(number, _)) => self.number(&number.to_string())?,
            Some(LabelValue::Name(name)) if self.form == LabelForm::Text => self.number(&name)?,
            Some(LabelValue::Name(name)) => {
                let (place, form) = (self.candidate.name(), self.form.name());
                return Err(format!(
                    "{place}: {:?} is no {form} as in other records",
                    shown(&name)
                ));
            }
        };
        Ok(Some(number))
    }

    fn number(&self, name: &str) -> Result<i64, String> {
        let place = self.candidate.name();
        self.numbers
            .get(name)
            .copied()
            .ok_or_else(|| format!("{place}: {:?} is not in the list of classes", shown(name)))
    }

    /// Returns the features that are removed because the label replaces them.
    pub(super) fn replaced(&self) -> Vec<String> {
        match self.candidate.field {
            Some(_) => Vec::new(),
            None => self
                .candidate
                .column
                .features()
                .into_iter()
                .map(|f| f.name)
                .collect(),
        }
    }
}

/// The decision about the labels of a source.
pub(super) struct Labels {
    pub(super) reader: Option<LabelReader>,
    /// Whether integer labels that readers found are dropped.
    pub(super) is_ignored: bool,
}

/// Chooses the source of the labels and updates the facts of the source.
pub(super) fn decide(
    source: &mut RecordSource,
    input: &RecordInput,
    first: &[FirstRecord],
) -> Result<Labels> {
    let mut labels = Labels {
        reader: None,
        is_ignored: false,
    };
    let schema = source.facts.columns();
    let known = schema
        .column(LABEL)
        .filter(|column| column.column_type == ColumnType::Label);
    if input.features.without_labels {
        labels.is_ignored = true;
        if let Some(known) = known {
            ignore(source, &schema, known)?;
        }
        return Ok(labels);
    }
    let listed = listed_classes(input)?;
    if let Some(known) = known {
        let column = known.feature.clone();
        source.facts.label = Some(LabelRole {
            column,
            form: LabelForm::Integer,
        });
        if let Some(classes) = listed {
            source.facts.classes = classes;
        }
        return Ok(labels);
    }
    let mut refused = Vec::new();
    let mut chosen = None;
    for candidate in candidates(&schema, input, first)? {
        match form_of(&candidate, first) {
            Ok(Some(form)) => {
                chosen = Some((candidate, form));
                break;
            }
            Ok(None) => {}
            Err(what) => refused.push((candidate, what)),
        }
    }
    let Some((candidate, form)) = chosen else {
        return match refused.into_iter().next() {
            Some((candidate, what)) => Err(unusable(input, &candidate.name(), &what)),
            None => match dictionary(&schema) {
                Some((name, field)) if input.features.label_feature.is_none() => {
                    let what = format!(
                        "its values are dictionaries; {LABEL_FEATURE} {field} takes one of their fields"
                    );
                    Err(unusable(input, name, &what))
                }
                _ => Ok(labels),
            },
        };
    };
    let base = input.features.label_base.unwrap_or(0);
    let mut classes = match (listed, source.facts.classes.is_empty()) {
        (Some(listed), _) => listed,
        (None, false) => source.facts.classes.clone(),
        (None, true) => Vec::new(),
    };
    if form == LabelForm::Text && classes.is_empty() {
        let names = names(source, input, &candidate)?;
        if names.is_empty() {
            return Ok(labels);
        }
        classes = order(names, input, &candidate, base, &mut source.facts.warnings);
    }
    let numbers = classes.iter().map(|class| class.name.clone()).zip(base..);
    let reader = LabelReader {
        numbers: match form {
            LabelForm::Text => numbers.collect(),
            _ => BTreeMap::new(),
        },
        candidate,
        form,
        label_base: base,
    };
    state(source, &schema, &reader, classes)?;
    labels.reader = Some(reader);
    Ok(labels)
}

/// Updates the facts of a source for the chosen label.
fn state(
    source: &mut RecordSource,
    schema: &Schema,
    reader: &LabelReader,
    classes: Vec<ClassEntry>,
) -> Result<()> {
    let facts = &mut source.facts;
    let replaced = reader.replaced();
    // If the image feature has TensorFlow's name, so does the label; otherwise the label keeps its name.
    let standard = forebay_shard::example::RecordFeatures::standard();
    let is_standard = facts.record_features.image == standard.image;
    facts.record_features.label = match (is_standard, replaced.first()) {
        (false, Some(own)) => own.clone(),
        _ => standard.label.clone(),
    };
    let mut label = Column::new(LABEL, ColumnType::Label);
    label.feature.clone_from(&facts.record_features.label);
    facts
        .features
        .retain(|feature| !replaced.contains(&feature.name));
    facts.features.extend(label.features());
    facts.features.sort_by(|a, b| a.name.cmp(&b.name));
    let kept = schema.columns().iter().filter(|column| {
        let own = &reader.candidate.column;
        reader.candidate.field.is_some() || column.name != own.name
    });
    let mut columns: Vec<Column> = kept.cloned().collect();
    let after_image = columns
        .iter()
        .position(|column| column.column_type == ColumnType::Image);
    columns.insert(after_image.map_or(0, |at| at + 1), label);
    facts.schema = Schema::new(columns).map_err(|what| Error::source("", what))?;
    facts.label_base = reader.label_base;
    let place = reader.candidate.name();
    let mut hasher = blake3::Hasher::new();
    for class in &classes {
        hash_text(class.name.as_bytes(), &mut hasher);
    }
    let digest = hasher.finalize().to_hex()[..16].to_owned();
    let identity = format!(
        "{place}:{}:{}:{digest}",
        reader.form.name(),
        reader.label_base
    );
    facts.identity.insert("label_role".to_owned(), identity);
    facts.label = Some(LabelRole {
        column: place,
        form: reader.form,
    });
    facts.classes = classes;
    Ok(())
}

/// Turns the label that a reader found into an ordinary integer column.
fn ignore(source: &mut RecordSource, schema: &Schema, label: &Column) -> Result<()> {
    let columns = schema
        .columns()
        .iter()
        .cloned()
        .map(|column| match column.name == label.name {
            true => Column {
                column_type: ColumnType::Int,
                ..column
            },
            false => column,
        });
    let facts = &mut source.facts;
    facts.schema = Schema::new(columns.collect()).map_err(|what| Error::source("", what))?;
    facts.record_features.label = String::new();
    facts.classes = Vec::new();
    facts
        .identity
        .insert("label_role".to_owned(), "none".to_owned());
    Ok(())
}

/// Returns whether a column has a usual name of labels.
fn has_label_name(name: &str) -> bool {
    let name = name.to_lowercase();
    let name = name.strip_suffix(".txt").unwrap_or(&name);
    LABEL_NAMES.contains(&name)
}

/// Returns the columns and JSON fields that may hold labels: the one that an option names, or those with usual names in order
/// of precedence.
fn candidates(
    schema: &Schema,
    input: &RecordInput,
    first: &[FirstRecord],
) -> Result<Vec<Candidate>> {
    let columns = || {
        schema
            .columns()
            .iter()
            .filter(|column| may_hold_labels(column, first))
    };
    let whole = |column: &Column| Candidate {
        column: column.clone(),
        field: None,
    };
    if let Some(name) = &input.features.label_feature {
        let named = columns().find(|column| column.name == *name || column.feature == *name);
        let field = || {
            let (column, field) = name.split_once('.')?;
            let column = columns().find(|known| known.name == column)?;
            Some(Candidate {
                field: Some(field.to_owned()),
                ..whole(column)
            })
        };
        let found = named.map(whole).or_else(field);
        return found.map(|found| vec![found]).ok_or_else(|| {
            let names: Vec<&str> = schema.columns().iter().map(|c| c.name.as_str()).collect();
            let place = input.location.to_string();
            let what = format!(
                "{LABEL_FEATURE} {name}: no column of this name holds labels; the columns are {}",
                crate::finding::few(&names)
            );
            Error::source(place, what)
        });
    }
    let mut found: Vec<Candidate> = Vec::new();
    for name in LABEL_NAMES {
        let has_name = |column: &&Column| {
            let own = column.name.to_lowercase();
            own == *name || own.strip_suffix(".txt") == Some(*name)
        };
        found.extend(columns().filter(has_name).map(whole));
    }
    // Fields of the JSON member come last: a member of its own is more explicit.
    if let Some(json) = columns().find(|column| column.name == JSON_COLUMN) {
        let mut fields = BTreeSet::new();
        for record in first {
            let text = record
                .example()
                .and_then(|example| json.read(example).ok().flatten());
            let Some(ColumnValue::Bytes(text)) = text else {
                continue;
            };
            if let Ok(Value::Object(object)) = forebay_shard::json::from_slice(text) {
                fields.extend(
                    object
                        .into_iter()
                        .map(|(name, _)| name)
                        .filter(|n| has_label_name(n)),
                );
            }
        }
        for name in LABEL_NAMES {
            if fields.contains(*name) {
                found.push(Candidate {
                    field: Some((*name).to_owned()),
                    ..whole(json)
                });
            }
        }
    }
    Ok(found)
}

/// Returns whether a column can hold labels by its type. Images under such a name are masks, not labels.
fn may_hold_labels(column: &Column, first: &[FirstRecord]) -> bool {
    match column.column_type {
        ColumnType::Text
        | ColumnType::Int
        | ColumnType::Float
        | ColumnType::Labels
        | ColumnType::Vector { .. } => true,
        ColumnType::Tensor { ref shape, .. } => {
            shape.iter().filter(|len| **len != Some(1)).count() <= 1
        }
        ColumnType::Bytes => !first.iter().any(|record| {
            let value = record.example();
            let value = value.and_then(|example| column.read(example).ok().flatten());
            matches!(value, Some(ColumnValue::Bytes(bytes)) if forebay_image::sniff(bytes).is_some())
        }),
        _ => false,
    }
}

/// Returns the form of the values of a candidate, found from the first records; `None` if it does not hold labels.
fn form_of(candidate: &Candidate, first: &[FirstRecord]) -> Result<Option<LabelForm>, String> {
    for record in first {
        let Some(example) = record.example() else {
            continue;
        };
        match candidate.value(example) {
            Ok(None) => {}
            Ok(Some(LabelValue::Name(_))) => return Ok(Some(LabelForm::Text)),
            Ok(Some(LabelValue::Number(_, form))) => return Ok(Some(form)),
            Err(what) => return Err(what),
        }
    }
    // Without a value the column type decides.
    Ok(match candidate.column.column_type {
        ColumnType::Text => Some(LabelForm::Text),
        ColumnType::Float => Some(LabelForm::Float),
        _ => None,
    })
}

/// Returns the name of a label whose values are dictionaries, and the column of its first field. Each field is a column.
fn dictionary(schema: &Schema) -> Option<(&str, &str)> {
    schema.columns().iter().find_map(|column| {
        let (name, _) = column.name.split_once('/')?;
        has_label_name(name).then_some((name, column.name.as_str()))
    })
}
