//! OpenImages: the boxes of a split in files such as `train-annotations-bbox.csv` and `oidv6-train-annotations-bbox.csv`, its
//! images in `train/`, `images/train/` or `train_0/`, `train_1/` and so on, and the names of classes in
//! `class-descriptions-boxable.csv`.
//!
//! Every image in the directories of a split becomes a record, with or without boxes. Lines for images that were not downloaded
//! are allowed, since most users have only a part of the images.

#[cfg(test)]
mod tests;

use super::listed_images::{ImageFile, ImageFiles, ListedImages, ReadImage, encode_columns};
use super::{Format, FormatInfo, OnBadRecord, RecordInput, RecordSource, RecordSplit};
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason, escape};
use crate::key_path::split_name;
use crate::labels::line_of;
use crate::labels::{Cell, Rows};
use crate::name_forms::{Ambiguous, NameForms};
use crate::option_names::ON_BAD;
use forebay_shard::manifest::ClassEntry;
use forebay_shard::schema::{self, Column, ColumnType, ColumnValue, NumberType, Schema};
use forebay_store::try_map_parallel;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct OpenImages;

/// Suffix of the names of files with boxes.
const BOXES: &str = "annotations-bbox.csv";
/// Part of the names of files with class names. Lists of only the classes that have boxes also contain [`BOXABLE`].
const CLASSES: &str = "class-descriptions";
const BOXABLE: &str = "boxable";
const IMAGE_ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];
/// Columns of the files that become columns of records, with one number for each box.
const FLAGS: [(&str, &str); 5] = [
    ("IsDepiction", "depiction"),
    ("IsGroupOf", "group_of"),
    ("IsInside", "inside"),
    ("IsOccluded", "occluded"),
    ("IsTruncated", "truncated"),
];
/// Number of threads that look up the sizes of images.
const THREADS: usize = 16;

impl Format for OpenImages {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "openimages",
            title: "an OpenImages dataset",
            advice: "`forebay convert` keeps the boxes of OpenImages; `forebay pack --labels FILE` joins the lines of another of its files to the images by ImageID",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| name.ends_with(BOXES))
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let root = input.location.local_path()?;
        let files = Files::of(root, input.split.as_deref())?;
        let classes = match &files.classes {
            Some(path) => read_classes(path)?,
            None => Vec::new(),
        };
        let mut identity = blake3::Hasher::new();
        let mut labels = Labels::new(&classes);
        let (mut splits, mut findings) = (Vec::new(), Vec::new());
        for (split, path) in &files.boxes {
            let mut images = list_images(root, split)?;
            let absent = read_boxes(path, &mut images, &mut labels, input.on_bad_record)?;
            findings.extend(absent);
            identity.update(&super::annotation_files::digest_of(path)?);
            for entry in &images.entries {
                identity.update(entry.name.as_bytes());
                identity.update(&entry.bytes.to_le_bytes());
            }
            splits.push((split.clone(), images));
        }
        let (classes, numbers) = labels.finish(classes);
        let mut columns = vec![Column::new(schema::IMAGE, ColumnType::Image)];
        let is_kept = |name: &str| !input.drop_features.contains(name);
        columns
            .extend(is_kept(schema::BOXES).then(|| Column::new(schema::BOXES, ColumnType::Boxes)));
        let number = NumberType::Int64;
        let flags = FLAGS.iter().map(|(_, name)| *name);
        columns.extend(
            flags
                .filter(|name| is_kept(name))
                .map(|name| Column::new(name, ColumnType::Vector { len: None, number })),
        );
        let schema = Schema::new(columns).map_err(|what| Error::source(root, what))?;
        let (schema, numbers) = (Arc::new(schema), Arc::new(numbers));
        let splits = splits.into_iter().map(|(split, images)| {
            let file = SplitImages {
                images,
                schema: Arc::clone(&schema),
                labels: Arc::clone(&numbers),
            };
            RecordSplit::new(split, [ListedImages(file)])
        });
        Ok(RecordSource::annotated(
            splits.collect(),
            classes,
            schema.features(),
            &schema,
            &identity,
            findings,
        ))
    }
}

/// The files of a source.
struct Files {
    /// Files with boxes, by split.
    boxes: BTreeMap<String, PathBuf>,
    classes: Option<PathBuf>,
}

