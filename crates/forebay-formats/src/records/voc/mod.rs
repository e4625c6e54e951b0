//! Pascal VOC: images in `JPEGImages/`, an XML file with the objects of each image in `Annotations/`, masks of some images in
//! `SegmentationClass/` and `SegmentationObject/`, and lists of the images of each split in `ImageSets/Main/` and
//! `ImageSets/Segmentation/`.
//!
//! A source is such a directory, or a directory with several of them, such as `VOCdevkit` with `VOC2007` and `VOC2012`.

mod annotation;
mod masks;
#[cfg(test)]
mod tests;

use super::annotation_files::{find_listed, is_inside, read_limited};
use super::listed_images::{ImageFile, ImageFiles, ListedImages, ReadImage, encode_columns};
use super::{Format, FormatInfo, OnBadRecord, RecordInput, RecordSource, RecordSplit};
use crate::archive::hash_text;
use crate::error::{Error, Result};
use crate::finding::{Finding, Reason};
use crate::name_forms::FileForms;
use annotation::Annotation;
use forebay_shard::example::FeatureKind;
use forebay_shard::manifest::{ClassEntry, FeatureEntry};
use forebay_shard::schema::{self, Column, ColumnType, ColumnValue, NumberType, Schema};
use forebay_store::map_parallel;
use masks::MaskFiles;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct Voc;

const IMAGES: &str = "JPEGImages";
const ANNOTATIONS: &str = "Annotations";
const DEVKIT: &str = "VOCdevkit";
/// The directory of lists of splits. Lists of a single class have an underscore in their names.
const LISTS: &str = "ImageSets/Main";
/// The directory of lists of images with masks. These are the splits if the user names the split `SEGMENTATION`.
const MASK_LISTS: &str = "ImageSets/Segmentation";
const SEGMENTATION: &str = "segmentation";
/// The union of the splits `train` and `val`.
const TRAINVAL: &str = "trainval";
const ENDINGS: [&str; 6] = ["jpg", "jpeg", "png", "JPG", "JPEG", "PNG"];
/// The classes of VOC. If a dataset has only some of them, they are still numbered by this list.
const CLASSES: [&str; 20] = [
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
];
/// Number of threads that read small files.
const THREADS: usize = 16;

/// Columns with one number for each box.
const FLAGS: [&str; 3] = ["difficult", "truncated", "occluded"];
/// A feature with one text for each box.
const POSE: &str = "pose";

impl Format for Voc {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "voc",
            title: "a Pascal VOC dataset",
            advice: "`forebay convert` keeps the boxes of Pascal VOC; `forebay pack --layout NAME` packs the images alone",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let named = |wanted: &str| names.iter().copied().find(|name| *name == wanted);
        let year = || names.iter().copied().find(|name| is_year(name));
        named(IMAGES)
            .filter(|_| names.contains(&ANNOTATIONS))
            .or_else(|| named(DEVKIT))
            .or_else(year)
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let root = input.location.local_path()?;
        let mut parts: Vec<(String, Vec<Entry>, PathBuf)> = Vec::new();
        let of_masks = input.split.as_deref() == Some(SEGMENTATION);
        let (policy, mut findings) = (input.on_bad_record, Vec::new());
        for place in places(root)? {
            let found = match of_masks {
                true => lists(&place, MASK_LISTS, None)?,
                false => lists(&place, LISTS, input.split.as_deref())?,
            };
            for (split, ids) in found {
                let mut entries = read_all(&place, &ids, policy, &mut findings)?;
                if of_masks {
                    masks::check_list(&place, &mut entries, policy, &mut findings)?;
                }
                parts.push((split, entries, place.clone()));
            }
        }
        parts.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.2.cmp(&b.2)));
        let all = || parts.iter().flat_map(|(_, entries, _)| entries);
        let classes = classes(all());
        let has_boxes = all().any(|entry| entry.annotation.is_some());
        let kept = |name: &str| !input.drop_features.contains(name);
        let schema = Schema::new(columns(all(), has_boxes, &kept));
        let schema = Arc::new(schema.map_err(|what| Error::source(root, what))?);
        let mut poses = all().flat_map(Entry::objects).map(|object| &object.pose);
        let has_pose = kept(POSE) && poses.any(|pose| !pose.is_empty() && pose != "Unspecified");
        let mut features = schema.features();
        features.extend(has_pose.then(|| FeatureEntry::new(POSE, FeatureKind::Bytes, true)));
        let hasher = hash(&parts);
        let labels: BTreeMap<String, i64> = classes.iter().cloned().zip(0..).collect();
        let labels = Arc::new(labels);
        let mut splits: BTreeMap<String, Vec<ListedImages<Images>>> = BTreeMap::new();
        for (split, entries, place) in parts {
            let file = Images {
                path: place.join(IMAGES),
                entries,
                schema: Arc::clone(&schema),
                labels: Arc::clone(&labels),
                has_pose,
            };
            splits.entry(split).or_default().push(ListedImages(file));
        }
        let splits = splits
            .into_iter()
            .map(|(name, files)| RecordSplit::new(name, files));
        let class = |name| ClassEntry { name, text: None };
        Ok(RecordSource::annotated(
            splits.collect(),
            classes.into_iter().map(class).collect(),
            features,
            &schema,
            &hasher,
            findings,
        ))
    }
}

