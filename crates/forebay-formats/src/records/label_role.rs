//! The label of records of other tools: which column holds it, and how its values become classes.
//!
//! Readers make records of columns of any type and take a label only where it is an integer. Everything else is
//! decided here, once for all formats: text, floats and one-hot lists become integers, and classes that are text get
//! numbers in the order of text. A column with the name of a label that holds values of another kind is an error,
//! so that no label is lost without a word.

use super::checked::FirstRecord;
use super::foreign_records::LABEL_NAMES;
use super::numbers::{float32s, int64s, integer, is_integer};
use super::{RecordFile, RecordInput, RecordSource};
use crate::error::{Error, Result};
use crate::finding::escape;
use forebay_shard::ExampleView;
use forebay_shard::manifest::ClassEntry;
use forebay_shard::parallel::map_parallel;
use forebay_shard::schema::{Column, ColumnType, ColumnValue, LABEL, NumberType, Schema};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Values that an error shows.
const VALUES_SHOWN: usize = 3;
/// Most classes that are numbered from text, and the most bytes of their names: a manifest holds them all.
const MAX_CLASSES: usize = 1 << 20;
const MAX_NAME_BYTES: usize = 16 << 20;
/// Texts that are different in more than half of the records are no classes, unless there are few of them.
const FEW_CLASSES: usize = 1000;
/// The column of WebDataset's JSON member, whose fields may hold a label.
const JSON_COLUMN: &str = "json";

/// How values of a column are read as labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LabelForm {
    /// Integers, as they are.
    Integer,
    /// Floats that are whole numbers.
    Float,
    /// Lists with a one at the place of the class and zeros elsewhere.
    OneHot,
    /// Names of classes, numbered in the order of text.
    Text,
}

impl LabelForm {
    /// Returns the form in a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Float => "float",
            Self::OneHot => "one-hot",
            Self::Text => "text",
        }
    }
}

/// The source of labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRole {
    /// The column, as the source names it.
    pub column: String,
    /// How its values are read.
    pub form: LabelForm,
}

/// The place of a label: a column, or a field of its JSON text.
#[derive(Debug, Clone)]
struct Candidate {
    column: Column,
    field: Option<String>,
}

/// A value of a label.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LabelValue<'a> {
    Number(i64, LabelForm),
    Name(Cow<'a, str>),
}

/// How labels are taken from records that have none yet.
#[derive(Debug)]
pub(super) struct LabelReader {
    candidate: Candidate,
    form: LabelForm,
    /// The number of each class, if classes are text.
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

    /// The features that the label takes the place of.
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
    /// Whether labels that readers found are left out.
    pub(super) is_ignored: bool,
}

/// Decides where the labels of a source come from, and makes its facts say so.
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
                        "its values are dictionaries; --label-feature {field} takes one of their fields"
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

/// Makes the facts of a source name the label.
fn state(
    source: &mut RecordSource,
    schema: &Schema,
    reader: &LabelReader,
    classes: Vec<ClassEntry>,
) -> Result<()> {
    let facts = &mut source.facts;
    let replaced = reader.replaced();
    // Records with standard names get TensorFlow's name of a label, others keep the name that they have.
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
        hasher
            .update(&(class.name.len() as u64).to_le_bytes())
            .update(class.name.as_bytes());
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

/// Makes a label that was found an integer like others.
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

/// The classes of the list that an option names.
fn listed_classes(input: &RecordInput) -> Result<Option<Vec<ClassEntry>>> {
    let Some(path) = &input.features.classes else {
        return Ok(None);
    };
    let bytes = crate::class_list::read_list(path)?;
    let mut seen = BTreeSet::new();
    let mut classes = Vec::new();
    for class in crate::class_list::parse(&bytes) {
        let name = String::from_utf8(class.name)
            .map_err(|_| Error::list(path, "the name of a class is not UTF-8"))?;
        if !seen.insert(name.clone()) {
            return Err(Error::list(
                path,
                format!("the class {name:?} is listed twice"),
            ));
        }
        classes.push(ClassEntry {
            name,
            text: class.text,
        });
    }
    match classes.is_empty() {
        true => Err(Error::list(path, "it lists no class")),
        false => Ok(Some(classes)),
    }
}

impl Candidate {
    /// The name of the place, as options have it.
    fn name(&self) -> String {
        match &self.field {
            Some(field) => format!("{}.{field}", self.column.name),
            None => self.column.name.clone(),
        }
    }

    /// Reads the value of a record; `None` if it has none.
    fn value<'a>(&self, example: ExampleView<'a>) -> Result<Option<LabelValue<'a>>, String> {
        let value = self
            .column
            .read(example)
            .map_err(|error| error.to_string())?;
        let Some(value) = value else {
            return Ok(None);
        };
        match (value, &self.field) {
            (ColumnValue::Bytes(json), Some(field)) => json_value(json, field),
            (ColumnValue::Bytes(text), None) => {
                let text = std::str::from_utf8(text)
                    .map_err(|_| format!("{} bytes that are no text", text.len()))?;
                let text = text.trim();
                Ok((!text.is_empty()).then_some(LabelValue::Name(text.into())))
            }
            (ColumnValue::Int(number), _) => {
                Ok(Some(LabelValue::Number(number, LabelForm::Integer)))
            }
            (ColumnValue::Float(number), _) => whole(f64::from(number)),
            (ColumnValue::Ints(list), _) => {
                list_value(list.into_iter().map(|number| number as f64).collect())
            }
            (ColumnValue::Floats(list), _) => list_value(list.into_iter().map(f64::from).collect()),
            (ColumnValue::Tensor { shape, bytes }, _) => {
                let ColumnType::Tensor { number, .. } = self.column.column_type else {
                    return Err("a tensor".to_owned());
                };
                let inner = shape.iter().filter(|len| **len != 1).count();
                match inner {
                    0 | 1 => list_value(doubles(number, bytes)?),
                    _ => Err(format!("a tensor of shape {shape:?}")),
                }
            }
            _ => Err("values that are no labels".to_owned()),
        }
    }
}

