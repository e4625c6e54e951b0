//! The output of `inspect`.

use std::collections::BTreeMap;

use forebay_shard::{Schema, Shard, ShardFormat};
use serde::Serialize;
use serde_json::{Value, json};

use super::figures::{ImageFigures, IndexFigures};
use crate::console::Console;
use crate::contents::{Contents, SplitShards};
use crate::histogram::Histogram;
use crate::input::show as show_path;
use crate::paint::printable;
use crate::quantity;
use crate::table::{Align, Table, wrap};

/// Maximum number of classes to print without --verbose.
const SHOWN_CLASSES: usize = 12;

/// Width of the histogram's bars, in characters.
const BAR_WIDTH: usize = 32;
/// Width of the options that a dataset was packed with, where they wrap.
const COLUMNS: usize = 100;

/// The results of `inspect`.
pub(super) struct Findings<'a> {
    pub(super) contents: &'a Contents,
    pub(super) splits: &'a [SplitShards],
    pub(super) index: &'a IndexFigures,
    pub(super) images: Option<&'a ImageFigures>,
}

/// A label with its record counts, and its class in the manifest.
#[derive(Serialize)]
struct ClassRow {
    label: Option<i64>,
    name: Option<String>,
    text: Option<String>,
    records: u64,
    #[serde(skip)]
    by_split: Vec<u64>,
}

