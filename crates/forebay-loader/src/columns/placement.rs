//! Maps the boxes, masks, keypoints and polygons of a sample in the way in which the transform moved its pixels.

use forebay_image::geometry::{AffineMap, MaskIds, SpatialMap};
use forebay_image::{Limits, decode_mask};
use forebay_shard::schema;

/// The mapping of the pixels of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Placement<'a> {
    /// The image stays encoded. Width and height as stored; 0 if unknown.
    Stored(u32, u32),
    /// The transform moved the pixels.
    Moved {
        map: &'a SpatialMap,
        keep_empty_boxes: bool,
        limits: &'a Limits,
    },
}

impl Placement<'_> {
    pub(super) fn moves(self) -> bool {
        matches!(self, Placement::Moved { .. })
    }

    /// Maps boxes to pixel coordinates. The labels of boxes that are left out are left out too.
    pub(super) fn boxes(
        self,
        boxes: &[[f32; 4]],
        labels: &[i64],
    ) -> Result<(Vec<[f32; 4]>, Vec<i64>), String> {
        match self {
            Placement::Stored(width, height) => {
                let (width, height) = known(width, height)?;
                let [w, h] = [width, height];
                let pixels = |[x0, y0, x1, y1]: &[f32; 4]| [x0 * w, y0 * h, x1 * w, y1 * h];
                Ok((boxes.iter().map(pixels).collect(), labels.to_vec()))
            }
            Placement::Moved {
                map,
                keep_empty_boxes,
                ..
            } => {
                let moved = map.boxes(boxes, keep_empty_boxes).into_iter();
                Ok(moved.map(|(index, moved)| (moved, labels[index])).unzip())
            }
        }
    }

    /// Maps the polygons of each object to pixel coordinates. They are not cut at the border. With `boxes` of as many objects,
    /// the polygons of a box that is left out are left out too.
    pub(super) fn polygons(
        self,
        objects: &[&[u8]],
        boxes: Option<&[[f32; 4]]>,
    ) -> Result<Vec<Vec<Vec<f32>>>, String> {
        let boxes = boxes.filter(|boxes| boxes.len() == objects.len());
        let mut kept: Vec<usize> = (0..objects.len()).collect();
        let affine = match self {
            Placement::Stored(..) => AffineMap::IDENTITY,
            Placement::Moved {
                map,
                keep_empty_boxes,
                ..
            } => {
                if let Some(boxes) = boxes {
                    let moved = map.boxes(boxes, keep_empty_boxes).into_iter();
                    kept = moved.map(|(index, _)| index).collect();
                }
                map.affine()
            }
        };
        let point = |point: &[f64; 2]| affine.apply(*point).map(|at| at as f32);
        let outline =
            |polygon: Vec<f64>| polygon.as_chunks::<2>().0.iter().flat_map(point).collect();
        let moved = |index: usize| {
            let polygons = schema::polygons(objects[index])?.into_iter();
            let polygons: Vec<Vec<f32>> = polygons.map(outline).collect();
            match polygons.iter().flatten().all(|at| at.is_finite()) {
                true => Ok(polygons),
                false => Err(format!("object {index}: a coordinate is too large")),
            }
        };
        kept.into_iter().map(moved).collect()
    }

    /// Maps keypoints to pixel coordinates. Keypoints outside of the image become invisible.
    pub(super) fn keypoints(
        self,
        points: &[[f32; 2]],
        visibility: &[i64],
    ) -> Result<(Vec<[f32; 2]>, Vec<i64>), String> {
        let mut visibility = visibility.to_vec();
        match self {
            Placement::Stored(width, height) => {
                let (width, height) = known(width, height)?;
                let points = points.iter().map(|[x, y]| [x * width, y * height]);
                Ok((points.collect(), visibility))
            }
            Placement::Moved { map, .. } => {
                Ok((map.keypoints(points, &mut visibility), visibility))
            }
        }
    }

    /// Decodes and maps a mask. An image that stays encoded has no pixels to map a mask to.
    pub(super) fn mask(self, encoded: &[u8]) -> Result<Vec<i32>, String> {
        let Placement::Moved { map, limits, .. } = self else {
            return Err("a mask that stays encoded has no pixels".to_owned());
        };
        let mask = decode_mask(encoded, limits).and_then(|mask| map.mask(&mask));
        Ok(match mask.map_err(|error| error.to_string())?.ids {
            MaskIds::Uint8(ids) => ids.into_iter().map(i32::from).collect(),
            MaskIds::Int32(ids) => ids,
        })
    }
}

/// Returns width and height as factors for relative coordinates.
fn known(width: u32, height: u32) -> Result<(f32, f32), String> {
    match (width, height) {
        (0, _) | (_, 0) => {
            Err("its pixels are unknown, because the format of the image is".to_owned())
        }
        (width, height) => Ok((width as f32, height as f32)),
    }
}