impl Files {
    fn of(root: &Path, wanted: Option<&str>) -> Result<Self> {
        let mut found = Self {
            boxes: BTreeMap::new(),
            classes: None,
        };
        let wanted = wanted.map(|split| split_name(split.as_bytes()).unwrap_or(split));
        for (name, path) in list(root)? {
            if name.contains(CLASSES) && name.ends_with(".csv") {
                // If both lists exist, the list of classes with boxes is used.
                let is_better = name.contains(BOXABLE) || found.classes.is_none();
                found.classes = Some(path).filter(|_| is_better).or(found.classes);
            } else if let Some(parts) = name.strip_suffix(BOXES) {
                let mut parts = parts.split('-');
                let split = parts.find_map(|part| split_name(part.as_bytes()));
                let Some(split) = split else {
                    let what = "its name has no train-, validation- or test-: it is not clear which images it is of";
                    return Err(Error::source(&path, what));
                };
                if wanted.is_some_and(|wanted| wanted != split) {
                    continue;
                }
                if let Some(other) = found.boxes.insert(split.to_owned(), path.clone()) {
                    let what = format!("{} has boxes of the same split", other.display());
                    return Err(Error::source(&path, what));
                }
            }
        }
        if found.boxes.is_empty() {
            let what = match wanted {
                Some(split) => format!("there is no {split}-{BOXES}"),
                None => format!("there is no file *-{BOXES}"),
            };
            return Err(Error::source(root, what));
        }
        Ok(found)
    }
}

/// Returns the entries of a directory, sorted by name, without names that are not UTF-8.
fn list(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| Error::io(dir, "list", error))? {
        let entry = entry.map_err(|error| Error::io(dir, "list", error))?;
        let name = entry.file_name().to_str().map(str::to_owned);
        found.extend(name.map(|name| (name, entry.path())));
    }
    found.sort();
    Ok(found)
}

/// Reads the classes of a list. Each line has a Freebase id such as `/m/011k07`, and a name.
fn read_classes(path: &Path) -> Result<Vec<ClassEntry>> {
    let fail = |error: csv::Error| Error::list(path, error.to_string());
    let bytes = super::annotation_files::read_limited(path)?;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(&bytes[..]);
    let mut classes = Vec::new();
    for line in reader.records() {
        let line = line.map_err(fail)?;
        let (Some(name), Some(text), None) = (line.get(0), line.get(1), line.get(2)) else {
            let at = line.position().map_or(0, |at| {
                let start = usize::try_from(at.byte()).unwrap_or(usize::MAX);
                line_of(at, bytes.get(start..).unwrap_or_default())
            });
            let what = format!("line {at}: it does not have the two columns of a class");
            return Err(Error::list(path, what));
        };
        // Newer lists have a header line.
        if name != "LabelName" {
            classes.push(ClassEntry {
                name: name.to_owned(),
                text: Some(text.to_owned()),
            });
        }
    }
    Ok(classes)
}

/// Numbers class names in order of occurrence.
struct Labels {
    numbers: HashMap<String, u32>,
    /// Whether a list defines all classes.
    is_closed: bool,
}

impl Labels {
    fn new(classes: &[ClassEntry]) -> Self {
        let names = classes.iter().map(|class| class.name.clone());
        Self {
            numbers: names.zip(0..).collect(),
            is_closed: !classes.is_empty(),
        }
    }

    /// Returns the number of a name; `None` if the list of classes does not have it.
    fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u32::try_from(self.numbers.len()).ok()?;
        (!self.is_closed).then(|| *self.numbers.entry(name.to_owned()).or_insert(number))
    }

    /// Returns the classes, and the label for each number: the position in the list or, without a list, in the sorted names.
    fn finish(self, classes: Vec<ClassEntry>) -> (Vec<ClassEntry>, Vec<i64>) {
        if self.is_closed {
            let labels = (0..).take(classes.len()).collect();
            return (classes, labels);
        }
        let mut names: Vec<(String, u32)> = self.numbers.into_iter().collect();
        names.sort();
        let mut labels = vec![0; names.len()];
        for ((_, number), label) in names.iter().zip(0..) {
            labels[*number as usize] = label;
        }
        let class = |(name, _)| ClassEntry { name, text: None };
        (names.into_iter().map(class).collect(), labels)
    }
}

/// A box as stored in the file.
#[derive(Debug, Clone, Copy)]
struct BoxRow {
    image: u32,
    /// Number of its class in [`Labels`].
    class: u32,
    /// (xmin, ymin, xmax, ymax) as fractions of width and height.
    corners: [f32; 4],
    /// Values of [`FLAGS`]; -1 means unknown.
    flags: [i8; FLAGS.len()],
}

