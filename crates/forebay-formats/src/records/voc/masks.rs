//! Masks of Pascal VOC: PNGs whose palette indices are classes or objects; 0 is the background, 255 are the borders.

use super::{Entry, keep_those_with};
use crate::error::Result;
use crate::finding::Finding;
use crate::name_forms::FileForms;
use crate::records::OnBadRecord;
use crate::records::annotation_files::{find_listed, read_mask};
use forebay_shard::schema::{Column, ColumnType};
use std::path::{Path, PathBuf};

/// The directories of masks, and the column for each.
const KINDS: [(&str, &str); 2] = [
    ("SegmentationClass", "segmentation_class"),
    ("SegmentationObject", "segmentation_object"),
];

/// The name and the size of the file of each mask of an image.
pub(super) type MaskFiles = [Option<(PathBuf, u64)>; KINDS.len()];

/// Finds the masks of an image.
pub(super) fn find(place: &Path, id: &str, forms: &FileForms) -> Result<MaskFiles> {
    let name = format!("{id}.png");
    let mut files = MaskFiles::default();
    for ((dir, _), file) in KINDS.iter().zip(&mut files) {
        *file = find_listed(&place.join(dir), Path::new(&name), forms)?;
    }
    Ok(files)
}

/// Leaves out images of a segmentation list without a class mask. If no image has one, as in a test split, all are kept.
pub(super) fn check_list(
    place: &Path,
    entries: &mut Vec<Entry>,
    policy: OnBadRecord,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let [(dir, _), _] = KINDS;
    let has_mask = |entry: &Entry| entry.masks.first().is_some_and(Option::is_some);
    let what = "there is no mask of it, and others of its split have one";
    let of_dir = (place.join(dir), what);
    keep_those_with(has_mask, &of_dir, entries, policy, findings)
}

/// Returns a column for each kind of mask that any image has.
pub(super) fn columns<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<Column> {
    let mut has = [false; KINDS.len()];
    for entry in entries {
        for (has, file) in has.iter_mut().zip(&entry.masks) {
            *has |= file.is_some();
        }
    }
    let kinds = KINDS.iter().zip(has).filter(|(_, has)| *has);
    kinds
        .map(|((_, column), _)| Column::new(*column, ColumnType::Mask))
        .collect()
}

/// Reads the mask of a column; `None` if the image has none. `path` is the directory of images.
pub(super) fn read(
    path: &Path,
    entry: &Entry,
    column: &str,
    (record, image): (u64, [u32; 2]),
) -> Result<Option<Vec<u8>>> {
    let place = path.parent().unwrap_or(path);
    let mut kinds = KINDS.iter().zip(&entry.masks);
    let found = kinds.find(|((_, name), _)| *name == column);
    let Some(((dir, _), Some((name, size)))) = found else {
        return Ok(None);
    };
    let path = place.join(dir).join(name);
    read_mask(&path, *size, record, image).map(Some)
}
