//! Compiled lists of ops: a geometry that determines which part of the image is decoded, then ops
//! on pixels, the output conversion, and ops on the finished sample.

use super::{Frame, Op, Part, Size};
use crate::error::{Result, invalid};
use crate::geometry::{SpatialMap, Tracking};
use crate::output::{Normalize, Output};
use crate::pixels::PixelBuffer;
use crate::random::{Draws, Purpose, SampleSeed};
use crate::resize::{CropPlan, ResizePlan};
use forebay_jpeg::Region;

/// Maximum number of ops in a list. Longer lists have no use, and a spec from an unauthenticated
/// client must not cause hours of work.
const MAX_OPS: usize = 32;

/// Describes, for error messages, the ops with which a list must begin.
const BEGIN: &str = "begin with RandomResizedCrop(size), with Resize(size) and CenterCrop(size), or with RandomIoUCrop() and Resize((height, width))";

/// An op on pixels, and the number of preceding ops in the list with the same [`Purpose`]: two ops
/// of one kind draw different random numbers.
#[derive(Debug, Clone, PartialEq)]
struct Change {
    op: Op,
    before: u64,
}

/// A validated and compiled list of ops.
///
/// The order is: [`RandomResizedCrop`](super::RandomResizedCrop), or [`Resize`](super::Resize),
/// [`CenterCrop`](super::CenterCrop) or both ([`RandomIoUCrop`](super::RandomIoUCrop) may precede
/// the resize); then flips and color changes in any order and number; [`Normalize`];
/// [`RandomErasing`](super::RandomErasing) last.
///
/// ```
/// use forebay_image::{Compose, ops};
///
/// let list = Compose::new(vec![
///     ops::RandomResizedCrop { size: (160, 160), ..Default::default() }.into(),
///     ops::RandomHorizontalFlip::default().into(),
///     ops::RandomErasing::new().into(),
/// ])?;
/// assert_eq!(list.output_size(), (160, 160));
/// assert!(Compose::new(vec![ops::RandomHorizontalFlip::default().into()]).is_err());
/// # Ok::<(), forebay_image::ImageError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Compose {
    ops: Vec<Op>,
    /// Number of ops at the start of the list that select pixels.
    geometry: usize,
    size: Size,
    /// Probability of a horizontal flip that the resize performs itself.
    mirror: f64,
    changes: Vec<Change>,
    normalize: Option<Normalize>,
    /// The op on the finished sample.
    last: Option<Op>,
}

impl Compose {
    /// Validates and compiles a list.
    ///
    /// # Errors
    /// [`ImageError::Transform`](crate::ImageError::Transform): an op with parameters out of
    /// bounds, or an invalid order; the message contains a valid one.
    pub fn new(ops: Vec<Op>) -> Result<Self> {
        if ops.len() > MAX_OPS {
            return Err(invalid(format!(
                "a list of {} transforms, {MAX_OPS} are possible",
                ops.len()
            )));
        }
        for op in &ops {
            op.validate()?;
        }
        let is_geometry = |op: &&Op| matches!(op.part(), Part::Geometry(_));
        let geometry = ops.iter().take_while(is_geometry).count();
        let size = output_size(&ops, geometry)?;
        let mut list = Self {
            geometry,
            size,
            mirror: 0.0,
            changes: Vec::new(),
            normalize: None,
            last: None,
            ops: Vec::new(),
        };
        let mut purposes: Vec<Purpose> = Vec::new();
        for op in ops[geometry..].iter().cloned() {
            list.push(op, &mut purposes)?;
        }
        Ok(Self { ops, ..list })
    }

