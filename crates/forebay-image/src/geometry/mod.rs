//! Geometry: how pixels move from the stored image to the output, so that boxes, masks and keypoints can follow.
//!
//! Everything that moves pixels is a [`SpatialStep`], each with one affine map. A transform reports
//! the steps that it took for a sample as a [`SpatialMap`], which moves boxes, keypoints and masks as
//! torchvision's v2 does (decision 190). Photometric ops take no steps.

mod mask;
mod step;
#[cfg(test)]
mod tests;

pub use mask::{Mask, MaskIds};
pub use step::{AffineMap, SpatialStep};

use crate::error::{ImageError, Result};

/// Minimum side of a box that is kept, in pixels of the output, as in torchvision's
/// `SanitizeBoundingBoxes`.
const MIN_BOX_SIDE: f32 = 1.0;

/// A box (xmin, ymin, xmax, ymax), where the first pixel reaches from 0 to 1.
pub(crate) type Corners = [f64; 4];

/// The boxes that a transform needs and the map that it reports. Set the boxes of a sample, call
/// [`Transform::apply_tracked`](crate::Transform::apply_tracked), and read the map.
#[derive(Debug, Default)]
pub struct Tracking<'a> {
    /// The boxes of the sample as stored, from 0 to 1; `None` if unknown. `RandomIoUCrop` selects
    /// its crop by them.
    pub boxes: Option<&'a [[f32; 4]]>,
    /// The steps that the transform took.
    pub map: SpatialMap,
}

/// The steps from the coordinates of a stored image to those of the output.
///
/// ```
/// use forebay_image::geometry::SpatialMap;
///
/// let map = SpatialMap::new(40, 30); // an image that stays as it is
/// let boxes = map.boxes(&[[0.0, 0.5, 0.25, 1.5], [0.9, 0.2, 0.9, 0.4]], false);
/// assert_eq!(boxes, [(0, [0.0, 15.0, 10.0, 30.0])]);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SpatialMap {
    input: (u32, u32),
    output: (u32, u32),
    steps: Vec<SpatialStep>,
}

impl SpatialMap {
    /// Creates the map of an image that stays as it is.
    pub fn new(width: u32, height: u32) -> Self {
        Self {
            input: (width, height),
            output: (width, height),
            steps: Vec::new(),
        }
    }

    /// Resets the map to an image of this size, without steps.
    pub(crate) fn reset(&mut self, width: u32, height: u32) {
        self.steps.clear();
        (self.input, self.output) = ((width, height), (width, height));
    }

    pub(crate) fn push(&mut self, step: SpatialStep) {
        self.output = step.output(self.output);
        self.steps.push(step);
    }

    /// Returns height and width of the stored image.
    pub fn input_size(&self) -> (u32, u32) {
        (self.input.1, self.input.0)
    }

    /// Returns height and width of the output.
    pub fn output_size(&self) -> (u32, u32) {
        (self.output.1, self.output.0)
    }

    /// Width and height after all steps.
    pub(crate) fn output(&self) -> (u32, u32) {
        self.output
    }

    /// Returns the steps, in order.
    pub fn steps(&self) -> &[SpatialStep] {
        &self.steps
    }

    /// Returns the steps, each with width and height of the image before it.
    fn sized_steps(&self) -> impl Iterator<Item = (SpatialStep, (u32, u32))> + '_ {
        self.steps.iter().scan(self.input, |size, &step| {
            let before = *size;
            *size = step.output(before);
            Some((step, before))
        })
    }

    /// Returns the composition of all steps, in pixels. Boxes also depend on clipping between the
    /// steps: see [`boxes`](Self::boxes).
    pub fn affine(&self) -> AffineMap {
        let steps = self.sized_steps();
        steps.fold(AffineMap::IDENTITY, |map, (step, size)| {
            map.then(step.affine(size))
        })
    }

    /// Moves boxes, given from 0 to 1, to pixels of the output. Returns each with its index, as
    /// (xmin, ymin, xmax, ymax).
    ///
    /// As in torchvision's v2, crops and affine steps clip boxes at the border, a rotated box
    /// becomes its axis-aligned bounding box, and `RandomIoUCrop` drops boxes whose centers are
    /// outside. At the end all boxes are clipped at the border, and those with a side below one
    /// pixel are left out unless `keep_empty` is set.
    pub fn boxes(&self, stored: &[[f32; 4]], keep_empty: bool) -> Vec<(usize, [f32; 4])> {
        let (width, height) = (f64::from(self.output.0), f64::from(self.output.1));
        let moved = stored.iter().enumerate().filter_map(|(index, stored)| {
            let [x0, y0, x1, y1] = self.corners(stored);
            let placed = [
                x0.clamp(0.0, width) as f32,
                y0.clamp(0.0, height) as f32,
                x1.clamp(0.0, width) as f32,
                y1.clamp(0.0, height) as f32,
            ];
            let [x0, y0, x1, y1] = placed;
            let shows = x1 - x0 >= MIN_BOX_SIDE && y1 - y0 >= MIN_BOX_SIDE;
            (shows || keep_empty).then_some((index, placed))
        });
        moved.collect()
    }

    /// Returns a box after all steps.
    pub(crate) fn corners(&self, stored: &[f32; 4]) -> Corners {
        let (width, height) = (f64::from(self.input.0), f64::from(self.input.1));
        let [x0, y0, x1, y1] = stored.map(f64::from);
        let corners = [x0 * width, y0 * height, x1 * width, y1 * height];
        let steps = self.sized_steps();
        steps.fold(corners, |corners, (step, size)| step.corners(size, corners))
    }

    /// Moves keypoints, given from 0 to 1, to pixels of the output, where the first pixel is at 0.
    ///
    /// As in torchvision's v2, points outside of the output are not clipped or dropped, so that all
    /// samples keep the same number of points; their `visibility` becomes 0.
    ///
    /// # Panics
    /// If `visibility` does not have one number per point.
    pub fn keypoints(&self, stored: &[[f32; 2]], visibility: &mut [i64]) -> Vec<[f32; 2]> {
        assert_eq!(stored.len(), visibility.len(), "one visibility for each");
        let (width, height) = (f64::from(self.input.0), f64::from(self.input.1));
        let end = [self.output.0, self.output.1].map(|side| side as f32);
        let points = stored.iter().zip(visibility).map(|(stored, visibility)| {
            let [x, y] = stored.map(f64::from);
            let steps = self.sized_steps();
            let point = steps.fold([x * width, y * height], |point, (step, size)| {
                step.point(size, point)
            });
            let point = point.map(|at| at.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32);
            let shows = |axis: usize| (0.0..end[axis]).contains(&point[axis]);
            if !(shows(0) && shows(1)) {
                *visibility = 0;
            }
            point
        });
        points.collect()
    }

    /// Moves a mask of the stored image to the output, with nearest-neighbor interpolation and 0
    /// outside of the image.
    ///
    /// # Errors
    /// [`ImageError::MaskSize`] if the size of the mask is not that of the image.
    pub fn mask(&self, mask: &Mask) -> Result<Mask> {
        if (mask.width, mask.height) != self.input {
            return Err(ImageError::MaskSize {
                width: mask.width,
                height: mask.height,
                image_width: self.input.0,
                image_height: self.input.1,
            });
        }
        Ok(mask.moved(self))
    }
}
