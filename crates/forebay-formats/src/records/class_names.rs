//! Class names as labels: from a list that an option names, or from the distinct texts of a column in sorted order.

use super::label_value::{Candidate, LabelValue, shown, unusable};
use super::{RecordFile, RecordInput, RecordSource};
use crate::error::{Error, Result};
use forebay_shard::ExampleView;
use forebay_shard::manifest::ClassEntry;
use forebay_store::try_map_parallel;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Number of values that an error shows.
const VALUES_SHOWN: usize = 3;
/// Most classes that are numbered from text, and most bytes of their names: the manifest holds all of them.
const MAX_CLASSES: usize = 1 << 20;
const MAX_NAME_BYTES: usize = 16 << 20;
/// If more than half of the records have distinct texts, the texts are not classes, unless there are at most this many.
const FEW_CLASSES: usize = 1000;

/// Reads the list of classes that an option names.
pub(super) fn listed_classes(input: &RecordInput) -> Result<Option<Vec<ClassEntry>>> {
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

/// Returns the distinct texts of a column in all records.
pub(super) fn names(
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
    let read = |file: &&dyn RecordFile| names_of(*file, candidate);
    let found = try_map_parallel(&files, jobs, &|| false, read)?;
    let mut all = BTreeSet::new();
    let mut bytes = 0;
    let records: u64 = files.iter().map(|file| file.records()).sum();
    let records = records as usize;
    for name in found.into_iter().flatten().flatten() {
        let len = name.len();
        if all.insert(name) {
            bytes += len;
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

/// Returns the distinct texts of a column in a file. Records that cannot be read are skipped here; the conversion reports them.
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

/// Returns class names in their order, and a warning if they are numbers and text order differs from numeric order.
pub(super) fn order(
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