impl Findings<'_> {
    pub(super) fn print(&self, console: &Console) {
        self.print_head(console);
        self.print_splits(console);
        self.print_features(console);
        self.print_columns(console);
        self.print_classes(console);
        self.print_sizes(console);
        if let Contents::Dataset(dataset) = self.contents {
            let manifest = dataset.manifest();
            console.blank();
            console.line(format!("fingerprint {}", manifest.fingerprint));
            if !manifest.pack.is_empty() {
                let line = format!("packed with {}", options(&manifest.pack));
                for line in wrap(&line, COLUMNS) {
                    console.line(line);
                }
            }
        }
    }

    fn print_head(&self, console: &Console) {
        let (records, bytes) = self.totals();
        let shards = self.shards().count() as u64;
        let what = match self.contents {
            Contents::Dataset(_) => {
                format!("dataset, {}", quantity::counted(shards, "shard", "shards"))
            }
            Contents::Shard(shard) if shard.format() == ShardFormat::Indexed => {
                let blocks = shard.index().blocks() as u64;
                format!("shard, {}", quantity::counted(blocks, "block", "blocks"))
            }
            Contents::Shard(_) => "shard".to_owned(),
        };
        console.heading(format!(
            "{}: {} {what}, {}, {}",
            show_path(&self.contents.path()),
            self.format(),
            quantity::counted(records, "record", "records"),
            quantity::bytes(bytes)
        ));
        if let Contents::Dataset(dataset) = self.contents
            && let Some(source) = &dataset.manifest().source
        {
            let place = printable(&source.location);
            console.line(format!(
                "records in {place} ({})",
                printable(&source.format)
            ));
        }
    }

    fn print_splits(&self, console: &Console) {
        if !matches!(self.contents, Contents::Dataset(_)) {
            return;
        }
        let mut table = Table::new(&[
            ("split", Align::Left),
            ("records", Align::Right),
            ("shards", Align::Right),
            ("bytes", Align::Right),
            ("a shard", Align::Right),
        ]);
        for (name, shards) in self.splits {
            let bytes: u64 = shards.iter().map(Shard::file_len).sum();
            table.row([
                printable(name.as_deref().unwrap_or_default()),
                quantity::count(shards.iter().map(Shard::len).sum()),
                quantity::count(shards.len() as u64),
                quantity::bytes(bytes),
                quantity::bytes(bytes / shards.len().max(1) as u64),
            ]);
        }
        console.blank();
        console.table(&table);
    }

    fn print_features(&self, console: &Console) {
        let Contents::Dataset(dataset) = self.contents else {
            return;
        };
        let features = &dataset.manifest().features;
        if features.is_empty() {
            return;
        }
        let mut table = Table::new(&[
            ("feature", Align::Left),
            ("kind", Align::Left),
            ("shape", Align::Left),
        ]);
        for feature in features {
            table.row([
                printable(&feature.name),
                feature.kind.to_string(),
                shape(&feature.shape),
            ]);
        }
        console.blank();
        console.table(&table);
    }

    fn print_columns(&self, console: &Console) {
        let columns = self.columns();
        if columns.is_empty() {
            return;
        }
        let mut table = Table::new(&[
            ("column", Align::Left),
            ("type", Align::Left),
            ("feature", Align::Left),
        ]);
        for column in columns.columns() {
            table.row([
                printable(&column.name),
                column.column_type.to_string(),
                printable(&column.feature),
            ]);
        }
        console.blank();
        console.table(&table);
    }

    /// Returns the columns of the manifest; empty for a single shard.
    fn columns(&self) -> Schema {
        match self.contents {
            Contents::Dataset(dataset) => dataset.manifest().schema(),
            Contents::Shard(_) => Schema::default(),
        }
    }

    fn print_classes(&self, console: &Console) {
        let classes = self.classes();
        if classes.iter().all(|class| class.label.is_none()) {
            return;
        }
        let shown = if console.is_verbose() || classes.len() <= SHOWN_CLASSES + 1 {
            classes.len()
        } else {
            SHOWN_CLASSES
        };
        let has_name = classes.iter().any(|class| class.name.is_some());
        let has_text = classes.iter().any(|class| class.text.is_some());
        let mut columns = vec![("label", Align::Right)];
        if has_name {
            columns.push(("class", Align::Left));
        }
        if has_text {
            columns.push(("", Align::Left));
        }
        let names: Vec<&str> = self
            .splits
            .iter()
            .map(|(name, _)| name.as_deref().unwrap_or("records"))
            .collect();
        columns.extend(names.iter().map(|name| (*name, Align::Right)));
        let mut table = Table::new(&columns);
        for class in &classes[..shown] {
            let label = class
                .label
                .map_or("none".to_owned(), |label| label.to_string());
            let mut row = vec![label];
            if has_name {
                row.push(printable(class.name.as_deref().unwrap_or_default()));
            }
            if has_text {
                row.push(printable(class.text.as_deref().unwrap_or_default()));
            }
            row.extend(class.by_split.iter().map(|n| quantity::count(*n)));
            table.row(row);
        }
        console.blank();
        console.table(&table);
        if shown < classes.len() {
            console.line(console.paint().dim(format!(
                "  ... {} more; -v lists them",
                quantity::counted((classes.len() - shown) as u64, "class", "classes")
            )));
        }
    }

    fn print_sizes(&self, console: &Console) {
        let histogram = |title: &str, sizes: &Histogram| {
            if sizes.buckets().is_empty() {
                return;
            }
            console.blank();
            console.heading(title);
            for line in sizes.lines(BAR_WIDTH) {
                console.line(line);
            }
        };
        let Some(images) = self.images else {
            histogram(
                "Record sizes, image and features (--deep reads the images themselves)",
                &self.index.record_sizes,
            );
            return;
        };
        histogram("Image sizes", &images.sizes);
        if !images.short_sides.buckets().is_empty() {
            console.blank();
            console.heading("Short sides");
            for line in images
                .short_sides
                .lines_of(BAR_WIDTH, |side| format!("{side} px"))
            {
                console.line(line);
            }
        }
        console.blank();
        let mut table = Table::new(&[("", Align::Left), ("", Align::Left)]);
        table.row(["image bytes".to_owned(), quantity::bytes(images.bytes)]);
        let range = |range: Option<(u32, u32)>| match range {
            Some((least, most)) if least == most => format!("{least} px"),
            Some((least, most)) => format!("{least} to {most} px"),
            None => "none".to_owned(),
        };
        table.row(["widths".to_owned(), range(images.widths)]);
        table.row(["heights".to_owned(), range(images.heights)]);
        let mut kinds: Vec<(&String, &u64)> = images.kinds.iter().collect();
        kinds.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), (*name).clone()));
        for (kind, count) in kinds {
            table.row([kind.clone(), quantity::count(*count)]);
        }
        console.table(&table);
        if let Some(first) = &images.first_unreadable {
            console.warning(format!(
                "{} without a readable image; the first: {}",
                quantity::counted(images.unreadable, "record", "records"),
                printable(first)
            ));
        }
    }

    fn shards(&self) -> impl Iterator<Item = &Shard> {
        self.splits.iter().flat_map(|(_, shards)| shards)
    }

    fn totals(&self) -> (u64, u64) {
        self.shards().fold((0, 0), |(records, bytes), shard| {
            (records + shard.len(), bytes + shard.file_len())
        })
    }

    fn format(&self) -> &'static str {
        let format = match self.contents {
            Contents::Dataset(dataset) => dataset.manifest().shard_format,
            Contents::Shard(shard) => shard.format(),
        };
        match format {
            ShardFormat::TfRecord => "TFRecord",
            ShardFormat::Indexed => "indexed",
            ShardFormat::Mapped => "mapped",
        }
    }

    /// Returns the classes of the manifest in label order, then labels of records that have no class in the manifest.
    fn classes(&self) -> Vec<ClassRow> {
        let none = vec![0; self.splits.len()];
        let counts = |label: Option<i64>| self.index.labels.get(&label).unwrap_or(&none).clone();
        let row = |label: Option<i64>, name: Option<String>, text: Option<String>| {
            let by_split = counts(label);
            ClassRow {
                label,
                name,
                text,
                records: by_split.iter().sum(),
                by_split,
            }
        };
        let mut rows = Vec::new();
        let mut known = 0..0;
        if let Contents::Dataset(dataset) = self.contents {
            let manifest = dataset.manifest();
            let base = manifest.label_base;
            known = base..base + manifest.classes.len() as i64;
            rows.extend(known.clone().zip(&manifest.classes).map(|(label, class)| {
                row(Some(label), Some(class.name.clone()), class.text.clone())
            }));
        }
        for label in self.index.labels.keys() {
            if label.is_none_or(|label| !known.contains(&label)) {
                rows.push(row(*label, None, None));
            }
        }
        rows
    }

    pub(super) fn event(&self, console: &Console) {
        let (records, bytes) = self.totals();
        let manifest = match self.contents {
            Contents::Dataset(dataset) => Some(dataset.manifest()),
            Contents::Shard(_) => None,
        };
        let split = |split: &forebay_shard::manifest::SplitEntry| {
            json!({
                "name": split.name,
                "records": split.records,
                "bytes": split.bytes,
                "shards": split.shards.len(),
            })
        };
        let unreadable = self.images.is_some_and(|images| images.unreadable > 0);
        let summary = json!({
            "command": "inspect",
            "exit_code": if unreadable { 3 } else { 0 },
            "kind": if manifest.is_some() {
                "dataset"
            } else {
                "shard"
            },
            "path": self.contents.path().display().to_string(),
            "format": match self.contents {
                Contents::Dataset(dataset) => dataset.manifest().shard_format.name(),
                Contents::Shard(shard) => shard.format().name(),
            },
            "records": records,
            "bytes": bytes,
            "shards": self.shards().count() as u64,
            "blocks": match self.contents {
                Contents::Shard(shard) => Some(shard.index().blocks() as u64),
                Contents::Dataset(_) => None,
            },
            "splits": manifest.map_or(Vec::new(), |m| m.splits.iter().map(split).collect()),
            "features": manifest.map_or(Vec::new(), |m| {
                m.features
                    .iter()
                    .map(|f| json!({"name": f.name, "kind": f.kind.to_string(), "shape": f.shape}))
                    .collect()
            }),
            "columns": self.columns(),
            "label_base": manifest.map(|m| m.label_base),
            "classes": self.classes(),
            "record_sizes": self.index.record_sizes.buckets(),
            "images": self.images.map(image_event),
            "fingerprint": manifest.map(|m| m.fingerprint.as_str()),
            "pack": manifest.map(|m| &m.pack),
        });
        console.event("summary", &summary);
    }
}

