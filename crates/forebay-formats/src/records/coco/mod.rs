//! COCO: images with objects, keypoints, captions and panoptic segments in JSON files.
//!
//! A source is a directory with `annotations/TASK_SPLIT.json` and the images of each split in `SPLIT/`, or a directory with
//! `_annotations.coco.json` beside the images, as Roboflow exports them.

mod annotations;
mod document;
mod panoptic;
#[cfg(test)]
mod tests;

use super::annotation_files::find_listed;
use super::listed_images::{ImageFile, ImageFiles, ListedImages, ReadImage, encode_columns};
use super::{Format, FormatInfo, OnBadRecord, RecordInput, RecordSource, RecordSplit};
use crate::archive::hash_text;
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason, escape};
use crate::name_forms::FileForms;
use crate::option_names::DROP_FEATURE;
use annotations::{Annotations, Image};
use forebay_shard::example::FeatureKind;
use forebay_shard::manifest::FeatureEntry;
use forebay_shard::schema::{self, Column, ColumnType, NumberType, Schema};
use forebay_store::map_parallel;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(super) struct Coco;

/// The annotation file in a directory of images, as Roboflow writes it.
const BESIDE_IMAGES: &str = "_annotations.coco.json";
/// The directory of annotation files in COCO's own layout.
const ANNOTATIONS: &str = "annotations";
/// The tasks whose annotations are read. The stuff annotations are contained in the panoptic ones.
const TASKS: [&str; 4] = ["instances", "person_keypoints", "captions", "panoptic"];
/// Number of threads that look up the sizes of files.
const STAT_THREADS: usize = 16;

/// Further features of records, which are lists of byte strings.
const CAPTIONS: &str = "captions";
const SEGMENTATION: &str = "segmentation";

impl Format for Coco {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "coco",
            title: "a COCO dataset",
            advice: "`forebay convert` keeps the boxes, keypoints, captions and segments of COCO; `forebay pack --layout NAME` packs the images alone",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let is_split = |name: &&str| {
            let year = name.trim_start_matches(|c: char| c.is_ascii_lowercase());
            year.len() == 4 && year.len() < name.len() && year.bytes().all(|b| b.is_ascii_digit())
        };
        let named = |wanted: &str| names.iter().copied().find(|name| *name == wanted);
        let splits = names.iter().any(is_split);
        let annotations = names.iter().copied().find(|name| is_annotations(name));
        let by_year = || named(ANNOTATIONS).filter(|_| splits);
        named(BESIDE_IMAGES).or(annotations).or_else(by_year)
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let root = input.location.local_path()?;
        let mut findings = Vec::new();
        let found = find(root, &mut findings)?;
        let mut hasher = blake3::Hasher::new();
        let mut splits = Vec::new();
        let mut all = Vec::new();
        for (split, split_files) in found {
            let mut annotations = Annotations::read(&split_files.files)?;
            add_sizes(
                &mut annotations,
                &split_files.images,
                input.on_bad_record,
                &mut findings,
            )?;
            for path in split_files.files.values() {
                hash_text(path.as_os_str().as_encoded_bytes(), &mut hasher);
            }
            hasher.update(split.as_bytes());
            hasher.update(annotations.digest.as_bytes());
            for image in &annotations.images {
                hasher.update(&image.bytes.to_le_bytes());
                if let Some(mask) = &image.segments {
                    hasher.update(&mask.bytes.to_le_bytes());
                }
            }
            all.push((split, split_files.images, Arc::new(annotations)));
        }
        let columns = columns(all.iter().map(|(_, _, annotations)| &**annotations));
        let dropped = &input.drop_features;
        let columns = columns
            .into_iter()
            .filter(|column| !dropped.contains(&column.name));
        let columns =
            Arc::new(Schema::new(columns.collect()).map_err(|what| Error::source(root, what))?);
        let lists: BTreeSet<&'static str> = [CAPTIONS, SEGMENTATION]
            .into_iter()
            .filter(|name| !dropped.contains(*name) && all.iter().any(|(_, _, a)| a.has(name)))
            .collect();
        let mut features = columns.features();
        let list = |name: &&str| FeatureEntry::new(*name, FeatureKind::Bytes, true);
        features.extend(lists.iter().map(list));
        let classes = classes(root, &all)?;
        for (name, images, annotations) in all {
            let file = Split {
                path: images,
                annotations,
                columns: columns.clone(),
                lists: lists.clone(),
                json: OnceLock::new(),
            };
            splits.push(RecordSplit::new(name, [ListedImages(file)]));
        }
        Ok(RecordSource::annotated(
            splits, classes, features, &columns, &hasher, findings,
        ))
    }
}