/// Returns whether a name has the form `VOC2012`.
fn is_year(name: &str) -> bool {
    let year = name.strip_prefix("VOC").unwrap_or_default();
    year.len() == 4 && year.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the directories with images and annotations: the source itself, or one for each year.
fn places(root: &Path) -> Result<Vec<PathBuf>> {
    let is_place = |dir: &Path| dir.join(IMAGES).is_dir() && dir.join(ANNOTATIONS).is_dir();
    if is_place(root) {
        return Ok(vec![root.to_path_buf()]);
    }
    let mut found = Vec::new();
    for dir in [root.to_path_buf(), root.join(DEVKIT)] {
        for entry in std::fs::read_dir(&dir).into_iter().flatten() {
            let entry = entry.map_err(|error| Error::io(&dir, "list", error))?;
            let is_named = entry.file_name().to_str().is_some_and(is_year);
            found.extend(Some(entry.path()).filter(|path| is_named && is_place(path)));
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(Error::source(
            root,
            format!(
                "there is no directory with {IMAGES}/ and {ANNOTATIONS}/, neither here nor in VOC2012/ and the like"
            ),
        )),
        false => Ok(found),
    }
}

/// Returns the names of the images of each split, in the order of its list.
fn lists(place: &Path, dir: &str, forced: Option<&str>) -> Result<BTreeMap<String, Vec<String>>> {
    let is_main = dir == LISTS;
    let dir = place.join(dir);
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(&dir).into_iter().flatten() {
        let path = entry
            .map_err(|error| Error::io(&dir, "list", error))?
            .path();
        let name = path.file_name().and_then(|name| name.to_str());
        let split = name.and_then(|name| name.strip_suffix(".txt"));
        // A list of a class has all images of a split, with a flag for each.
        let Some(split) = split.filter(|split| !split.contains('_')) else {
            continue;
        };
        let text = String::from_utf8(read_limited(&path)?)
            .map_err(|_| Error::source(&path, "it is not UTF-8"))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let ids: Vec<String> = lines.map(|line| id_of(place, line).to_owned()).collect();
        if ids.is_empty() {
            return Err(Error::source(&path, "the list names no image"));
        }
        found.insert(split.to_owned(), ids);
    }
    let has_parts = found.contains_key("train") && found.contains_key("val");
    if has_parts && forced != Some(TRAINVAL) {
        found.remove(TRAINVAL);
    }
    if let Some(split) = forced
        && !found.is_empty()
    {
        found.retain(|name, _| name == split);
        if found.is_empty() {
            return Err(Error::source(&dir, format!("there is no list {split}.txt")));
        }
    }
    if found.is_empty() && !is_main {
        return Err(Error::source(
            &dir,
            "there are no lists of images with masks",
        ));
    }
    if found.is_empty() {
        let dir = place.join(ANNOTATIONS);
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(|error| Error::io(&dir, "list", error))? {
            let entry = entry.map_err(|error| Error::io(&dir, "list", error))?;
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".xml"));
            ids.extend(id.map(str::to_owned));
        }
        if ids.is_empty() {
            return Err(Error::source(&dir, "there is no annotation in it"));
        }
        ids.sort();
        found.insert(forced.unwrap_or("train").to_owned(), ids);
    }
    Ok(found)
}

/// Returns the name in a line of a list. The name may be followed by a number, which tells whether the image has an object of a
/// class.
fn id_of<'l>(place: &Path, line: &'l str) -> &'l str {
    let Some((name, rest)) = line.split_once(char::is_whitespace) else {
        return line;
    };
    let is_number = rest.trim().parse::<i64>().is_ok();
    let is_there = || {
        let exists = |dir: &str, ending: &str| {
            let name = format!("{line}.{ending}");
            place.join(dir).join(name).is_file()
        };
        exists(ANNOTATIONS, "xml") || ENDINGS.iter().any(|ending| exists(IMAGES, ending))
    };
    // The name itself may contain spaces and end with a number.
    match is_number && !(is_inside(line) && is_there()) {
        true => name,
        false => line,
    }
}