/// A number that has to be whole; NaN is none.
fn whole<'a>(number: f64) -> Result<Option<LabelValue<'a>>, String> {
    if number.is_nan() {
        return Ok(None);
    }
    // Beyond 2^53 a float does not tell integers apart.
    match number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0 {
        true => Ok(Some(LabelValue::Number(number as i64, LabelForm::Float))),
        false => Err(format!(
            "{number} is no whole number, as labels of classes are"
        )),
    }
}

/// A list with one number, or with a one at the place of the class.
fn list_value<'a>(list: Vec<f64>) -> Result<Option<LabelValue<'a>>, String> {
    match list.as_slice() {
        [] => return Ok(None),
        [one] => return whole(*one),
        _ => {}
    }
    let mut ones = list
        .iter()
        .enumerate()
        .filter(|(_, number)| **number != 0.0);
    match (ones.next(), ones.next()) {
        (Some((at, one)), None) if *one == 1.0 => {
            Ok(Some(LabelValue::Number(at as i64, LabelForm::OneHot)))
        }
        _ => {
            let shown: Vec<String> = list.iter().take(8).map(f64::to_string).collect();
            let more = if list.len() > shown.len() {
                ", ..."
            } else {
                ""
            };
            Err(format!("[{}{more}] is not one-hot", shown.join(", ")))
        }
    }
}

/// The numbers of a tensor.
fn doubles(number: NumberType, bytes: &[u8]) -> Result<Vec<f64>, String> {
    let width = number.bytes().max(1);
    let words = || bytes.chunks_exact(width);
    Ok(match number {
        NumberType::Int64 => int64s(bytes).into_iter().map(|n| n as f64).collect(),
        NumberType::Float32 => float32s(bytes).into_iter().map(f64::from).collect(),
        NumberType::Float64 => words()
            .map(|word| f64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect(),
        NumberType::Uint64 => words()
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()) as f64)
            .collect(),
        number if is_integer(number) => words().map(|word| integer(number, word) as f64).collect(),
        other => return Err(format!("numbers of type {}", other.name())),
    })
}

/// A field of a JSON object.
fn json_value<'a>(json: &[u8], field: &str) -> Result<Option<LabelValue<'a>>, String> {
    let value: Value =
        forebay_shard::json::from_slice(json).map_err(|error| format!("no JSON: {error}"))?;
    match value.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => {
            let text = text.trim().to_owned();
            Ok((!text.is_empty()).then_some(LabelValue::Name(text.into())))
        }
        Some(Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Ok(Some(LabelValue::Number(number, LabelForm::Integer))),
            (None, Some(number)) => whole(number),
            (None, None) => Err(format!("{number} is no label")),
        },
        Some(Value::Array(list)) if list.iter().all(Value::is_number) => {
            list_value(list.iter().filter_map(Value::as_f64).collect())
        }
        Some(other) => Err(format!("{} is no label", shown(&other.to_string()))),
    }
}

/// Whether a column is called as labels are.
fn has_label_name(name: &str) -> bool {
    let name = name.to_lowercase();
    let name = name.strip_suffix(".txt").unwrap_or(&name);
    LABEL_NAMES.contains(&name)
}

