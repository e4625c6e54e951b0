//! Masks of Pascal VOC: PNGs whose palette indices are classes or objects, 0 for the background and 255 for the borders.

use super::{Entry, keep_those_with};
use crate::error::Result;
use crate::finding::Finding;
use crate::records::OnBadRecord;
use crate::records::annotation_files::{read_mask, size_of};
use forebay_shard::schema::{Column, ColumnType};
use std::path::Path;

/// The directories of masks, and the column of each.
const KINDS: [(&str, &str); 2] = [
    ("SegmentationClass", "segmentation_class"),
    ("SegmentationObject", "segmentation_object"),
];

/// The sizes of the files of an image's masks.
pub(super) type MaskSizes = [Option<u64>; KINDS.len()];

/// Finds the masks of an image.
pub(super) fn find(place: &Path, id: &str) -> Result<MaskSizes> {
    let mut sizes = MaskSizes::default();
    for ((dir, _), size) in KINDS.iter().zip(&mut sizes) {
        *size = size_of(&place.join(dir).join(format!("{id}.png")))?;
    }
    Ok(sizes)
}

/// Leaves out images of a list for segmentation without a mask of classes, unless none has one, as those of a test split.
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

/// The columns of the masks that any image has.
pub(super) fn columns<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<Column> {
    let mut has = [false; KINDS.len()];
    for entry in entries {
        for (has, size) in has.iter_mut().zip(&entry.masks) {
            *has |= size.is_some();
        }
    }
    let kinds = KINDS.iter().zip(has).filter(|(_, has)| *has);
    kinds
        .map(|((_, column), _)| Column::new(*column, ColumnType::Mask))
        .collect()
}

/// Reads the mask of a column; none where the image has none. `path` is that of the directory of images.
pub(super) fn read(
    path: &Path,
    entry: &Entry,
    column: &str,
    (record, image): (u64, [u32; 2]),
) -> Result<Option<Vec<u8>>> {
    let place = path.parent().unwrap_or(path);
    let mut kinds = KINDS.iter().zip(&entry.masks);
    let found = kinds.find(|((_, name), _)| *name == column);
    let Some(((dir, _), Some(size))) = found else {
        return Ok(None);
    };
    let path = place.join(dir).join(format!("{}.png", entry.id));
    read_mask(&path, *size, record, image).map(Some)
}
