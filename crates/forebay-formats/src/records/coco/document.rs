//! The JSON of COCO's annotation files.

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct Document<'a> {
    #[serde(default)]
    pub(super) images: Vec<ImageEntry>,
    #[serde(default, borrow)]
    pub(super) annotations: Vec<Annotation<'a>>,
    #[serde(default)]
    pub(super) categories: Vec<Category>,
}

#[derive(Deserialize)]
pub(super) struct ImageEntry {
    pub(super) id: i64,
    pub(super) file_name: String,
    #[serde(default)]
    pub(super) width: f64,
    #[serde(default)]
    pub(super) height: f64,
}

#[derive(Deserialize)]
pub(super) struct Annotation<'a> {
    #[serde(default)]
    pub(super) id: Option<i64>,
    pub(super) image_id: i64,
    #[serde(default)]
    pub(super) category_id: Option<i64>,
    #[serde(default)]
    pub(super) bbox: Option<[f64; 4]>,
    #[serde(default)]
    pub(super) area: Option<f64>,
    #[serde(default)]
    pub(super) iscrowd: Option<i64>,
    #[serde(default, borrow)]
    pub(super) segmentation: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) keypoints: Option<Vec<f64>>,
    #[serde(default)]
    pub(super) caption: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Category {
    pub(super) id: i64,
    pub(super) name: String,
}

/// A file of panoptic annotations.
#[derive(Deserialize)]
pub(super) struct PanopticDocument {
    #[serde(default)]
    pub(super) images: Vec<ImageEntry>,
    #[serde(default)]
    pub(super) annotations: Vec<PanopticEntry>,
    #[serde(default)]
    pub(super) categories: Vec<Category>,
}

#[derive(Deserialize)]
pub(super) struct PanopticEntry {
    pub(super) image_id: i64,
    pub(super) file_name: String,
    pub(super) segments_info: Vec<SegmentInfo>,
}

#[derive(Deserialize)]
pub(super) struct SegmentInfo {
    pub(super) id: i64,
    pub(super) category_id: i64,
    #[serde(default)]
    pub(super) iscrowd: i64,
}
