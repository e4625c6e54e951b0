//! Reads COCO's annotation files: images, and the objects and captions of each image.

use super::document::{Annotation, Category, Document, ImageEntry, PanopticDocument};
use super::panoptic::{self, Segments};
use crate::error::{Error, Result};
use crate::records::annotation_files::is_inside;
use forebay_shard::manifest::ClassEntry;
use serde::Deserialize;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Largest annotation file. The largest one of COCO has 0.5 GiB.
const MAX_BYTES: u64 = 4 << 30;
/// Most keypoints of an object.
const MAX_KEYPOINTS: usize = 1000;

/// An image of a split.
#[derive(Debug, Clone)]
pub(super) struct Image {
    /// Its `id` in the annotation files.
    pub(super) id: i64,
    /// Its name relative to the directory of the split.
    pub(super) name: String,
    pub(super) width: f64,
    pub(super) height: f64,
    /// Size of its file in bytes.
    pub(super) bytes: u64,
    pub(super) objects: Vec<Object>,
    pub(super) captions: Vec<String>,
    pub(super) segments: Option<Segments>,
}

impl Image {
    /// Returns the size in the annotation; `None` if the image has no objects and the size does not matter.
    pub(super) fn declared(&self) -> Option<[f64; 2]> {
        (!self.objects.is_empty()).then_some([self.width, self.height])
    }

    /// Returns whether the annotation is for an image of this size; always true without objects.
    pub(super) fn is_of_size(&self, size: [u32; 2]) -> bool {
        self.objects.is_empty() || size.map(f64::from) == [self.width, self.height]
    }

    /// Returns the factor that scales areas of the annotation to an image of this size.
    pub(super) fn area_scale(&self, size: [u32; 2]) -> f32 {
        match self.is_of_size(size) {
            true => 1.0,
            false => {
                let [width, height] = size.map(f64::from);
                (width / self.width * (height / self.height)) as f32
            }
        }
    }
}

/// An object in an image.
#[derive(Debug, Clone)]
pub(super) struct Object {
    id: Option<i64>,
    /// Its category id; after all files are read, its class counted from 0.
    pub(super) label: i64,
    /// (xmin, ymin, xmax, ymax) as fractions of width and height.
    pub(super) corners: [f32; 4],
    pub(super) area: f32,
    pub(super) is_crowd: bool,
    /// The range of its segmentation (JSON) in the annotation file.
    pub(super) segmentation: Option<Range<u64>>,
    /// (x, y, visibility); x and y are fractions of width and height.
    pub(super) keypoints: Vec<[f32; 3]>,
}

/// The annotations of a split.
#[derive(Debug, Default)]
pub(super) struct Annotations {
    /// Sorted by name.
    pub(super) images: Vec<Image>,
    pub(super) classes: Vec<ClassEntry>,
    /// The annotation file with the objects.
    pub(super) objects_file: Option<PathBuf>,
    /// Number of keypoints of each object; 0 if there are none.
    pub(super) keypoints: usize,
    pub(super) has_captions: bool,
    /// The directory of the panoptic masks.
    pub(super) masks: Option<PathBuf>,
    /// Names of the categories by id.
    categories: BTreeMap<i64, String>,
    /// A hash of all annotation files.
    pub(super) digest: String,
}