    /// Adds an op after those that select pixels; `purposes` holds the purposes of the preceding ops.
    fn push(&mut self, op: Op, purposes: &mut Vec<Purpose>) -> Result<()> {
        let name = op.name();
        if let Some(last) = self
            .last
            .as_ref()
            .filter(|_| !matches!(op.part(), Part::Normalize(_)))
        {
            return Err(invalid(format!(
                "{} has to be the last transform, and the only one of its kind",
                last.name()
            )));
        }
        match op.part() {
            Part::Geometry(_) => return Err(too_late(&op)),
            Part::Pixels(..) if self.normalize.is_some() => {
                return Err(invalid(format!(
                    "{name} after Normalize: it works on bytes and comes before; only RandomErasing comes after"
                )));
            }
            Part::Pixels(purpose, pixels) => {
                match pixels.mirrors() {
                    // The resize can mirror its output at no cost, so it performs a flip that directly follows it.
                    Some(p) if purposes.is_empty() => self.mirror = p,
                    _ => {
                        let before = purposes.iter().filter(|&&other| other == purpose);
                        let before = before.count() as u64;
                        self.changes.push(Change { op, before });
                    }
                }
                purposes.push(purpose);
            }
            Part::Normalize(_) if self.normalize.is_some() => {
                return Err(invalid("Normalize twice: a list has it once".into()));
            }
            Part::Normalize(normalize) => {
                if let Some(last) = &self.last {
                    return Err(invalid(format!(
                        "{} before Normalize: put it last, its value is what the output has",
                        last.name()
                    )));
                }
                self.normalize = Some(*normalize);
            }
            Part::Sample(_) => self.last = Some(op),
        }
        Ok(())
    }

    /// Returns the ops, as given.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns the normalization in the list; the caller has to set it as [`Output::normalize`].
    pub fn normalize(&self) -> Option<Normalize> {
        self.normalize
    }

    /// Returns height and width of the output, in pixels.
    pub fn output_size(&self) -> Size {
        self.size
    }

    /// Returns whether pixels are changed after the resize.
    pub(crate) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns the name of the first op whose effect cannot be applied to boxes, masks and keypoints.
    pub(crate) fn breaks_objects(&self) -> Option<&'static str> {
        let breaks = |op: &&Op| matches!(op.part(), Part::Pixels(_, op) if !op.moves_objects());
        self.ops.iter().find(breaks).map(Op::name)
    }

    /// Returns the name of the op that selects pixels by the boxes of a sample, if there is one.
    pub(crate) fn needs_boxes(&self) -> Option<&'static str> {
        let needs = |op: &&Op| matches!(op.part(), Part::Geometry(op) if op.needs_boxes());
        self.ops.iter().find(needs).map(Op::name)
    }

    /// Plans the crop and its resize.
    pub(crate) fn plan(
        &self,
        width: u32,
        height: u32,
        seed: SampleSeed,
        tracking: Option<&Tracking<'_>>,
    ) -> CropPlan {
        let flip = self.mirror > 0.0 && Draws::new(seed, Purpose::FLIP).unit() < self.mirror;
        let whole = Region::whole(width, height);
        let mut frame = Frame {
            crop: whole,
            centers: false,
            output: (width, height),
            window: whole,
        };
        for op in &self.ops[..self.geometry] {
            if let Part::Geometry(geometry) = op.part() {
                frame = geometry.frame(frame, seed, tracking);
            }
        }
        CropPlan {
            origin: (frame.crop.x, frame.crop.y),
            centers: frame.centers,
            resize: ResizePlan {
                input: (frame.crop.width, frame.crop.height),
                output: frame.output,
                window: frame.window,
                flip,
            },
        }
    }

    /// Applies the ops on pixels, and adds their steps to the map.
    pub(crate) fn change(
        &self,
        picture: &mut PixelBuffer,
        seed: SampleSeed,
        mut map: Option<&mut SpatialMap>,
    ) {
        for change in &self.changes {
            if let Part::Pixels(purpose, pixels) = change.op.part() {
                let step = pixels.apply(picture, &mut Draws::nth(seed, purpose, change.before));
                if let (Some(map), Some(step)) = (map.as_deref_mut(), step) {
                    map.push(step);
                }
            }
        }
    }

    /// Applies the op on the finished sample.
    pub(crate) fn finish(&self, output: &Output, seed: SampleSeed, out: &mut [u8]) {
        if let Some(Part::Sample(sample)) = self.last.as_ref().map(Op::part) {
            let (height, width) = self.size;
            sample.apply(output, (width as usize, height as usize), seed, out);
        }
    }
}

/// Validates the ops that select pixels, and returns the size of their output.
fn output_size(ops: &[Op], geometry: usize) -> Result<Size> {
    for pair in ops[..geometry].windows(2) {
        if let Part::Geometry(next) = pair[1].part()
            && !next.follows(&pair[0])
        {
            return Err(too_late(&pair[1]));
        }
    }
    match (ops[..geometry].last().map(Op::part), ops.first()) {
        (Some(Part::Geometry(last)), _) => last.output_size(),
        (_, None) => Err(invalid(format!("a list without transforms: {BEGIN}"))),
        (_, Some(first)) => Err(invalid(format!(
            "{} comes first: {BEGIN}, so that only what is needed is decoded",
            first.name()
        ))),
    }
}

