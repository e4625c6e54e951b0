//! COCO's panoptic annotations: a mask for each image, whose pixel values are segment ids, and the category of each segment.

use super::document::PanopticEntry;
use crate::error::{Error, Result};
use crate::name_forms::FileForms;
use crate::records::annotation_files::{find_listed, is_inside, read_mask};
use forebay_shard::schema::{Column, ColumnType, ColumnValue, NumberType};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The column with the masks.
pub(super) const MASK: &str = "panoptic";
const IDS: &str = "segment_ids";
const LABELS: &str = "segment_labels";
const IS_CROWD: &str = "segment_iscrowd";
/// The largest segment id: red + 256 green + 65536 blue.
const MAX_ID: i64 = (1 << 24) - 1;

/// The mask of an image and its segments.
#[derive(Debug, Clone)]
pub(super) struct Segments {
    /// The name of its file, relative to the directory of masks.
    pub(super) name: PathBuf,
    /// Size of the file in bytes.
    pub(super) bytes: u64,
    pub(super) segments: Vec<Segment>,
}

/// A segment of a mask.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    /// Its id, which is the value of its pixels in the mask.
    id: i64,
    /// Its category id; after all files are read, its class counted from 0.
    pub(super) label: i64,
    is_crowd: bool,
}

impl Segments {
    pub(super) fn of(
        entry: &PanopticEntry,
        categories: &HashSet<i64>,
    ) -> std::result::Result<Self, String> {
        if !is_inside(&entry.file_name) {
            return Err(format!(
                "the name {:?} leads out of the directory of masks",
                entry.file_name
            ));
        }
        let mut ids = HashSet::new();
        let mut segments = Vec::new();
        for info in &entry.segments_info {
            if !(1..=MAX_ID).contains(&info.id) || !ids.insert(info.id) {
                return Err(format!(
                    "segment {} is there twice or is no number of a color",
                    info.id
                ));
            }
            if !categories.contains(&info.category_id) {
                return Err(format!("there is no category {}", info.category_id));
            }
            segments.push(Segment {
                id: info.id,
                label: info.category_id,
                is_crowd: info.iscrowd != 0,
            });
        }
        Ok(Self {
            name: PathBuf::from(&entry.file_name),
            bytes: 0,
            segments,
        })
    }
}

/// Finds the directory of the masks that belong to an annotation file: beside the file, or beside the directory of the file.
pub(super) fn masks_of(json: &Path) -> Result<PathBuf> {
    let beside = json.with_extension("");
    let above = json.parent().and_then(Path::parent);
    let above = above
        .zip(beside.file_name())
        .map(|(dir, name)| dir.join(name));
    let mut places = [Some(beside.clone()), above].into_iter().flatten();
    places.find(|dir| dir.is_dir()).ok_or_else(|| {
        let what = format!(
            "there is no directory {} of its masks: extract the archive of this name, or leave out the file",
            beside.display()
        );
        Error::source(json, what)
    })
}

/// Finds the name and the size of a mask file; `None` if it does not exist.
pub(super) fn find(
    dir: &Path,
    segments: &Segments,
    forms: &FileForms,
) -> Result<Option<(PathBuf, u64)>> {
    find_listed(dir, Path::new(&segments.name), forms)
}

/// Returns the columns of masks and segments.
pub(super) fn columns() -> [Column; 4] {
    let numbers = || ColumnType::Vector {
        len: None,
        number: NumberType::Int64,
    };
    [
        Column::new(MASK, ColumnType::Mask),
        Column::new(IDS, numbers()),
        Column::new(LABELS, numbers()),
        Column::new(IS_CROWD, numbers()),
    ]
}

/// Returns whether a column is one of [`columns`].
pub(super) fn has(column: &str) -> bool {
    [MASK, IDS, LABELS, IS_CROWD].contains(&column)
}

impl Segments {
    /// Reads the mask.
    pub(super) fn read(&self, dir: &Path, record: u64, image: [u32; 2]) -> Result<Vec<u8>> {
        read_mask(&dir.join(&self.name), self.bytes, record, image)
    }

    /// Returns the value of a column other than the mask.
    pub(super) fn value(&self, column: &str) -> ColumnValue<'static> {
        let of: fn(&Segment) -> i64 = match column {
            IDS => |segment| segment.id,
            LABELS => |segment| segment.label,
            _ => |segment| i64::from(segment.is_crowd),
        };
        ColumnValue::Ints(self.segments.iter().map(of).collect())
    }
}