/// Returns whether a path in a source is that of annotations: `annotations/TASK_SPLIT.json`.
fn is_annotations(path: &str) -> bool {
    let name = path
        .strip_prefix(ANNOTATIONS)
        .and_then(|rest| rest.strip_prefix('/'));
    let name = name.and_then(|name| name.strip_suffix(".json"));
    let is_of = |name: &str, task| {
        let split = name
            .strip_prefix(task)
            .and_then(|rest| rest.strip_prefix('_'));
        split.is_some_and(|split| !split.is_empty())
    };
    name.is_some_and(|name| TASKS.iter().any(|task| is_of(name, *task)))
}

/// The files of a split.
struct SplitFiles {
    /// Annotation files by task.
    files: BTreeMap<&'static str, PathBuf>,
    images: PathBuf,
}

fn find(root: &Path, findings: &mut Vec<Finding>) -> Result<BTreeMap<String, SplitFiles>> {
    let mut found: BTreeMap<String, SplitFiles> = BTreeMap::new();
    let beside = root.join(BESIDE_IMAGES);
    if beside.exists() {
        let name = root.file_name().and_then(|name| name.to_str());
        let split = name.filter(|name| ["valid", "test", "val"].contains(name));
        let split_files = SplitFiles {
            files: BTreeMap::from([("instances", beside)]),
            images: root.to_path_buf(),
        };
        found.insert(split.unwrap_or("train").to_owned(), split_files);
        return Ok(found);
    }
    let dir = root.join(ANNOTATIONS);
    let entries = std::fs::read_dir(&dir).map_err(|error| Error::io(&dir, "list", error))?;
    for entry in entries {
        let path = entry
            .map_err(|error| Error::io(&dir, "list", error))?
            .path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let name = name.strip_suffix(".json").unwrap_or_default();
        for task in TASKS {
            let split = name
                .strip_prefix(task)
                .and_then(|rest| rest.strip_prefix('_'));
            let Some(split) = split else { continue };
            let images = [root.join(split), root.join("images").join(split)];
            let Some(images) = images.into_iter().find(|dir| dir.is_dir()) else {
                let path = format!("{ANNOTATIONS}/{name}.json");
                let (action, reason) = (Action::Skipped, Reason::NotThere);
                let what = format!("there is no directory {split} of its images");
                findings.push(Finding::new(action, reason, path.as_bytes(), what));
                continue;
            };
            let split_files = found.entry(split.to_owned()).or_insert_with(|| SplitFiles {
                files: BTreeMap::new(),
                images,
            });
            split_files.files.insert(task, path.clone());
        }
    }
    findings.sort_by(|a, b| a.path.cmp(&b.path));
    if found.is_empty() {
        let what = "it has no annotations/instances_SPLIT.json, person_keypoints_SPLIT.json, captions_SPLIT.json or panoptic_SPLIT.json with a directory SPLIT of images";
        return Err(Error::source(root, what));
    }
    Ok(found)
}

