//! A random crop with a minimum overlap with a box, chosen as in torchvision.

use super::bounds::check_range;
use super::parameters::{Parameter, ParameterKind, Size};
use super::{Definition, Frame, Geometry};
use crate::error::{Result, invalid};
use crate::geometry::Tracking;
use crate::random::{Draws, Purpose, SampleSeed};
use forebay_jpeg::Region;
use serde::{Deserialize, Deserializer, Serialize};

const PURPOSE: Purpose = Purpose(15);

/// Maximum number of crops per overlap, and of overlaps drawn before the image is left whole:
/// torchvision draws forever if no crop satisfies any of them.
const MAX_TRIALS: u32 = 100;
const MAX_ROUNDS: u32 = 100;

/// Crops randomly: the crop contains the center of a box and has a minimum overlap, drawn from several, with that box.
///
/// Liu and others: "SSD: Single Shot MultiBox Detector", 2015. Boxes whose center is outside of the
/// crop are dropped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomIoUCrop {
    /// Smallest side of the crop, relative to the image's.
    pub min_scale: f64,
    /// Largest side of the crop, relative to the image's.
    pub max_scale: f64,
    /// Smallest width / height.
    pub min_aspect_ratio: f64,
    /// Largest width / height.
    pub max_aspect_ratio: f64,
    /// Minimum overlaps (intersection over union), one of which is drawn; 1 leaves the image whole.
    #[serde(deserialize_with = "overlaps")]
    pub sampler_options: Vec<f64>,
    /// Maximum number of crops that are tried for a drawn overlap.
    pub trials: u32,
}

/// The overlaps of SSD, as in torchvision.
const OVERLAPS: [f64; 7] = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0];

/// Maximum number of overlaps.
const MAX_OVERLAPS: usize = 8;

/// Reads overlaps; null stands for the default ones.
fn overlaps<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<f64>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(OVERLAPS.to_vec()))
}

impl Default for RandomIoUCrop {
    /// As in torchvision.
    fn default() -> Self {
        Self {
            min_scale: 0.3,
            max_scale: 1.0,
            min_aspect_ratio: 0.5,
            max_aspect_ratio: 2.0,
            sampler_options: OVERLAPS.to_vec(),
            trials: 40,
        }
    }
}

impl Definition for RandomIoUCrop {
    const DOC: &'static str =
        "Crops a random part of the image that overlaps with one of its boxes.";
    const DETAILS: &'static str = "The first transform of a list for detection, with `Resize` next; the loader needs a column of boxes. As torchvision's: an overlap is drawn, then crops until one contains the center of a box and has that overlap with it. Boxes with their center outside are dropped. Where torchvision would draw forever, the image stays whole after 100 overlaps.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new(
            "min_scale",
            ParameterKind::Number,
            "Smallest side of the crop, relative to the image's.",
        ),
        Parameter::new(
            "max_scale",
            ParameterKind::Number,
            "Largest side of the crop, relative to the image's.",
        ),
        Parameter::new(
            "min_aspect_ratio",
            ParameterKind::Number,
            "Smallest width / height of the crop.",
        ),
        Parameter::new(
            "max_aspect_ratio",
            ParameterKind::Number,
            "Largest width / height of the crop.",
        ),
        Parameter::new(
            "sampler_options",
            ParameterKind::Numbers,
            "Overlaps (intersection over union) to draw from; 1 leaves the image whole.",
        ),
        Parameter::new(
            "trials",
            ParameterKind::Integer,
            "Number of crops to try for an overlap.",
        ),
    ];

    fn check(&self) -> Result<()> {
        let scale = (self.min_scale, self.max_scale);
        check_range("scale of RandomIoUCrop", scale, (1e-3, 1.0))?;
        let ratio = (self.min_aspect_ratio, self.max_aspect_ratio);
        check_range("aspect ratio of RandomIoUCrop", ratio, (1e-3, 1e3))?;
        let found = self.sampler_options.len();
        if !(1..=MAX_OVERLAPS).contains(&found) {
            return Err(invalid(format!(
                "sampler_options of RandomIoUCrop: expected 1 to {MAX_OVERLAPS} overlaps, found {found}"
            )));
        }
        if let Some(wrong) = self
            .sampler_options
            .iter()
            .find(|&&overlap| !(0.0..=1e3).contains(&overlap))
        {
            return Err(invalid(format!(
                "sampler_options of RandomIoUCrop has {wrong}, expected 0 to 1"
            )));
        }
        if !(1..=MAX_TRIALS).contains(&self.trials) {
            return Err(invalid(format!(
                "trials of RandomIoUCrop is {}, 1 to {MAX_TRIALS} are possible",
                self.trials
            )));
        }
        Ok(())
    }
}

