//! Boxes of objects from Pascal VOC annotations, stored compactly by the name of their image.
//!
//! As in TensorFlow's tool, a box is relative to the size in its annotation. Swapped corners are put in order, boxes are
//! clamped to the image, and boxes without area are dropped. The file name of an annotation decides which image it belongs to;
//! the name inside is unreliable. The size is stored, because boxes for an image with other proportions are wrong.

use crate::annotation_size::{self, SizeFit};
use crate::finding::{Action, Finding, Reason};
use crate::key_path::{join, stem};
use crate::voc_xml::{self, Sides, number, set_side};
use forebay_store::Cancel;
use forebay_store::map_parallel;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use walkdir::WalkDir;

/// Largest annotation; a real one has a few lines for each object.
pub(crate) const XML_MAX_BYTES: u64 = 1 << 20;
/// Deepest level of annotations, which are in one directory, or in a directory for each class.
const DEPTH_MAX: usize = 4;

/// One box as fractions of width and height.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct BoundingBox {
    pub(crate) xmin: f32,
    pub(crate) xmax: f32,
    pub(crate) ymin: f32,
    pub(crate) ymax: f32,
}

/// The boxes of one annotation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Annotation {
    pub(crate) boxes: Vec<BoundingBox>,
    /// Width and height in the annotation; zeros without boxes.
    pub(crate) size: [f32; 2],
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Item {
    start: u64,
    size: [f32; 2],
    first: u32,
    count: u32,
    len: u16,
}

/// Boxes by the name of their image without extension.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct BoxIndex {
    stems: Vec<u8>,
    items: Vec<Item>,
    boxes: Vec<BoundingBox>,
}

impl BoxIndex {
    /// Adds the boxes of one annotation.
    pub(crate) fn add_xml(&mut self, stem: &[u8], xml: &[u8]) -> Result<(), String> {
        self.add(stem, &parse(xml)?);
        Ok(())
    }

    pub(crate) fn add(&mut self, stem: &[u8], annotation: &Annotation) {
        self.push(stem, &annotation.boxes, annotation.size);
    }

    fn push(&mut self, stem: &[u8], boxes: &[BoundingBox], size: [f32; 2]) {
        let len = stem.len().min(usize::from(u16::MAX));
        self.items.push(Item {
            start: self.stems.len() as u64,
            size,
            first: self.boxes.len() as u32,
            count: boxes.len() as u32,
            len: len as u16,
        });
        self.stems.extend_from_slice(&stem[..len]);
        self.boxes.extend_from_slice(boxes);
    }

    /// Adds all boxes of another index.
    pub(crate) fn append(&mut self, other: &Self) {
        for item in &other.items {
            self.push(other.stem(item), other.boxes_of(item), item.size);
        }
    }

    /// Sorts by name. Call this after the last addition.
    ///
    /// # Errors
    /// Two annotations have the name of the same image.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        let stems = &self.stems;
        let stem =
            |item: &Item| &stems[item.start as usize..item.start as usize + usize::from(item.len)];
        self.items.sort_unstable_by(|a, b| stem(a).cmp(stem(b)));
        for pair in self.items.windows(2) {
            if stem(&pair[0]) == stem(&pair[1]) {
                return Err(format!(
                    "there are two annotations named {}.xml, so it cannot be known which is meant",
                    crate::finding::escape(stem(&pair[0]))
                ));
            }
        }
        Ok(())
    }

    /// Returns whether an index that was read from a file is consistent.
    pub(crate) fn is_sound(&self) -> bool {
        let fits = |item: &Item| {
            let end = item.start.checked_add(u64::from(item.len));
            end.is_some_and(|end| end <= self.stems.len() as u64)
                && u64::from(item.first) + u64::from(item.count) <= self.boxes.len() as u64
        };
        self.items.iter().all(fits) && self.items.is_sorted_by(|a, b| self.stem(a) <= self.stem(b))
    }

    /// Returns the boxes of an image, by its name without extension.
    pub(crate) fn get(&self, stem: &[u8]) -> &[BoundingBox] {
        self.find(stem).map_or(&[], |item| self.boxes_of(item))
    }

    /// Compares the size in the annotation of an image with the size of the image.
    pub(crate) fn compare_size(&self, stem: &[u8], image: [u32; 2]) -> Result<SizeFit, String> {
        match self.find(stem).filter(|item| item.count > 0) {
            Some(item) => annotation_size::compare(item.size.map(f64::from), image),
            None => Ok(SizeFit::Same),
        }
    }

    fn find(&self, stem: &[u8]) -> Option<&Item> {
        let found = self
            .items
            .binary_search_by(|item| self.stem(item).cmp(stem));
        found.ok().map(|at| &self.items[at])
    }

    fn stem(&self, item: &Item) -> &[u8] {
        &self.stems[item.start as usize..item.start as usize + usize::from(item.len)]
    }

    fn boxes_of(&self, item: &Item) -> &[BoundingBox] {
        &self.boxes[item.first as usize..(item.first + item.count) as usize]
    }
}