/// Looks up the sizes of the images and their masks. Leaves out images whose file or mask is missing.
fn add_sizes(
    annotations: &mut Annotations,
    dir: &Path,
    policy: OnBadRecord,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let masks = annotations.masks.as_deref();
    let forms = FileForms::default();
    let files = map_parallel(
        &annotations.images,
        STAT_THREADS,
        &|| false,
        || (),
        |(), image: &Image| {
            let found = find_listed(dir, Path::new(&image.name), &forms)?;
            let mask = masks.zip(image.segments.as_ref());
            let mask = mask.map(|(dir, segments)| panoptic::find(dir, segments, &forms));
            Ok((found, mask.transpose()?))
        },
    );
    let mut found = Vec::with_capacity(annotations.images.len());
    for (mut image, files) in annotations.images.drain(..).zip(files) {
        let (own, mask) = files.unwrap_or(Err(Error::Interrupted))?;
        let (what, place) = match (own, mask) {
            (Some((own, bytes)), mask) if mask != Some(None) => {
                image.name = own.to_string_lossy().into_owned();
                image.bytes = bytes;
                if let (Some(segments), Some(Some(file))) = (&mut image.segments, mask) {
                    (segments.name, segments.bytes) = file;
                }
                found.push(image);
                continue;
            }
            (None, _) => ("there is no image of this name", dir),
            (Some(_), _) => ("there is no mask of it", masks.unwrap_or(dir)),
        };
        let (name, what) = (image.name.as_bytes(), what.to_owned());
        policy.leave_out(Reason::NotThere, place, name, what, findings)?;
    }
    annotations.images = found;
    findings.extend(Finding::other_forms(dir, forms.count()));
    Ok(())
}

/// Returns the columns that any split has.
fn columns<'a>(splits: impl Iterator<Item = &'a Annotations> + Clone) -> Vec<Column> {
    let mut columns = vec![
        Column::new(schema::IMAGE, ColumnType::Image),
        Column::new("image_id", ColumnType::Int),
    ];
    if splits.clone().any(|split| split.objects_file.is_some()) {
        columns.push(Column::new(schema::BOXES, ColumnType::Boxes));
        let crowd = ColumnType::Vector {
            len: None,
            number: NumberType::Int64,
        };
        columns.push(Column::new("iscrowd", crowd));
        let area = ColumnType::Vector {
            len: None,
            number: NumberType::Float32,
        };
        columns.push(Column::new("area", area));
    }
    if splits.clone().any(|split| split.keypoints > 0) {
        columns.push(Column::new("keypoints", ColumnType::Keypoints));
    }
    if splits.clone().any(|split| split.masks.is_some()) {
        columns.extend(panoptic::columns());
    }
    columns
}

/// Returns the classes, which all splits must share.
fn classes(
    root: &Path,
    splits: &[(String, PathBuf, Arc<Annotations>)],
) -> Result<Vec<forebay_shard::manifest::ClassEntry>> {
    let mut classes: Option<&(String, PathBuf, Arc<Annotations>)> = None;
    for split in splits.iter().filter(|split| !split.2.classes.is_empty()) {
        match classes {
            Some(first) if first.2.classes != split.2.classes => {
                let what = format!(
                    "{} and {} have other categories: convert each by itself",
                    first.0, split.0
                );
                return Err(Error::source(root, what));
            }
            _ => classes = Some(split),
        }
    }
    Ok(classes.map_or_else(Vec::new, |split| split.2.classes.clone()))
}

impl Annotations {
    fn has(&self, feature: &str) -> bool {
        match feature {
            CAPTIONS => self.has_captions,
            _ => {
                let mut objects = self.images.iter().flat_map(|image| &image.objects);
                objects.any(|object| object.segmentation.is_some())
            }
        }
    }
}

/// The images of a split as one file of records.
#[derive(Debug)]
struct Split {
    path: PathBuf,
    annotations: Arc<Annotations>,
    columns: Arc<Schema>,
    lists: BTreeSet<&'static str>,
    /// The annotation file with the objects, opened at first use.
    json: OnceLock<File>,
}

impl ImageFiles for Split {
    const RECORD_BYTES: u64 = 1 << 10;

    fn path(&self) -> &Path {
        &self.path
    }

    fn count(&self) -> usize {
        self.annotations.images.len()
    }

