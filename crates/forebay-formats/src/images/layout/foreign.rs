//! Recognizes trees of other tools by names alone.
//!
//! The directories of these trees are not classes: packing them as such would give a dataset with wrong labels or none. So they
//! are refused with advice, unless `--layout` or `--labels` selects how to read them.

use crate::error::{Error, Result};
use crate::finding::escape;
use crate::images::walk::Top;
use crate::key_path::split_name;
use crate::records::{PICKLED, RecordFormat};
use crate::sniff::has_image_name;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A tree of another tool.
#[derive(Debug)]
pub(crate) struct ForeignTree {
    format: &'static str,
    /// The name by which it was recognized.
    sign: String,
    advice: &'static str,
}

const WRITE_LABELS: &str = "write a CSV file with the columns path and label, and a column for each further value (several lines for an image become lists), and give it to `forebay pack --labels FILE`";
const EXTRACT: &str = "write its images to a directory for each class, or to one directory with a CSV file of labels for `forebay pack --labels FILE`, and pack that";
const PACK_BELOW: &str = "pack the directory that has a directory for each class, or give a CSV file of labels to `forebay pack --labels FILE`";

impl ForeignTree {
    fn new(format: &'static str, sign: impl Into<String>, advice: &'static str) -> Self {
        let sign = sign.into();
        Self {
            format,
            sign,
            advice,
        }
    }

    /// Returns a tree in a format that `convert` reads.
    fn read(format: RecordFormat, sign: impl Into<String>) -> Self {
        Self::new(format.title(), sign, format.advice())
    }

    /// Returns the tree as seen from the directory above.
    fn below(self, dir: &str) -> Self {
        let sign = format!("{dir}/{}", self.sign);
        Self { sign, ..self }
    }

    pub(crate) fn into_error(self, top: PathBuf) -> Error {
        Error::ForeignTree {
            path: top,
            format: self.format,
            sign: self.sign,
            advice: self.advice,
        }
    }
}

/// The names in a directory that are UTF-8.
struct Names<'a> {
    dirs: Vec<&'a str>,
    files: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn of(top: &'a Top<'_>) -> Self {
        let text = |names: &'a [Vec<u8>]| {
            let names = names.iter().map(|name| std::str::from_utf8(name));
            names.filter_map(|name| name.ok()).collect()
        };
        Self {
            dirs: text(&top.dirs),
            files: text(&top.files),
        }
    }

    fn dir(&self, is: impl Fn(&str) -> bool) -> Option<&'a str> {
        self.dirs.iter().copied().find(|name| is(name))
    }

    fn file(&self, is: impl Fn(&str) -> bool) -> Option<&'a str> {
        self.files.iter().copied().find(|name| is(name))
    }
}

/// Refuses a tree whose labels do not come from the names of its directories.
pub(super) fn refuse(top: &Top<'_>) -> Result<()> {
    let mut found = labelled_elsewhere(top)?;
    let names = Names::of(top);
    let dirs = names.dirs.iter();
    let parts = dirs.filter(|dir| split_name(dir.as_bytes()).is_some());
    for dir in parts {
        if found.is_none() {
            let below = labelled_elsewhere(&top.below(dir.as_bytes())?)?;
            found = below.map(|tree| tree.below(dir));
        }
    }
    match found {
        Some(tree) => Err(tree.into_error(top.path.clone())),
        None => Ok(()),
    }
}

fn labelled_elsewhere(top: &Top<'_>) -> Result<Option<ForeignTree>> {
    let names = Names::of(top);
    let read = |format, sign: &str| Ok(Some(ForeignTree::read(format, sign)));
    let other = |format, sign: &str| Ok(Some(ForeignTree::new(format, sign, WRITE_LABELS)));
    if let Some(sign) = coco_sign(top, &names)? {
        return read(RecordFormat::COCO, &sign);
    }
    let dir = |name: &str| names.dirs.contains(&name);
    if let Some(year) = names.dir(|name| name == "VOCdevkit" || is_year(name, "VOC")) {
        return read(RecordFormat::VOC, &format!("{year}/"));
    }
    if dir("JPEGImages") && (dir("Annotations") || dir("ImageSets")) {
        return read(RecordFormat::VOC, "JPEGImages/");
    }
    if let Some(sign) = names.file(is_open_images) {
        return read(RecordFormat::OPEN_IMAGES, sign);
    }
    if dir("images") && dir("labels") {
        return other("a YOLO dataset", "images/ beside labels/");
    }
    let has_own_labels = |name: &str| name == "leftImg8bit" || name == "img_align_celeba";
    if let Some(dir) = names.dir(has_own_labels) {
        return other("a dataset with labels of its own", &format!("{dir}/"));
    }
    if let Some(tree) = with_sidecars(top, &names)? {
        return Ok(Some(tree));
    }
    let images = names.dir(holds_images).filter(|images| {
        let mut dirs = names.dirs.iter();
        dirs.all(|name| name == images || is_beside_images(name))
    });
    let format = "a dataset with all images in one directory";
    Ok(images.map(|images| ForeignTree::new(format, format!("{images}/"), PACK_BELOW)))
}

