//! Descriptions of the source and of its records for the page, as JSON.

use forebay_image::{Limits, probe};
use forebay_shard::{ColumnType, ColumnValue, ExampleView, escape_key};
use serde_json::{Value, json};

use super::record::Record;
use super::scan::Catalog;
use super::table::{Row, Snapshot};
use super::values;

/// Maximum number of classes of a summary.
const MAX_CLASSES: usize = 50_000;
/// Number of records of a group of similar images to name.
const MAX_TWINS: usize = 50;

/// Facts about the source as a whole.
pub(super) fn summary(catalog: &Catalog) -> Value {
    let source = &catalog.source;
    let snapshot = catalog.table.snapshot();
    let mut counts = snapshot.class_counts();
    let boxes = snapshot.box_counts();
    for label in boxes.keys().filter_map(|label| i32::try_from(*label).ok()) {
        counts.entry(label).or_insert(0);
    }
    let class = |label: i64, records: u64| {
        let boxes = boxes.get(&label).copied().unwrap_or(0);
        json!({"label": label, "title": source.class_title(label), "records": records, "boxes": boxes})
    };
    let mut columns = catalog.columns.iter();
    let box_column = columns.find(|column| column.column_type == ColumnType::Boxes);
    let labels = (source.label_base..).take(source.classes.len().min(MAX_CLASSES));
    let mut classes: Vec<Value> = labels
        .map(|label| {
            let count = i32::try_from(label)
                .ok()
                .and_then(|label| counts.remove(&label));
            class(label, count.unwrap_or(0))
        })
        .collect();
    // Labels without a class.
    let others = counts.into_iter().take(MAX_CLASSES - classes.len());
    classes.extend(others.map(|(label, records)| class(label.into(), records)));
    let splits = source.splits.iter().map(|split| {
        let records = split.records.end - split.records.start;
        json!({"name": split.name, "records": records})
    });
    json!({
        "title": source.title,
        "kind": source.kind,
        "records": source.len(),
        "splits": splits.collect::<Vec<_>>(),
        "classes": classes,
        "columns": catalog.columns.iter().map(|column| &column.name).collect::<Vec<_>>(),
        "boxes": box_column.map(|column| &column.name),
        "findings": source.findings,
        "progress": catalog.progress(),
    })
}

/// One record as the grid shows it.
pub(super) fn row(catalog: &Catalog, snapshot: &Snapshot, row: &Row<'_>) -> Value {
    let (split, index) = catalog.source.split_of(row.number.into());
    let facts = row.facts;
    let class = facts
        .label
        .map(|label| catalog.source.class_title(label.into()));
    json!({
        "number": row.number,
        "split": split,
        "index": index,
        "key": escape_key(row.key()).to_string(),
        "label": facts.label,
        "class": class,
        "bytes": facts.bytes,
        "size": facts.size,
        "reasons": snapshot.reasons(row),
    })
}

/// One record in full.
pub(super) fn record(catalog: &Catalog, number: u64) -> Result<Value, String> {
    let source = &catalog.source;
    let part = source.part(number)?;
    let mut record = Record::default();
    let mut errors: Vec<String> = source.read(number, &mut record).err().into_iter().collect();
    let snapshot = catalog.table.snapshot();
    // The table has no rows before the index was read.
    let known = snapshot.row(number as u32);
    let mut value = known.map_or_else(|| json!({}), |known| row(catalog, &snapshot, &known));
    if let Some(label) = record.label {
        value["label"] = label.into();
        value["class"] = source.class_title(label).into();
    }
    if !record.key.is_empty() {
        value["key"] = escape_key(&record.key).to_string().into();
    }
    let (mut columns, mut boxes, mut has_mask) = (Vec::new(), Vec::new(), false);
    let example = ExampleView::parse(&record.bytes).ok();
    for column in source.schema.columns() {
        let mut text = String::new();
        match example.map_or(Ok(None), |example| column.read(example)) {
            Ok(None) => {}
            Ok(Some(read)) => {
                text = values::text(&read, |label| source.class_title(label));
                if let ColumnValue::Boxes { boxes: all, labels } = &read {
                    let titled = all.iter().zip(labels).map(|(sides, label)| {
                        json!({"sides": sides, "label": label, "title": source.class_title(*label)})
                    });
                    boxes.extend(titled);
                }
                has_mask |= column.column_type == ColumnType::Mask;
            }
            Err(error) => errors.push(format!("column {}: {error}", column.name)),
        }
        columns.push(
            json!({"name": column.name, "type": column.column_type.to_string(), "value": text}),
        );
    }
    let image = source.features.image_record(&record.bytes);
    let image = image.map(|found| found.image);
    match image.map(|image| (image.len(), probe(image, &Limits::default()))) {
        Ok((bytes, Ok(found))) => {
            value["size"] = json!([found.width, found.height]);
            value["format"] = found.format.name().into();
            value["image_bytes"] = bytes.into();
        }
        Ok((_, Err(error))) => errors.push(error.to_string()),
        // A record that cannot be read is one error.
        Err(error) if errors.is_empty() => errors.push(error.to_string()),
        Err(_) => {}
    }
    let twins = snapshot.twins.iter();
    let group = known.and_then(|row| snapshot.twins.get(&row.number));
    let alike = twins.filter(|(twin, first)| Some(*first) == group && u64::from(**twin) != number);
    let mut alike: Vec<u32> = alike.map(|(twin, _)| *twin).collect();
    alike.sort_unstable();
    alike.truncate(MAX_TWINS);
    value["place"] = part.place(number).into();
    value["alike"] = json!(alike);
    value["columns"] = columns.into();
    value["boxes"] = boxes.into();
    value["mask"] = has_mask.into();
    value["errors"] = json!(errors);
    Ok(value)
}