/// The places that may hold labels: the one that an option names, or those with a usual name in the order of these.
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
                "--label-feature {name}: no column of this name holds labels; the columns are {}",
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
    // Fields of a JSON member come last: members are what a sample says of itself.
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

/// Whether the type of a column can be that of labels. Images of this name are masks.
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

/// The form of the values of a place, by those of the first records; `None` if it holds no labels.
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
    // Without a value the type has to do.
    Ok(match candidate.column.column_type {
        ColumnType::Text => Some(LabelForm::Text),
        ColumnType::Float => Some(LabelForm::Float),
        _ => None,
    })
}

/// The name of a label whose values are dictionaries, of which each field is a column, and its first field.
fn dictionary(schema: &Schema) -> Option<(&str, &str)> {
    schema.columns().iter().find_map(|column| {
        let (name, _) = column.name.split_once('/')?;
        has_label_name(name).then_some((name, column.name.as_str()))
    })
}

fn unusable(input: &RecordInput, name: &str, what: &str) -> Error {
    Error::source(
        input.location.to_string(),
        format!(
            "no label can be read from {name:?}, which has the name of one: {what}; --label-feature NAME takes another column, --no-labels keeps it as a column"
        ),
    )
}

/// The different texts of a column of all records.
fn names(
    source: &RecordSource,
    input: &RecordInput,
    candidate: &Candidate,
) -> Result<BTreeSet<String>> {
    let files: Vec<&dyn RecordFile> = source
        .splits
        .iter()
        .flat_map(|split| &split.files)
        .map(|file| &**file)
        .collect();
    let jobs = std::thread::available_parallelism().map_or(1, |count| count.get());
    let read = |_: &mut (), file: &&dyn RecordFile| names_of(*file, candidate);
    let mut all = BTreeSet::new();
    let mut records = 0;
    let mut bytes = 0;
    for (found, file) in map_parallel(&files, jobs, &|| false, || (), read)
        .into_iter()
        .zip(&files)
    {
        records += file.records() as usize;
        for name in found.unwrap_or(Err(Error::Interrupted))? {
            let len = name.len();
            if all.insert(name) {
                bytes += len;
            }
        }
    }
    let is_chosen = input.features.label_feature.is_some();
    let is_text = !is_chosen && all.len() > FEW_CLASSES && all.len() > records / 2;
    if is_text || all.len() > MAX_CLASSES || bytes > MAX_NAME_BYTES {
        let shown: Vec<String> = all
            .iter()
            .take(VALUES_SHOWN)
            .map(|n| format!("{:?}", shown(n)))
            .collect();
        let what = format!(
            "{} different texts in {records} records are no classes ({}, ...)",
            all.len(),
            shown.join(", ")
        );
        return Err(unusable(input, &candidate.name(), &what));
    }
    Ok(all)
}

/// The different texts of a column of a file. Records that cannot be read are found again by the conversion.
fn names_of(file: &dyn RecordFile, candidate: &Candidate) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut bytes = 0;
    let mut visit = |record: &[u8]| {
        let value = ExampleView::parse(record).ok();
        let value = value.and_then(|example| candidate.value(example).ok().flatten());
        let name: Cow<'_, str> = match value {
            Some(LabelValue::Name(name)) => name,
            Some(LabelValue::Number(number, _)) => number.to_string().into(),
            None => return true,
        };
        if !names.contains(&*name) {
            bytes += name.len();
            names.insert(name.into_owned());
        }
        names.len() <= MAX_CLASSES && bytes <= MAX_NAME_BYTES
    };
    let alone = file.with_column(&candidate.column.name);
    let file = alone.as_deref().unwrap_or(file);
    let mut reader = file.read(0..file.records())?;
    loop {
        match reader.next_record() {
            Ok(Some(record)) => {
                if !visit(record.bytes) {
                    break;
                }
            }
            Ok(None) => break,
            Err(Error::Record { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(names)
}

/// Puts names of classes in their order, and warns where that of text is not that of numbers.
fn order(
    names: BTreeSet<String>,
    input: &RecordInput,
    candidate: &Candidate,
    base: i64,
    warnings: &mut Vec<String>,
) -> Vec<ClassEntry> {
    let mut names: Vec<String> = names.into_iter().collect();
    let order = input.features.class_order;
    names.sort_by(|a, b| order.compare(a.as_bytes(), b.as_bytes()));
    if let Some(what) = order.warning(names.iter().map(String::as_bytes), base) {
        warnings.push(format!("{:?}: {what}", candidate.name()));
    }
    names
        .into_iter()
        .map(|name| ClassEntry { name, text: None })
        .collect()
}

/// The beginning of a text, for a message.
fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    escape(short.as_bytes())
}