/// An image of a split.
#[derive(Debug, Clone)]
struct Entry {
    /// File name in the directory of images, which is also the key.
    name: String,
    bytes: u64,
    annotation: Option<Annotation>,
    masks: MaskFiles,
    digest: [u8; 32],
}

impl Entry {
    fn objects(&self) -> &[annotation::Object] {
        self.annotation
            .as_ref()
            .map_or(&[], |annotation| &annotation.objects)
    }
}

/// Why an image is left out: the directory without its file or with an invalid one, the reason, and the details.
type LeftOut = (&'static str, Reason, String);

/// Finds images and reads their annotations. Either every image of a split has an annotation, or none has.
fn read_all(
    place: &Path,
    ids: &[String],
    policy: OnBadRecord,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Entry>> {
    let forms = FileForms::default();
    let read = |_: &mut (), id: &String| read_one(place, id, &forms);
    let read = map_parallel(ids, THREADS, &|| false, || (), read);
    let mut entries = Vec::with_capacity(ids.len());
    for (id, entry) in ids.iter().zip(read) {
        match entry.unwrap_or(Err(Error::Interrupted))? {
            Ok(entry) => entries.push(entry),
            Err((dir, reason, what)) => {
                policy.leave_out(reason, &place.join(dir), id.as_bytes(), what, findings)?;
            }
        }
    }
    findings.extend(Finding::other_forms(place, forms.count()));
    let has_annotation = |entry: &Entry| entry.annotation.is_some();
    let what = "there is no annotation of it, and others of its split have one";
    let of_dir = (place.join(ANNOTATIONS), what);
    keep_those_with(has_annotation, &of_dir, &mut entries, policy, findings)?;
    let mut names = BTreeSet::new();
    if let Some(twice) = entries.iter().find(|entry| !names.insert(&entry.name)) {
        let what = format!("{}: a list names it twice", twice.name);
        return Err(Error::source(place.join(LISTS), what));
    }
    Ok(entries)
}

/// Leaves out images that lack a file, unless all images lack it.
fn keep_those_with(
    is_there: impl Fn(&Entry) -> bool,
    (dir, what): &(PathBuf, &str),
    entries: &mut Vec<Entry>,
    policy: OnBadRecord,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    if !entries.iter().any(&is_there) {
        return Ok(());
    }
    for entry in entries.iter().filter(|entry| !is_there(entry)) {
        let (reason, what) = (Reason::BadAnnotation, (*what).to_owned());
        policy.leave_out(reason, dir, entry.name.as_bytes(), what, findings)?;
    }
    entries.retain(is_there);
    Ok(())
}

fn read_one(
    place: &Path,
    id: &str,
    forms: &FileForms,
) -> Result<std::result::Result<Entry, LeftOut>> {
    if !is_inside(id) {
        let what = format!("the name {id:?} leads out of the directory of images");
        return Err(Error::source(place.join(LISTS), what));
    }
    let of_annotations = place.join(ANNOTATIONS);
    let mut digest = [0; 32];
    let annotation = match find_listed(&of_annotations, Path::new(&format!("{id}.xml")), forms)? {
        Some((name, _)) => {
            let xml = read_limited(&of_annotations.join(name))?;
            digest = *blake3::hash(&xml).as_bytes();
            match annotation::parse(&xml) {
                Ok(annotation) => Some(annotation),
                Err(what) => return Ok(Err((ANNOTATIONS, Reason::BadAnnotation, what))),
            }
        }
        None => None,
    };
    let images = place.join(IMAGES);
    let named = annotation
        .as_ref()
        .map(|annotation| annotation.filename.clone());
    let named = named.filter(|name| Path::new(name).file_stem().is_some_and(|stem| stem == id));
    let usual = ENDINGS.iter().map(|ending| format!("{id}.{ending}"));
    let names = named
        .into_iter()
        .filter(|name| is_inside(name))
        .chain(usual);
    let mut found = None;
    for name in names {
        found = find_listed(&images, Path::new(&name), forms)?;
        if found.is_some() {
            break;
        }
    }
    let Some((name, bytes)) = found else {
        let what = "there is no image of this name".to_owned();
        return Ok(Err((IMAGES, Reason::NotThere, what)));
    };
    Ok(Ok(Entry {
        masks: masks::find(place, id, forms)?,
        name: name.to_string_lossy().into_owned(),
        bytes,
        annotation,
        digest,
    }))
}

/// Returns the class names in the order of their labels.
fn classes<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<String> {
    let objects = entries.flat_map(Entry::objects);
    let found: BTreeSet<&str> = objects.map(|object| object.name.as_str()).collect();
    let names: Vec<&str> = match found.iter().all(|name| CLASSES.contains(name)) {
        true => CLASSES.to_vec(),
        false => found.into_iter().collect(),
    };
    names.into_iter().map(str::to_owned).collect()
}

fn columns<'a>(
    entries: impl Iterator<Item = &'a Entry> + Clone,
    has_boxes: bool,
    kept: &dyn Fn(&str) -> bool,
) -> Vec<Column> {
    let mut columns = vec![Column::new(schema::IMAGE, ColumnType::Image)];
    let masks = masks::columns(entries.clone());
    let masks = masks.into_iter().filter(|column| kept(&column.name));
    if !has_boxes {
        columns.extend(masks);
        return columns;
    }
    columns.extend(
        Some(Column::new(schema::BOXES, ColumnType::Boxes)).filter(|_| kept(schema::BOXES)),
    );
    let mut objects = entries.flat_map(Entry::objects);
    let has_occluded = objects.any(|object| object.is_occluded);
    for name in FLAGS {
        if kept(name) && (name != "occluded" || has_occluded) {
            let number = NumberType::Int64;
            columns.push(Column::new(name, ColumnType::Vector { len: None, number }));
        }
    }
    columns.extend(masks);
    columns
}

fn hash(parts: &[(String, Vec<Entry>, PathBuf)]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    for (split, entries, place) in parts {
        for text in [split.as_bytes(), place.as_os_str().as_encoded_bytes()] {
            hash_text(text, &mut hasher);
        }
        hasher.update(&(entries.len() as u64).to_le_bytes());
        for entry in entries {
            hash_text(entry.name.as_bytes(), &mut hasher);
            hasher.update(&entry.bytes.to_le_bytes());
            hasher.update(&entry.digest);
            for (_, size) in entry.masks.iter().flatten() {
                hasher.update(&size.to_le_bytes());
            }
        }
    }
    hasher
}

/// The images of a split in one directory, as one file of records.
#[derive(Debug)]
struct Images {
    path: PathBuf,
    entries: Vec<Entry>,
    schema: Arc<Schema>,
    labels: Arc<BTreeMap<String, i64>>,
    has_pose: bool,
}

impl ImageFiles for Images {
    fn path(&self) -> &Path {
        &self.path
    }

    fn count(&self) -> usize {
        self.entries.len()
    }

    fn image(&self, number: usize) -> ImageFile<'_> {
        let entry = &self.entries[number];
        let masks = entry.masks.iter().flatten();
        ImageFile {
            dir: &self.path,
            name: Path::new(&entry.name),
            bytes: entry.bytes,
            more_bytes: masks.map(|(_, bytes)| bytes).sum(),
            label: None,
            line: None,
            declared: entry.annotation.as_ref().and_then(|found| found.size),
        }
    }

    fn encode(&self, number: usize, image: &ReadImage<'_>, out: &mut Vec<u8>) -> Result<()> {
        let entry = &self.entries[number];
        let columns = self.schema.columns();
        let is_mask = |column: &&Column| matches!(column.column_type, ColumnType::Mask);
        let masks = columns.iter().filter(is_mask).map(|column| {
            let of = (number as u64, image.size);
            let mask = masks::read(&self.path, entry, &column.name, of)?;
            Ok((&column.name, mask))
        });
        let masks = masks.collect::<Result<HashMap<_, _>>>()?;
        let poses = entry.objects().iter().map(|o| o.pose.as_bytes()).collect();
        let lists = [(POSE, poses)];
        encode_columns(
            columns,
            |column| match masks.get(&column.name) {
                Some(mask) => mask.as_deref().map(ColumnValue::Bytes),
                None => Some(self.value(&column.name, entry, image.bytes)),
            },
            if self.has_pose { &lists } else { &[] },
            || self.image(number).path(),
            out,
        )
    }
}

impl Images {
    /// Returns the value of a column of an image.
    fn value<'a>(&self, column: &str, entry: &Entry, bytes: &'a [u8]) -> ColumnValue<'a> {
        let objects = entry.objects().iter();
        let flags = |flag: fn(&annotation::Object) -> bool| {
            ColumnValue::Ints(
                objects
                    .clone()
                    .map(|object| i64::from(flag(object)))
                    .collect(),
            )
        };
        match column {
            schema::IMAGE => ColumnValue::Bytes(bytes),
            schema::BOXES => ColumnValue::Boxes {
                boxes: objects.clone().map(|object| object.corners).collect(),
                labels: objects
                    .map(|object| self.labels.get(&object.name).copied().unwrap_or(-1))
                    .collect(),
            },
            "difficult" => flags(|object| object.is_difficult),
            "truncated" => flags(|object| object.is_truncated),
            _ => flags(|object| object.is_occluded),
        }
    }
}