/// Returns whether a directory usually holds images of all classes, judged by its name.
fn holds_images(name: &str) -> bool {
    const NAMES: [&str; 7] = [
        "images",
        "image",
        "imgs",
        "img",
        "jpg",
        "jpegs",
        "jpegimages",
    ];
    NAMES.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns whether a directory usually stands beside a directory of images, judged by its name.
fn is_beside_images(name: &str) -> bool {
    const NAMES: [&str; 15] = [
        "annotations",
        "annotation",
        "meta",
        "metadata",
        "masks",
        "labels",
        "lists",
        "splits",
        "segmentations",
        "imagesets",
        "devkit",
        "docs",
        "imdb",
        "attributes",
        "parts",
    ];
    NAMES.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns whether a file has the name of one that OpenImages publishes.
fn is_open_images(name: &str) -> bool {
    name.ends_with("annotations-bbox.csv")
        || name.contains("annotations-human-imagelabels")
        || name.starts_with("class-descriptions")
        || name.starts_with("oidv")
}

/// Returns whether a name is `prefix` and a year: `VOC2012`, `train2017`.
fn is_year(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|year| {
        year.len() == 4 && year.starts_with("20") && year.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn coco_sign(top: &Top<'_>, names: &Names<'_>) -> Result<Option<String>> {
    if let Some(name) = names.file(|name| name.ends_with("annotations.coco.json")) {
        return Ok(Some(name.to_owned()));
    }
    if names.dirs.contains(&"annotations") {
        let below = top.below(b"annotations")?;
        if let Some(name) = Names::of(&below).file(|name| name.ends_with(".json")) {
            return Ok(Some(format!("annotations/{name}")));
        }
    }
    let year = names.dir(|name| {
        let parts = ["train", "val", "test", "unlabeled"];
        parts.iter().any(|part| is_year(name, part))
    });
    Ok(year.map(|year| format!("{year}/")))
}

/// Most directories that are searched for sidecar files.
const DIRS_LOOKED_AT: usize = 3;

/// Finds sidecar files with labels, which have the names of the images: `0001.jpg`, `0001.cls`.
fn with_sidecars(top: &Top<'_>, names: &Names<'_>) -> Result<Option<ForeignTree>> {
    let any = [".cls", ".json", ".txt", ".xml", ".caption", ".label"];
    // In class directories, sidecar files are only additional data, except for WebDataset's `.cls`.
    let below = if names.dirs.len() > 1 {
        &any[..1]
    } else {
        &any
    };
    if let Some(found) = sidecars(top, &any) {
        return Ok(Some(found));
    }
    for dir in names.dirs.iter().take(DIRS_LOOKED_AT) {
        if split_name(dir.as_bytes()).is_some() {
            continue;
        }
        if let Some(tree) = sidecars(&top.below(dir.as_bytes())?, below) {
            return Ok(Some(tree.below(dir)));
        }
    }
    Ok(None)
}

fn sidecars(top: &Top<'_>, endings: &[&str]) -> Option<ForeignTree> {
    let part = |name: &[u8]| name.iter().position(|byte| *byte == b'.');
    let images = top.files.iter().filter(|name| has_image_name(name));
    let stems: BTreeSet<&[u8]> = images
        .map(|name| &name[..part(name).unwrap_or(0)])
        .collect();
    let mut found = endings.iter().map(|ending| {
        let mut beside = top.files.iter().filter(|name| {
            name.ends_with(ending.as_bytes())
                && part(name).is_some_and(|at| stems.contains(&name[..at]))
        });
        let first = beside.next();
        (ending, first, beside.count() + usize::from(first.is_some()))
    });
    // Fewer sidecars than half of the images may be there by accident.
    let (ending, first, _) = found.find(|(_, _, count)| *count > 0 && count * 2 >= stems.len())?;
    let format = match *ending {
        // Captions in a tar are samples of WebDataset.
        ".txt" if !top.is_archive() => "images with text files (YOLO labels or captions)",
        ".xml" => "images with XML annotations",
        _ => return Some(ForeignTree::read(RecordFormat::WEBDATASET, escape(first?))),
    };
    Some(ForeignTree::new(format, escape(first?), WRITE_LABELS))
}

/// Formats that store images inside their own files, by extension.
const CONTAINERS: &[(&str, &[&str])] = &[
    ("Arrow files", &[".arrow", ".feather"]),
    ("an FFCV dataset", &[".beton"]),
    ("an MXNet RecordIO dataset", &[".rec"]),
    ("pickled data", PICKLED),
    ("MNIST's files", &["-ubyte", "-ubyte.gz"]),
    (
        "CIFAR's batches",
        &["data_batch_1", "data_batch_1.bin", "batches.meta"],
    ),
    ("a Lance dataset", &[".lance"]),
];

/// Detects the format of a source in which no image was found.
pub(crate) fn container(top: &Top<'_>) -> Result<Option<ForeignTree>> {
    let mut found = container_in(top);
    for dir in top.dirs.iter().take(DIRS_LOOKED_AT) {
        if found.is_none() {
            let below = container_in(&top.below(dir)?);
            found = below.map(|tree| tree.below(&escape(dir)));
        }
    }
    Ok(found)
}

fn container_in(top: &Top<'_>) -> Option<ForeignTree> {
    let names = Names::of(top);
    // A Zarr store is a directory.
    let stores = names.dirs.iter().filter(|name| name.ends_with(".zarr"));
    let all: Vec<&str> = names.files.iter().chain(stores).copied().collect();
    if let Some((format, name)) = RecordFormat::detect(&all) {
        return Some(ForeignTree::read(format, name));
    }
    CONTAINERS.iter().find_map(|(format, endings)| {
        let mut all = names.files.iter().chain(&names.dirs);
        let name = all.find(|name| endings.iter().any(|ending| name.ends_with(ending)))?;
        Some(ForeignTree::new(format, *name, EXTRACT))
    })
}