fn too_late(op: &Op) -> crate::ImageError {
    invalid(format!(
        "{} comes too late: a list has one crop or resize, and it comes first",
        op.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    const CROP: Op = Op::RandomResizedCrop(RandomResizedCrop {
        size: (20, 30),
        scale: (0.08, 1.0),
        ratio: (0.75, 4.0 / 3.0),
    });
    const FLIP: Op = Op::RandomHorizontalFlip(RandomHorizontalFlip { p: 0.5 });
    const GRAY: Op = Op::RandomGrayscale(RandomGrayscale { p: 0.2 });

    fn refused(ops: &[Op]) -> String {
        Compose::new(ops.to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn valid_orders_are_accepted() {
        let list = Compose::new(vec![CROP, FLIP, GRAY, FLIP, GRAY]).unwrap();
        assert_eq!(list.output_size(), (20, 30));
        assert_eq!(list.mirror, 0.5);
        let before: Vec<u64> = list.changes.iter().map(|change| change.before).collect();
        assert_eq!(before, [0, 1, 1]);
        let resize = Op::Resize(Resize {
            size: ResizeTo::Short(64),
        });
        let list =
            Compose::new(vec![resize, Op::CenterCrop(CenterCrop { size: (64, 32) })]).unwrap();
        assert_eq!((list.output_size(), list.has_changes()), ((64, 32), false));
        let list = Compose::new(vec![Op::CenterCrop(CenterCrop { size: (7, 5) }), GRAY]).unwrap();
        assert_eq!(list.output_size(), (7, 5));
        let resize = Op::Resize(Resize {
            size: ResizeTo::Exact((9, 8)),
        });
        let erase = Op::RandomErasing(RandomErasing::new());
        let list = Compose::new(vec![resize, erase]).unwrap();
        assert_eq!((list.output_size(), list.last.is_some()), ((9, 8), true));
    }

    #[test]
    fn errors_about_the_order_contain_a_valid_one() {
        assert!(refused(&[]).contains("begin with RandomResizedCrop"));
        assert!(refused(&[FLIP, CROP]).contains("RandomHorizontalFlip comes first: begin with"));
        assert!(refused(&[CROP, CROP]).contains("too late"));
        let short = Op::Resize(Resize {
            size: ResizeTo::Short(64),
        });
        assert!(refused(&[short, FLIP]).contains("put CenterCrop(64) right after it"));
        let erase = Op::RandomErasing(RandomErasing::new());
        assert!(refused(&[CROP, erase.clone(), GRAY]).contains("last"));
        assert!(refused(&[CROP, erase.clone(), erase]).contains("only one"));
        assert!(refused(&[CROP; 33]).contains("33 transforms"));
    }

    #[test]
    fn parameters_out_of_bounds_are_refused() {
        let tail = |op| refused(&[CROP, op]);
        assert!(
            tail(Op::RandomHorizontalFlip(RandomHorizontalFlip { p: 1.5 })).contains("probability")
        );
        assert!(
            tail(Op::RandomVerticalFlip(RandomVerticalFlip { p: f64::NAN }))
                .contains("RandomVerticalFlip")
        );
        let jitter = ColorJitter {
            brightness: None,
            contrast: None,
            saturation: None,
            hue: Some((-0.6, 0.1)),
        };
        assert!(tail(Op::ColorJitter(jitter)).contains("hue"));
        let augment = RandAugment {
            num_ops: 2,
            magnitude: 31,
            num_magnitude_bins: 31,
            ..Default::default()
        };
        assert!(tail(Op::RandAugment(augment)).contains("bins 0 to 30"));
        let trivial = TrivialAugmentWide {
            num_magnitude_bins: 1,
            ..Default::default()
        };
        assert!(tail(Op::TrivialAugmentWide(trivial)).contains("2 to 1000"));
        let erasing = RandomErasing {
            ratio: (0.0, 1.0),
            ..RandomErasing::new()
        };
        assert!(tail(Op::RandomErasing(erasing)).contains("ratio"));
        assert!(
            refused(&[Op::Resize(Resize {
                size: ResizeTo::Exact((0, 4))
            })])
            .contains("height")
        );
    }
}