fn image_event(images: &ImageFigures) -> Value {
    let range = |range: Option<(u32, u32)>| range.map(|(least, most)| json!([least, most]));
    json!({
        "records": images.records,
        "bytes": images.bytes,
        "sizes": images.sizes.buckets(),
        "short_sides": images.short_sides.buckets(),
        "kinds": images.kinds,
        "widths": range(images.widths),
        "heights": range(images.heights),
        "unreadable": images.unreadable,
        "first_unreadable": images.first_unreadable,
    })
}

/// Formats the shape of a feature: `one value`, or `list of` its dimensions.
fn shape(shape: &[Option<u64>]) -> String {
    if shape.is_empty() {
        return "one value".to_owned();
    }
    let sides: Vec<String> = shape
        .iter()
        .map(|side| side.map_or("any".to_owned(), |n| n.to_string()))
        .collect();
    format!("list of {}", sides.join(" x "))
}

/// Formats the pack options as `name=value`, separated by spaces.
fn options(pack: &BTreeMap<String, Value>) -> String {
    let pairs: Vec<String> = pack
        .iter()
        .map(|(name, value)| match value {
            Value::String(text) => printable(&format!("{name}={text}")),
            other => printable(&format!("{name}={other}")),
        })
        .collect();
    pairs.join(" ")
}