#[derive(Debug)]
struct Entry {
    /// Index of its directory.
    dir: usize,
    /// File name, which is also the key.
    name: String,
    bytes: u64,
}

/// The images of a split with their boxes.
#[derive(Debug)]
struct Images {
    dirs: Vec<PathBuf>,
    entries: Vec<Entry>,
    /// Sorted by image; boxes of one image are in the order of the file.
    boxes: Vec<BoxRow>,
}

/// Lists the images of a split, sorted by name.
fn list_images(root: &Path, split: &str) -> Result<Images> {
    let mut dirs = Vec::new();
    for parent in [root.to_path_buf(), root.join("images")] {
        if parent.is_dir() {
            let is_of_split = |name: &str| {
                let part = name.rsplit_once('_').filter(|(_, part)| part.len() == 1);
                split_name(part.map_or(name, |(name, _)| name).as_bytes()) == Some(split)
            };
            let below = list(&parent)?.into_iter();
            dirs.extend(
                below
                    .filter(|(name, path)| is_of_split(name) && path.is_dir())
                    .map(|(_, path)| path),
            );
        }
    }
    let mut names = Vec::new();
    for (number, dir) in dirs.iter().enumerate() {
        let is_image = |name: &str| {
            let ending = name.rsplit_once('.').map(|(_, ending)| ending);
            ending
                .is_some_and(|ending| IMAGE_ENDINGS.iter().any(|e| e.eq_ignore_ascii_case(ending)))
        };
        let found = list(dir)?.into_iter();
        names.extend(
            found
                .filter(|(name, _)| is_image(name))
                .map(|(name, _)| (name, number)),
        );
    }
    names.sort();
    if names.is_empty() {
        let what = format!(
            "there are no images of the split {split}: they are expected in {split}/, images/{split}/ or {split}_0/ and so on"
        );
        return Err(Error::source(root, what));
    }
    let entry = |(name, dir): &(String, usize)| -> Result<_> {
        let path = dirs[*dir].join(name);
        let meta = std::fs::metadata(&path).map_err(|error| Error::io(&path, "stat", error))?;
        Ok(Entry {
            dir: *dir,
            name: name.clone(),
            bytes: meta.len(),
        })
    };
    let entries = try_map_parallel(&names, THREADS, &|| false, entry)?;
    Ok(Images {
        dirs,
        entries: entries.into_iter().flatten().collect(),
        boxes: Vec::new(),
    })
}

fn two_forms(id: &str) -> String {
    let id = escape(id.as_bytes());
    format!("two images are called {id} in other Unicode forms: write it as one of them")
}