impl Annotations {
    /// Reads the annotation files of a split: objects, keypoints, captions and segments. Each of them is optional.
    pub(super) fn read(files: &BTreeMap<&str, PathBuf>) -> Result<Self> {
        let mut all = Self::default();
        let mut numbers: HashMap<i64, usize> = HashMap::new();
        let mut hasher = blake3::Hasher::new();
        for task in ["instances", "person_keypoints", "captions"] {
            let Some(path) = files.get(task) else {
                continue;
            };
            let bytes = read_limited(path)?;
            hasher.update(&bytes);
            let document: Document<'_> = document_of(path, &bytes)?;
            let refused = |what: String| Error::source(path, what);
            if numbers.is_empty() {
                all.add_images(document.images, &mut numbers)
                    .map_err(refused)?;
            }
            let mut part = Part {
                file: &bytes,
                categories: HashSet::new(),
                by_id: HashMap::new(),
            };
            if task == "instances" || all.objects_file.is_none() {
                all.add_categories(document.categories, &mut part.categories)
                    .map_err(refused)?;
            }
            let merges = task == "person_keypoints" && all.objects_file.is_some();
            if merges {
                part.index(&all.images);
            } else if task != "captions" {
                all.objects_file = Some(path.clone());
            }
            let mut ids = HashSet::new();
            for (number, annotation) in document.annotations.into_iter().enumerate() {
                let refused =
                    |what: String| Error::source(path, format!("annotation {number}: {what}"));
                if let Some(id) = annotation.id.filter(|id| !ids.insert(*id)) {
                    return Err(refused(format!("there are two annotations {id}")));
                }
                let image = *numbers
                    .get(&annotation.image_id)
                    .ok_or_else(|| refused(format!("there is no image {}", annotation.image_id)))?;
                match task {
                    "captions" => {
                        all.has_captions = true;
                        all.images[image].captions.extend(annotation.caption);
                    }
                    _ if merges => {
                        all.add_keypoints(&annotation, image, &part)
                            .map_err(refused)?;
                    }
                    _ => all.add_object(&annotation, image, &part).map_err(refused)?,
                }
            }
        }
        if let Some(path) = files.get("panoptic") {
            let bytes = read_limited(path)?;
            hasher.update(&bytes);
            all.add_panoptic(path, &bytes, &mut numbers)?;
        }
        all.number_classes();
        all.digest = hasher.finalize().to_hex().to_string();
        let count = all.keypoints;
        for image in &mut all.images {
            // Objects of classes without keypoints get the same number of keypoints, marked as not labeled.
            for object in &mut image.objects {
                object.keypoints.resize(count, [0.0; 3]);
            }
        }
        all.images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn add_images(
        &mut self,
        images: Vec<ImageEntry>,
        numbers: &mut HashMap<i64, usize>,
    ) -> std::result::Result<(), String> {
        let mut names: HashMap<String, i64> = HashMap::new();
        for entry in images {
            let ImageEntry {
                id,
                file_name,
                width,
                height,
            } = entry;
            let is_size = |size: f64| size.is_finite() && size >= 1.0;
            if !is_size(width) || !is_size(height) {
                return Err(format!(
                    "image {id}: a width and a height of 1 or more are needed"
                ));
            }
            if !is_inside(&file_name) {
                return Err(format!(
                    "image {id}: the name {file_name:?} leads out of the directory of images"
                ));
            }
            if numbers.insert(id, self.images.len()).is_some() {
                return Err(format!("there are two images {id}"));
            }
            if let Some(other) = names.insert(file_name.clone(), id) {
                return Err(format!(
                    "the images {other} and {id} are both {file_name:?}"
                ));
            }
            self.images.push(Image {
                id,
                name: file_name,
                width,
                height,
                bytes: 0,
                objects: Vec::new(),
                captions: Vec::new(),
                segments: None,
            });
        }
        Ok(())
    }

    fn add_categories(
        &mut self,
        categories: Vec<Category>,
        numbers: &mut HashSet<i64>,
    ) -> std::result::Result<(), String> {
        for Category { id, name } in categories {
            if !numbers.insert(id) {
                return Err(format!("there are two categories {id}"));
            }
            match self.categories.entry(id) {
                Entry::Occupied(known) if *known.get() != name => {
                    let known = known.get();
                    return Err(format!(
                        "category {id} is {name:?} here and {known:?} in another file"
                    ));
                }
                Entry::Occupied(_) => {}
                Entry::Vacant(place) => {
                    place.insert(name);
                }
            }
        }
        Ok(())
    }

    /// Numbers the classes from 0 in the order of their category ids, which have gaps.
    fn number_classes(&mut self) {
        let ids = self.categories.keys().zip(0..);
        let labels: HashMap<i64, i64> = ids.map(|(&id, label)| (id, label)).collect();
        for image in &mut self.images {
            let objects = image.objects.iter_mut().map(|object| &mut object.label);
            let segments = image.segments.iter_mut();
            let segments = segments.flat_map(|all| &mut all.segments);
            for label in objects.chain(segments.map(|segment| &mut segment.label)) {
                // Categories were checked when their objects were read.
                *label = labels.get(label).copied().unwrap_or(-1);
            }
        }
        let names = std::mem::take(&mut self.categories).into_values();
        self.classes = names.map(|name| ClassEntry { name, text: None }).collect();
    }

    /// Reads the file with masks and segments.
    fn add_panoptic(
        &mut self,
        path: &Path,
        bytes: &[u8],
        numbers: &mut HashMap<i64, usize>,
    ) -> Result<()> {
        let refused = |what: String| Error::source(path, what);
        let mut document: PanopticDocument = document_of(path, bytes)?;
        if numbers.is_empty() {
            self.add_images(std::mem::take(&mut document.images), numbers)
                .map_err(refused)?;
        }
        self.masks = Some(panoptic::masks_of(path)?);
        self.add_segments(document, numbers).map_err(refused)
    }

    /// Adds the segments of each image.
    fn add_segments(
        &mut self,
        document: PanopticDocument,
        numbers: &HashMap<i64, usize>,
    ) -> std::result::Result<(), String> {
        let mut categories = HashSet::new();
        self.add_categories(document.categories, &mut categories)?;
        for (number, entry) in document.annotations.into_iter().enumerate() {
            let refused = |what: String| format!("annotation {number}: {what}");
            let image = numbers
                .get(&entry.image_id)
                .ok_or_else(|| refused(format!("there is no image {}", entry.image_id)))?;
            let segments = Segments::of(&entry, &categories).map_err(refused)?;
            if self.images[*image].segments.replace(segments).is_some() {
                return Err(refused(format!(
                    "there are two masks of image {}",
                    entry.image_id
                )));
            }
        }
        Ok(())
    }

    fn add_object(
        &mut self,
        annotation: &Annotation<'_>,
        image: usize,
        part: &Part<'_>,
    ) -> std::result::Result<(), String> {
        let category = annotation.category_id.ok_or("it has no category_id")?;
        if !part.categories.contains(&category) {
            return Err(format!("there is no category {category}"));
        }
        let [x, y, width, height] = annotation.bbox.ok_or("it has no bbox")?;
        if width < 0.0 || height < 0.0 {
            return Err(format!("its bbox is {width} wide and {height} high"));
        }
        let keypoints = self.keypoints_of(annotation, image)?;
        let image = &mut self.images[image];
        let side = |at: f64, size: f64| (at / size).clamp(0.0, 1.0) as f32;
        let corners = [
            side(x, image.width),
            side(y, image.height),
            side(x + width, image.width),
            side(y + height, image.height),
        ];
        if corners.iter().any(|side| side.is_nan()) {
            return Err("a number of its bbox is not finite".to_owned());
        }
        image.objects.push(Object {
            id: annotation.id,
            label: category,
            corners,
            area: annotation.area.unwrap_or(width * height) as f32,
            is_crowd: annotation.iscrowd.unwrap_or(0) != 0,
            segmentation: annotation.segmentation.map(|json| part.range(json.get())),
            keypoints,
        });
        Ok(())
    }

    fn add_keypoints(
        &mut self,
        annotation: &Annotation<'_>,
        image: usize,
        part: &Part<'_>,
    ) -> std::result::Result<(), String> {
        let keypoints = self.keypoints_of(annotation, image)?;
        let object = annotation.id.and_then(|id| part.by_id.get(&id)).copied();
        let (image, object) = object.ok_or("its object is not in the file of instances")?;
        self.images[image].objects[object].keypoints = keypoints;
        Ok(())
    }

    fn keypoints_of(
        &mut self,
        annotation: &Annotation<'_>,
        image: usize,
    ) -> std::result::Result<Vec<[f32; 3]>, String> {
        let flat = annotation.keypoints.as_deref().unwrap_or_default();
        let (points, rest) = flat.as_chunks::<3>();
        if !rest.is_empty() || points.len() > MAX_KEYPOINTS {
            return Err(format!("{} numbers are no keypoints", flat.len()));
        }
        let image = &self.images[image];
        let (width, height) = (image.width, image.height);
        self.keypoints = self.keypoints.max(points.len());
        let point = |[x, y, visibility]: &[f64; 3]| {
            let numbers = [x / width, y / height, *visibility].map(|number| number as f32);
            numbers
                .iter()
                .all(|number| number.is_finite())
                .then_some(numbers)
        };
        let points: Option<Vec<_>> = points.iter().map(point).collect();
        points.ok_or_else(|| "a keypoint is not a finite number".to_owned())
    }
}

/// State while one annotation file is added.
struct Part<'a> {
    file: &'a [u8],
    /// Ids of its categories.
    categories: HashSet<i64>,
    /// Index of the image and of the object, by the id of each object in earlier files.
    by_id: HashMap<i64, (usize, usize)>,
}

impl Part<'_> {
    fn index(&mut self, images: &[Image]) {
        for (image, entry) in images.iter().enumerate() {
            for (number, object) in entry.objects.iter().enumerate() {
                self.by_id.extend(object.id.map(|id| (id, (image, number))));
            }
        }
    }

    /// Returns the range of a text that was borrowed from the file.
    fn range(&self, text: &str) -> Range<u64> {
        let start = text.as_ptr() as usize - self.file.as_ptr() as usize;
        start as u64..(start + text.len()) as u64
    }
}

fn document_of<'b, T: Deserialize<'b>>(path: &Path, bytes: &'b [u8]) -> Result<T> {
    let read = forebay_shard::json::from_slice(bytes);
    read.map_err(|error| Error::source(path, format!("it is no annotation file of COCO: {error}")))
}

fn read_limited(path: &Path) -> Result<Vec<u8>> {
    let io = |op, error| Error::io(path, op, error);
    let len = std::fs::metadata(path)
        .map_err(|error| io("stat", error))?
        .len();
    if len > MAX_BYTES {
        let what = format!("it has {len} bytes: at most {MAX_BYTES} are read");
        return Err(Error::source(path, what));
    }
    std::fs::read(path).map_err(|error| io("read", error))
}