impl Geometry for RandomIoUCrop {
    fn output_size(&self) -> Result<Size> {
        Err(invalid(
            "RandomIoUCrop gives pictures of different sizes: put Resize((height, width)) right after it".into(),
        ))
    }

    fn needs_boxes(&self) -> bool {
        true
    }

    fn frame(&self, frame: Frame, seed: SampleSeed, tracking: Option<&Tracking<'_>>) -> Frame {
        let corners = |tracking: &Tracking<'_>| -> Vec<_> {
            let boxes = tracking.boxes.unwrap_or_default().iter();
            boxes.map(|stored| tracking.map.corners(stored)).collect()
        };
        let boxes = tracking.map(corners).unwrap_or_default();
        let mut draws = Draws::new(seed, PURPOSE);
        let Some(crop) = self.draw(frame.output, &boxes, &mut draws) else {
            return frame;
        };
        Frame {
            crop,
            centers: true,
            output: (crop.width, crop.height),
            window: Region::whole(crop.width, crop.height),
        }
    }
}

impl RandomIoUCrop {
    /// Draws the crop of an image with these boxes; `None` leaves the image whole.
    fn draw(
        &self,
        (width, height): (u32, u32),
        boxes: &[[f64; 4]],
        draws: &mut Draws,
    ) -> Option<Region> {
        if boxes.is_empty() {
            return None;
        }
        let options = &self.sampler_options;
        for _ in 0..MAX_ROUNDS {
            let overlap = options[draws.below(options.len() as u32) as usize];
            if overlap >= 1.0 {
                return None;
            }
            for _ in 0..self.trials {
                let mut side =
                    |side| (f64::from(side) * draws.uniform(self.min_scale, self.max_scale)) as u32;
                let (crop_width, crop_height) = (side(width), side(height));
                let ratio = f64::from(crop_width) / f64::from(crop_height);
                // The comparison is also false for NaN, the ratio of two sides of 0.
                if !(self.min_aspect_ratio <= ratio && ratio <= self.max_aspect_ratio) {
                    continue;
                }
                let mut start = |room: u32| (f64::from(room) * draws.unit()) as u32;
                let crop = Region {
                    x: start(width - crop_width),
                    y: start(height - crop_height),
                    width: crop_width,
                    height: crop_height,
                };
                if keeps(crop, boxes, overlap) {
                    return Some(crop);
                }
            }
        }
        None
    }
}

/// Returns whether a box has its center in the crop and at least this overlap with it.
fn keeps(crop: Region, boxes: &[[f64; 4]], overlap: f64) -> bool {
    let (left, top) = (f64::from(crop.x), f64::from(crop.y));
    let (right, bottom) = (left + f64::from(crop.width), top + f64::from(crop.height));
    let area = (right - left) * (bottom - top);
    boxes.iter().any(|&[x0, y0, x1, y1]| {
        let (x, y) = (0.5 * (x0 + x1), 0.5 * (y0 + y1));
        if !(left < x && x < right && top < y && y < bottom) {
            return false;
        }
        let shared =
            (x1.min(right) - x0.max(left)).max(0.0) * (y1.min(bottom) - y0.max(top)).max(0.0);
        shared / ((x1 - x0) * (y1 - y0) + area - shared) >= overlap
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOXES: [[f64; 4]; 2] = [[10.0, 10.0, 60.0, 50.0], [70.0, 20.0, 95.0, 80.0]];

    fn seed(sample: u64) -> SampleSeed {
        SampleSeed {
            sample,
            ..SampleSeed::default()
        }
    }

    #[test]
    fn crops_keep_a_center_and_the_overlap() {
        let mut whole = 0;
        for overlap in [0.0, 0.3, 0.7] {
            let op = RandomIoUCrop {
                sampler_options: vec![overlap],
                ..RandomIoUCrop::default()
            };
            for sample in 0..200 {
                let mut draws = Draws::new(seed(sample), PURPOSE);
                let Some(crop) = op.draw((100, 90), &BOXES, &mut draws) else {
                    whole += 1;
                    continue;
                };
                crop.check(100, 90).unwrap();
                assert!(keeps(crop, &BOXES, overlap), "{crop:?}");
                let ratio = f64::from(crop.width) / f64::from(crop.height);
                assert!((0.5..=2.0).contains(&ratio), "{crop:?}");
            }
        }
        assert!(whole < 10, "{whole}");
    }

    #[test]
    fn an_impossible_overlap_leaves_the_image_whole() {
        let op = RandomIoUCrop {
            sampler_options: vec![0.99],
            ..RandomIoUCrop::default()
        };
        let mut draws = Draws::new(seed(1), PURPOSE);
        assert_eq!(op.draw((100, 90), &BOXES, &mut draws), None);
        // An image of one pixel has no smaller crops.
        assert_eq!(op.draw((1, 1), &[[0.0, 0.0, 1.0, 1.0]], &mut draws), None);
    }
}