/// Reads the boxes of images. Returns findings about Unicode forms of names and about lines for missing images.
fn read_boxes(
    path: &Path,
    images: &mut Images,
    labels: &mut Labels,
    policy: OnBadRecord,
) -> Result<Vec<Finding>> {
    let mut numbers: HashMap<&str, u32> = HashMap::with_capacity(images.entries.len());
    for (entry, number) in images.entries.iter().zip(0..) {
        let stem = entry.name.rsplit_once('.').map_or("", |(stem, _)| stem);
        if numbers.insert(stem, number).is_some() {
            let what = format!("two images are called {}", escape(stem.as_bytes()));
            return Err(Error::source(&images.dirs[entry.dir], what));
        }
    }
    let stems = numbers
        .iter()
        .map(|(stem, number)| (stem.as_bytes(), *number));
    let forms = NameForms::new(stems);
    let mut of_other_form = BTreeSet::new();
    let (mut boxes, mut absent, mut first) = (Vec::new(), 0u64, String::new());
    Rows::open(path)?.each(|line, cells| {
        let fail = |what: String| Error::list(path, format!("line {line}: {what}"));
        let cell = |wanted: &str| {
            let found = cells.iter().find(|(name, _)| name == wanted);
            found.map(|(_, cell)| cell)
        };
        let text = |wanted: &str| {
            let bytes = cell(wanted).map(Cell::to_bytes).unwrap_or_default();
            match std::str::from_utf8(&bytes) {
                Ok(text) if !text.is_empty() => Ok(text.to_owned()),
                _ => Err(fail(format!("it has no {wanted}"))),
            }
        };
        let id = text("ImageID")?;
        let exact = |id: &[u8]| numbers.get(std::str::from_utf8(id).ok()?).copied();
        let image = exact(id.as_bytes()).map(Ok).or_else(|| {
            let found = forms.find(id.as_bytes(), exact);
            of_other_form.extend(found.ok().flatten());
            found.map_err(|Ambiguous| fail(two_forms(&id))).transpose()
        });
        let Some(image) = image.transpose()? else {
            if policy == OnBadRecord::Fail {
                let what = format!(
                    "there is no image {}; {ON_BAD} skip leaves out the lines of images that are not there",
                    escape(id.as_bytes())
                );
                return Err(fail(what));
            }
            if absent == 0 {
                first = id;
            }
            absent += 1;
            return Ok(());
        };
        let name = text("LabelName")?;
        let class = labels.number(&name);
        let class =
            class.ok_or_else(|| fail(format!("the list of classes does not have {name:?}")))?;
        let side = |wanted: &str| {
            let number = cell(wanted).and_then(Cell::to_float);
            number.ok_or_else(|| fail(format!("{wanted} is no number")))
        };
        let corners = [side("XMin")?, side("YMin")?, side("XMax")?, side("YMax")?];
        let [xmin, ymin, xmax, ymax] = corners;
        if xmin > xmax || ymin > ymax {
            return Err(fail(format!("its box is {xmin}, {ymin} to {xmax}, {ymax}")));
        }
        let mut flags = [-1; FLAGS.len()];
        for (flag, (wanted, _)) in flags.iter_mut().zip(FLAGS) {
            if let Some(cell) = cell(wanted).filter(|cell| **cell != Cell::Empty) {
                let number = cell.to_int64().and_then(|number| i8::try_from(number).ok());
                *flag = number.ok_or_else(|| fail(format!("{wanted} is no small integer")))?;
            }
        }
        boxes.push(BoxRow {
            image,
            class,
            corners,
            flags,
        });
        Ok(())
    })?;
    // The sort is stable: boxes of an image keep the order of the file.
    boxes.sort_by_key(|row: &BoxRow| row.image);
    images.boxes = boxes;
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let forms = Finding::other_forms(path, of_other_form.len() as u64);
    let lost = (absent > 0).then(|| {
        let detail = format!(
            "the first image of {absent} lines of {} that are left out",
            escape(name)
        );
        Finding::new(Action::Skipped, Reason::NotThere, first.as_bytes(), detail)
    });
    Ok(forms.into_iter().chain(lost).collect())
}

/// The images of a split as one file of records.
#[derive(Debug)]
struct SplitImages {
    images: Images,
    schema: Arc<Schema>,
    /// The label for each class number.
    labels: Arc<Vec<i64>>,
}

impl ImageFiles for SplitImages {
    fn path(&self) -> &Path {
        self.images.dirs.first().map_or(Path::new(""), |dir| dir)
    }

    fn count(&self) -> usize {
        self.images.entries.len()
    }

    fn image(&self, number: usize) -> ImageFile<'_> {
        let entry = &self.images.entries[number];
        ImageFile {
            dir: &self.images.dirs[entry.dir],
            name: Path::new(&entry.name),
            bytes: entry.bytes,
            more_bytes: 0,
            label: None,
            line: None,
            // Boxes are fractions, so the size does not matter.
            declared: None,
        }
    }

    fn encode(&self, number: usize, image: &ReadImage<'_>, out: &mut Vec<u8>) -> Result<()> {
        encode_columns(
            self.schema.columns(),
            |column| Some(self.value(&column.name, number as u64, image.bytes)),
            &[],
            || self.image(number).path(),
            out,
        )
    }
}

impl SplitImages {
    /// Returns the value of a column of an image.
    fn value<'a>(&self, column: &str, image: u64, bytes: &'a [u8]) -> ColumnValue<'a> {
        let all = &self.images.boxes;
        let from = all.partition_point(|row| u64::from(row.image) < image);
        let to = all.partition_point(|row| u64::from(row.image) <= image);
        let rows = all[from..to].iter();
        match column {
            schema::IMAGE => ColumnValue::Bytes(bytes),
            schema::BOXES => ColumnValue::Boxes {
                boxes: rows.clone().map(|row| row.corners).collect(),
                labels: rows.map(|row| self.labels[row.class as usize]).collect(),
            },
            _ => {
                let flag = FLAGS.iter().position(|(_, name)| *name == column);
                let of = |row: &BoxRow| flag.map_or(-1, |flag| i64::from(row.flags[flag]));
                ColumnValue::Ints(rows.map(of).collect())
            }
        }
    }
}