    fn image(&self, number: usize) -> ImageFile<'_> {
        let image = &self.annotations.images[number];
        ImageFile {
            dir: &self.path,
            name: Path::new(&image.name),
            bytes: image.bytes,
            more_bytes: image.segments.as_ref().map_or(0, |mask| mask.bytes),
            label: None,
            line: None,
            declared: image.declared(),
        }
    }

    fn encode(&self, number: usize, read: &ReadImage<'_>, out: &mut Vec<u8>) -> Result<()> {
        let image = &self.annotations.images[number];
        let segmentations = self.segmentations(image)?;
        let has_segmentation = |json: &Vec<u8>| !json.is_empty() && json != b"[]";
        if !image.is_of_size(read.size) && segmentations.iter().any(has_segmentation) {
            let what = format!(
                "{}: its segmentation is in pixels of an image of {}x{}, and the image has {}x{}; {DROP_FEATURE} {SEGMENTATION} leaves segmentations out",
                escape(image.name.as_bytes()),
                image.width,
                image.height,
                read.size[0],
                read.size[1]
            );
            return Err(Error::record(&self.path, number as u64, what));
        }
        let masks = self.annotations.masks.as_deref();
        let mask = masks.filter(|_| self.columns.column(panoptic::MASK).is_some());
        let mask = mask.zip(image.segments.as_ref());
        let mask = mask.map(|(dir, segments)| segments.read(dir, number as u64, read.size));
        let mask = mask.transpose()?;
        let texts: Vec<&[u8]> = image.captions.iter().map(|text| text.as_bytes()).collect();
        let json: Vec<&[u8]> = segmentations.iter().map(Vec::as_slice).collect();
        let lists = self.lists.iter().map(|name| {
            let values = if *name == CAPTIONS { &texts } else { &json };
            (&**name, values.clone())
        });
        encode_columns(
            self.columns.columns(),
            |column| value_of(&column.name, image, read, mask.as_deref()),
            &lists.collect::<Vec<_>>(),
            || self.image(number).path(),
            out,
        )
    }
}

impl Split {
    /// Returns the JSON of the segmentation of each object; empty for objects without one.
    fn segmentations(&self, image: &Image) -> Result<Vec<Vec<u8>>> {
        let Some(path) = &self.annotations.objects_file else {
            return Ok(Vec::new());
        };
        if !self.lists.contains(SEGMENTATION) {
            return Ok(Vec::new());
        }
        let file = match self.json.get() {
            Some(file) => file,
            None => {
                let file = File::open(path).map_err(|error| Error::io(path, "open", error))?;
                self.json.get_or_init(|| file)
            }
        };
        let read = |object: &annotations::Object| match &object.segmentation {
            Some(range) => {
                let mut json = vec![0; (range.end - range.start) as usize];
                let read = file.read_exact_at(&mut json, range.start);
                read.map_err(|error| Error::io(path, "read", error))?;
                Ok(json)
            }
            None => Ok(Vec::new()),
        };
        image.objects.iter().map(read).collect()
    }
}

/// Returns the value of a column of an image; `None` for the columns of segments if the image has no mask.
fn value_of<'a>(
    column: &str,
    image: &Image,
    read: &ReadImage<'a>,
    mask: Option<&'a [u8]>,
) -> Option<schema::ColumnValue<'a>> {
    use schema::ColumnValue;
    if panoptic::has(column) {
        return match column {
            panoptic::MASK => mask.map(ColumnValue::Bytes),
            _ => image.segments.as_ref().map(|all| all.value(column)),
        };
    }
    let objects = image.objects.iter();
    Some(match column {
        schema::IMAGE => ColumnValue::Bytes(read.bytes),
        "image_id" => ColumnValue::Int(image.id),
        schema::BOXES => ColumnValue::Boxes {
            boxes: objects.clone().map(|object| object.corners).collect(),
            labels: objects.map(|object| object.label).collect(),
        },
        "iscrowd" => ColumnValue::Ints(objects.map(|o| i64::from(o.is_crowd)).collect()),
        "area" => {
            let scale = image.area_scale(read.size);
            ColumnValue::Floats(objects.map(|object| object.area * scale).collect())
        }
        _ => {
            let points = objects.flat_map(|object| &object.keypoints);
            ColumnValue::Keypoints {
                points: points.clone().map(|[x, y, _]| [*x, *y]).collect(),
                visibility: points.map(|[.., visibility]| *visibility as i64).collect(),
            }
        }
    })
}