/// Reads all annotations below directories, in parallel. An invalid annotation is a finding.
pub(crate) fn read_dir(
    src: &Path,
    dirs: &[Vec<u8>],
    jobs: usize,
    cancel: &Cancel,
) -> (BoxIndex, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut leaves = BTreeMap::new();
    for dir in dirs {
        list(src, dir, &mut leaves, &mut findings);
    }
    let leaves: Vec<Leaf> = leaves.into_iter().collect();
    // Reading small files is bound by the disk or the network, not by the CPU.
    let threads = (jobs * 2).clamp(4, 32);
    let stopped = || cancel.is_cancelled();
    let read = map_parallel(
        &leaves,
        threads,
        &stopped,
        || (),
        |(), (dir, names)| read_leaf(src, dir, names),
    );
    let mut all = BoxIndex::default();
    for (index, found) in read.into_iter().flatten() {
        all.append(&index);
        findings.extend(found);
    }
    findings.sort_by(|a, b| a.path.cmp(&b.path));
    (all, findings)
}

/// A directory and the names of the annotations in it.
type Leaf = (Vec<u8>, Vec<Vec<u8>>);

fn list(
    src: &Path,
    dir: &[u8],
    leaves: &mut BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
    findings: &mut Vec<Finding>,
) {
    let key = |path: &Path| {
        let below = path.strip_prefix(src).unwrap_or(path);
        below.as_os_str().as_bytes().to_vec()
    };
    let walk = WalkDir::new(src.join(OsStr::from_bytes(dir)));
    for entry in walk.max_depth(DEPTH_MAX + 1).sort_by_file_name() {
        match entry {
            Ok(entry) if entry.depth() > 0 && entry.file_name().as_bytes().ends_with(b".xml") => {
                let dir = entry.path().parent().map(key).unwrap_or_default();
                let names = leaves.entry(dir).or_default();
                names.push(entry.file_name().as_bytes().to_vec());
            }
            Ok(_) => {}
            Err(error) => {
                let path = error.path().map_or_else(|| dir.to_vec(), key);
                let io = error.io_error().map(io::Error::to_string);
                findings.push(unread(&path, io.unwrap_or_else(|| error.to_string())));
            }
        }
    }
}

fn read_leaf(src: &Path, dir: &[u8], names: &[Vec<u8>]) -> (BoxIndex, Vec<Finding>) {
    let mut index = BoxIndex::default();
    let mut findings = Vec::new();
    let mut xml = Vec::new();
    for name in names {
        let path = join(dir, name);
        xml.clear();
        let read = forebay_shard::storage::open_file(&src.join(OsStr::from_bytes(&path)))
            .and_then(|file| file.take(XML_MAX_BYTES + 1).read_to_end(&mut xml))
            .map_err(|error| error.to_string());
        let added = read.and_then(|len| match len as u64 {
            ..=XML_MAX_BYTES => index.add_xml(stem(name), &xml),
            _ => Err(format!("it has more than {XML_MAX_BYTES} bytes")),
        });
        if let Err(what) = added {
            findings.push(unread(&path, what));
        }
    }
    (index, findings)
}

fn unread(path: &[u8], what: String) -> Finding {
    Finding::new(Action::Ignored, Reason::BadAnnotation, path, what)
}

/// Parses the boxes of an annotation, in the order of the file.
pub(crate) fn parse(xml: &[u8]) -> Result<Annotation, String> {
    let (mut width, mut height) = (None, None);
    let mut corners = Vec::new();
    let mut open = Sides::default();
    let has_elements = voc_xml::walk(xml, false, |names, text| {
        match names {
            ["annotation", "size", "width"] => width = Some(number(text)?),
            ["annotation", "size", "height"] => height = Some(number(text)?),
            ["annotation", "object", "bndbox", side] => set_side(&mut open, side, text)?,
            ["annotation", "object", "bndbox"] => corners.push(std::mem::take(&mut open)),
            _ => {}
        }
        Ok(())
    })?;
    if !has_elements {
        return Err("it is empty".into());
    }
    if corners.is_empty() {
        return Ok(Annotation::default());
    }
    let (Some(width), Some(height)) = (width, height) else {
        return Err("it has boxes but no size that they are relative to".into());
    };
    if width <= 0.0 || height <= 0.0 {
        return Err(format!(
            "boxes cannot be relative to a size of {width}x{height}"
        ));
    }
    let mut boxes = Vec::with_capacity(corners.len());
    for one in corners {
        let [Some(xmin), Some(ymin), Some(xmax), Some(ymax)] = one else {
            return Err("a box lacks one of xmin, xmax, ymin, ymax".into());
        };
        boxes.extend(relative((xmin, xmax), (ymin, ymax), width, height));
    }
    Ok(Annotation {
        boxes,
        size: [width as f32, height as f32],
    })
}

/// Returns a box relative to the size; `None` if no part of it is inside the image.
fn relative(x: (f64, f64), y: (f64, f64), width: f64, height: f64) -> Option<BoundingBox> {
    let ordered = |(a, b): (f64, f64), size: f64| {
        let fraction = |value: f64| (value / size).clamp(0.0, 1.0) as f32;
        (fraction(a.min(b)), fraction(a.max(b)))
    };
    let ((xmin, xmax), (ymin, ymax)) = (ordered(x, width), ordered(y, height));
    (xmin < xmax && ymin < ymax).then_some(BoundingBox {
        xmin,
        xmax,
        ymin,
        ymax,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "<?xml version=\"1.0\"?>\n<annotation>\n <folder>n01440764</folder><filename>%s</filename>
        <size><width>200</width><height>100</height><depth>3</depth></size>
        <object><name>n01440764</name><part><bndbox><xmin>1</xmin></bndbox></part>
          <bndbox><xmin>20</xmin><ymin>10</ymin><xmax>100</xmax><ymax>75</ymax></bndbox></object>
        <object><bndbox><xmin>150</xmin><ymin>90</ymin><xmax>50</xmax><ymax>-5</ymax></bndbox></object>
        <object><bndbox><xmin>190</xmin><ymin>0</ymin><xmax>300</xmax><ymax>300</ymax></bndbox></object>
        <object><bndbox><xmin>10</xmin><ymin>0</ymin><xmax>10</xmax><ymax>50</ymax></bndbox></object>
        <object><bndbox><xmin>210</xmin><ymin>0</ymin><xmax>220</xmax><ymax>50</ymax></bndbox></object>
        </annotation>";

    #[test]
    fn boxes_are_ordered_clamped_and_dropped() {
        let found: Vec<_> = parse(XML.as_bytes())
            .unwrap()
            .boxes
            .iter()
            .map(|b| (b.xmin, b.xmax, b.ymin, b.ymax))
            .collect();
        // Computed by hand: 20/200 100/200 10/100 75/100; 50/200 150/200 0 90/100; 190/200 1 0 1; two boxes have no area.
        assert_eq!(
            found,
            [
                (0.1, 0.5, 0.1, 0.75),
                (0.25, 0.75, 0.0, 0.9),
                (0.95, 1.0, 0.0, 1.0)
            ]
        );
    }

    #[test]
    fn invalid_annotations_are_errors() {
        for (from, to) in [
            ("<width>200</width>", ""),
            ("<width>200</width>", "<width>0</width>"),
            ("<width>200</width>", "<width>NaN</width>"),
            ("<ymax>75</ymax>", ""),
            ("<ymax>75</ymax>", "<ymax>x</ymax>"),
            ("</annotation>", ""),
            ("</size>", "</siz>"),
        ] {
            assert!(
                parse(XML.replace(from, to).as_bytes()).is_err(),
                "{from} {to}"
            );
        }
        assert!(parse(b"").is_err());
        let empty = parse(b"<annotation></annotation>").unwrap();
        assert_eq!(empty, Annotation::default());
        let deep = "<a>".repeat(100_000);
        assert!(parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn damaged_annotations_are_refused_or_read() {
        let xml = XML.as_bytes();
        for end in 0..xml.len() {
            let _ = parse(&xml[..end]);
        }
        let mut damaged = xml.to_vec();
        for at in 0..xml.len() {
            for flip in [0x01, 0x20, 0x80, 0xff] {
                damaged[at] ^= flip;
                if let Ok(found) = parse(&damaged) {
                    for b in found.boxes {
                        assert!(0.0 <= b.xmin && b.xmin < b.xmax && b.xmax <= 1.0);
                    }
                }
                damaged[at] ^= flip;
            }
        }
    }

    #[test]
    fn boxes_are_found_by_name() {
        let mut one = BoxIndex::default();
        one.add_xml(b"b", XML.as_bytes()).unwrap();
        let mut all = BoxIndex::default();
        all.add_xml(b"c", b"<annotation/>").unwrap();
        all.append(&one);
        all.finish().unwrap();
        assert_eq!(
            (
                all.get(b"b").len(),
                all.get(b"c").len(),
                all.get(b"x").len()
            ),
            (3, 0, 0)
        );
        // One annotation for an image of 200x100, and one without boxes.
        assert_eq!(all.compare_size(b"b", [200, 100]), Ok(SizeFit::Same));
        assert_eq!(all.compare_size(b"b", [400, 200]), Ok(SizeFit::Scaled));
        assert!(all.compare_size(b"b", [100, 200]).is_err());
        assert_eq!(all.compare_size(b"c", [100, 200]), Ok(SizeFit::Same));
        all.append(&one);
        assert!(all.finish().unwrap_err().contains("b.xml"));
    }
}
