//! Lists of transforms, compiled: one geometry that decides which part of the image is decoded, then changes of bytes,
//! the output, and erasing.

use super::augment::{ColorJitter, RandAugment, RandomGrayscale, TrivialAugmentWide};
use super::erase::RandomErasing;
use super::output::Output;
use super::picture::Picture;
use super::train::random_region;
use super::{check_probability, check_side, eval, invalid};
use crate::decode::Region;
use crate::error::Result;
use crate::random::{Draws, Purpose, SampleSeed};
use crate::resize::Resize;

/// Most steps of a list: nobody has more, and a spec of a stranger must not ask for hours.
const MAX_STEPS: usize = 32;

/// Height and width, in pixels.
pub type Size = (u32, u32);

/// One transform of a list.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// A random part, resized.
    RandomResizedCrop(RandomResizedCrop),
    /// The whole image, resized.
    Resize(ResizeTo),
    /// The middle, of this height and width: of the image, or of what a resize leaves. Where that is smaller, it is black around it.
    CentreCrop(Size),
    /// Mirrored left to right, with this probability.
    RandomHorizontalFlip(f64),
    /// Mirrored top to bottom, with this probability.
    RandomVerticalFlip(f64),
    /// Random brightness, contrast, saturation and hue.
    ColorJitter(ColorJitter),
    /// Grey, sometimes; always with probability 1.
    RandomGrayscale(RandomGrayscale),
    /// Several random operations.
    RandAugment(RandAugment),
    /// One random operation.
    TrivialAugmentWide(TrivialAugmentWide),
    /// A random rectangle written over; last.
    RandomErasing(RandomErasing),
}

/// A random part of the image, resized to `size`; as [`TrainTransform`](super::TrainTransform) draws it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomResizedCrop {
    /// Of the output.
    pub size: Size,
    /// Least and greatest area of the crop, as a part of the image's.
    pub scale: (f64, f64),
    /// Least and greatest width / height of the crop.
    pub ratio: (f64, f64),
}

/// What an image is resized to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeTo {
    /// The short side in pixels; the other side follows, rounded down. A centre crop has to come after it.
    Short(u32),
    /// Height and width, whatever the image's.
    Exact(Size),
}

impl Step {
    /// Its name, as users know it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RandomResizedCrop(_) => "RandomResizedCrop",
            Self::Resize(_) => "Resize",
            Self::CentreCrop(_) => "CentreCrop",
            Self::RandomHorizontalFlip(_) => "RandomHorizontalFlip",
            Self::RandomVerticalFlip(_) => "RandomVerticalFlip",
            Self::ColorJitter(_) => "ColorJitter",
            Self::RandomGrayscale(_) => "RandomGrayscale",
            Self::RandAugment(_) => "RandAugment",
            Self::TrivialAugmentWide(_) => "TrivialAugmentWide",
            Self::RandomErasing(_) => "RandomErasing",
        }
    }

    /// Checks its numbers; whether it fits into a list is the list's question.
    ///
    /// # Errors
    /// [`ImageError::Transform`](crate::ImageError::Transform) says what is wrong and what is allowed.
    pub fn validate(&self) -> Result<()> {
        let size = |(height, width): Size| {
            check_side("height", height)?;
            check_side("width", width)
        };
        match self {
            Self::RandomResizedCrop(crop) => {
                size(crop.size)?;
                super::train::check_crop(crop.scale, crop.ratio)
            }
            Self::Resize(ResizeTo::Short(side)) => check_side("size", *side),
            Self::Resize(ResizeTo::Exact(to)) => size(*to),
            Self::CentreCrop(to) => size(*to),
            Self::RandomHorizontalFlip(p) | Self::RandomVerticalFlip(p) => {
                check_probability(self.name(), *p)
            }
            Self::ColorJitter(jitter) => jitter.validate(),
            Self::RandomGrayscale(grayscale) => grayscale.validate(),
            Self::RandAugment(augment) => augment.validate(),
            Self::TrivialAugmentWide(augment) => augment.validate(),
            Self::RandomErasing(erasing) => erasing.validate(),
        }
    }

    /// What it draws for; `None` for a step that leaves nothing to chance.
    fn purpose(&self) -> Option<Purpose> {
        Some(match self {
            Self::RandomResizedCrop(_) => Purpose::Crop,
            Self::Resize(_) | Self::CentreCrop(_) => return None,
            Self::RandomHorizontalFlip(_) => Purpose::Flip,
            Self::RandomVerticalFlip(_) => Purpose::VerticalFlip,
            Self::ColorJitter(_) => Purpose::Jitter,
            Self::RandomGrayscale(_) => Purpose::Grayscale,
            Self::RandAugment(_) => Purpose::RandAugment,
            Self::TrivialAugmentWide(_) => Purpose::TrivialAugment,
            Self::RandomErasing(_) => Purpose::Erase,
        })
    }
}

/// Where the pixels of the output come from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Geometry {
    Crop(RandomResizedCrop),
    /// A resize, if there is one, and what is cut from its middle.
    Whole(Option<ResizeTo>, Option<Size>),
}

/// A step that changes bytes, and how many of its kind came before it: the draws of the second are others.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Change {
    step: Step,
    before: u64,
}

/// Transforms one after the other, checked and compiled.
///
/// The order is: [`Step::RandomResizedCrop`], or [`Step::Resize`], [`Step::CentreCrop`] or one after the other; then flips and
/// changes of colour in any order and number; [`Step::RandomErasing`] last. Normalisation is the output's
/// ([`Output`]), and comes before erasing.
///
/// ```
/// use forebay_image::{RandomErasing, RandomResizedCrop, Step, TransformList};
///
/// let crop = RandomResizedCrop { size: (224, 224), scale: (0.08, 1.0), ratio: (0.75, 4.0 / 3.0) };
/// let list = TransformList::new(vec![
///     Step::RandomResizedCrop(crop),
///     Step::RandomHorizontalFlip(0.5),
///     Step::RandomErasing(RandomErasing::new()),
/// ])?;
/// assert_eq!(list.output_size(), (224, 224));
/// assert!(TransformList::new(vec![Step::RandomHorizontalFlip(0.5)]).is_err());
/// # Ok::<(), forebay_image::ImageError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct TransformList {
    steps: Vec<Step>,
    geometry: Geometry,
    /// Probability of a flip that the resize does on the way.
    mirror: f64,
    changes: Vec<Change>,
    erasing: Option<RandomErasing>,
}

impl TransformList {
    /// Checks and compiles a list.
    ///
    /// # Errors
    /// [`ImageError::Transform`](crate::ImageError::Transform): a step with impossible numbers, or an order that does not
    /// work, with one that does.
    pub fn new(steps: Vec<Step>) -> Result<Self> {
        if steps.len() > MAX_STEPS {
            return Err(invalid(format!(
                "a list of {} transforms, {MAX_STEPS} are possible",
                steps.len()
            )));
        }
        for step in &steps {
            step.validate()?;
        }
        let mut rest = steps.as_slice();
        let geometry = geometry(&mut rest)?;
        let mut mirror = 0.0;
        let mut changes: Vec<Change> = Vec::new();
        let mut flips = 0;
        // A flip next to the resize costs nothing there.
        if let [Step::RandomHorizontalFlip(p), after @ ..] = rest {
            (mirror, rest, flips) = (*p, after, 1);
        }
        let erasing = match rest.split_last() {
            Some((Step::RandomErasing(erasing), before)) => {
                rest = before;
                Some(*erasing)
            }
            _ => None,
        };
        for &step in rest {
            match step {
                Step::RandomResizedCrop(_) | Step::Resize(_) | Step::CentreCrop(_) => {
                    return Err(invalid(format!(
                        "{} comes too late: a list has one crop or resize, and it comes first",
                        step.name()
                    )));
                }
                Step::RandomErasing(_) => {
                    return Err(invalid(
                        "RandomErasing has to be the last transform, and the only one of its kind"
                            .into(),
                    ));
                }
                _ => {}
            }
            let same = |change: &&Change| change.step.purpose() == step.purpose();
            let mut before = changes.iter().filter(same).count() as u64;
            if matches!(step, Step::RandomHorizontalFlip(_)) {
                before += flips;
            }
            changes.push(Change { step, before });
        }
        Ok(Self {
            steps,
            geometry,
            mirror,
            changes,
            erasing,
        })
    }

    /// The transforms, as given.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Height and width of what comes out, in pixels.
    pub fn output_size(&self) -> Size {
        match self.geometry {
            Geometry::Crop(crop) => crop.size,
            Geometry::Whole(_, Some(size)) | Geometry::Whole(Some(ResizeTo::Exact(size)), None) => {
                size
            }
            Geometry::Whole(Some(ResizeTo::Short(side)), None) => (side, side),
            // Neither is no geometry.
            Geometry::Whole(None, None) => (0, 0),
        }
    }

    /// Whether bytes are changed after the resize.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    pub(super) fn plan(&self, width: u32, height: u32, seed: SampleSeed) -> ((u32, u32), Resize) {
        let flip = self.mirror > 0.0 && Draws::new(seed, Purpose::Flip).unit() < self.mirror;
        match self.geometry {
            Geometry::Crop(RandomResizedCrop { size, scale, ratio }) => {
                let crop = random_region(width, height, seed, scale, ratio);
                let resize = Resize {
                    input: (crop.width, crop.height),
                    output: (size.1, size.0),
                    window: Region::whole(size.1, size.0),
                    flip,
                };
                ((crop.x, crop.y), resize)
            }
            Geometry::Whole(to, crop) => {
                let output = match to {
                    Some(ResizeTo::Short(side)) => eval::resized(side, width, height),
                    Some(ResizeTo::Exact((height, width))) => (width, height),
                    None => (width, height),
                };
                let window = match crop {
                    // As far as there is any: the rest is black.
                    Some((height, width)) => {
                        eval::middle(output, (width.min(output.0), height.min(output.1)))
                    }
                    None => Region::whole(output.0, output.1),
                };
                let resize = Resize {
                    input: (width, height),
                    output,
                    window,
                    flip,
                };
                ((0, 0), resize)
            }
        }
    }

    /// Flips and changes of colour.
    pub(super) fn change(&self, picture: &mut Picture, seed: SampleSeed) {
        for change in &self.changes {
            let Some(purpose) = change.step.purpose() else {
                continue;
            };
            let draws = &mut Draws::nth(seed, purpose, change.before);
            match &change.step {
                Step::RandomHorizontalFlip(p) if draws.unit() < *p => picture.mirror(),
                Step::RandomVerticalFlip(p) if draws.unit() < *p => picture.upside_down(),
                Step::ColorJitter(jitter) => jitter.apply(picture, draws),
                Step::RandomGrayscale(grayscale) => grayscale.apply(picture, draws),
                Step::RandAugment(augment) => augment.apply(picture, draws),
                Step::TrivialAugmentWide(augment) => augment.apply(picture, draws),
                _ => {}
            }
        }
    }

    /// Erasing, in the finished sample.
    pub(super) fn erase(&self, output: &Output, seed: SampleSeed, out: &mut [u8]) {
        let Some(erasing) = &self.erasing else {
            return;
        };
        let (height, width) = self.output_size();
        let mut draws = Draws::new(seed, Purpose::Erase);
        let mut noise = Draws::new(seed, Purpose::Noise);
        let size = (width as usize, height as usize);
        erasing.apply(output, size, (&mut draws, &mut noise), out);
    }
}

/// Takes the steps that say which pixels there are from the front of a list.
fn geometry(rest: &mut &[Step]) -> Result<Geometry> {
    let (geometry, used) = match *rest {
        [Step::RandomResizedCrop(crop), ..] => (Geometry::Crop(*crop), 1),
        [Step::Resize(to), Step::CentreCrop(size), ..] => {
            (Geometry::Whole(Some(*to), Some(*size)), 2)
        }
        [Step::CentreCrop(size), ..] => (Geometry::Whole(None, Some(*size)), 1),
        [Step::Resize(to @ ResizeTo::Exact(_)), ..] => (Geometry::Whole(Some(*to), None), 1),
        [Step::Resize(ResizeTo::Short(side)), ..] => {
            return Err(invalid(format!(
                "Resize({side}) gives pictures of different sizes: put CentreCrop({side}) right after it, or give it \
                 a height and a width"
            )));
        }
        [] => {
            return Err(invalid(
                "a list without transforms: begin with RandomResizedCrop(size), or with Resize(size) and CentreCrop(size)"
                    .into(),
            ));
        }
        [other, ..] => {
            return Err(invalid(format!(
                "{} comes first: begin with RandomResizedCrop(size), or with Resize(size) and CentreCrop(size), so that \
                 only what is needed is decoded",
                other.name()
            )));
        }
    };
    *rest = &rest[used..];
    Ok(geometry)
}

#[cfg(test)]
mod tests {
    use super::super::moving::Motion;
    use super::*;

    const CROP: Step = Step::RandomResizedCrop(RandomResizedCrop {
        size: (20, 30),
        scale: (0.08, 1.0),
        ratio: (0.75, 4.0 / 3.0),
    });
    const FLIP: Step = Step::RandomHorizontalFlip(0.5);
    const GREY: Step = Step::RandomGrayscale(RandomGrayscale { p: 0.2 });

    fn refused(steps: &[Step]) -> String {
        TransformList::new(steps.to_vec()).unwrap_err().to_string()
    }

    #[test]
    fn orders_that_work() {
        let list = TransformList::new(vec![CROP, FLIP, GREY, FLIP, GREY]).unwrap();
        assert_eq!(list.output_size(), (20, 30));
        assert_eq!(list.mirror, 0.5);
        let before: Vec<u64> = list.changes.iter().map(|change| change.before).collect();
        assert_eq!(before, [0, 1, 1]);
        let resize = Step::Resize(ResizeTo::Short(64));
        let list = TransformList::new(vec![resize, Step::CentreCrop((64, 32))]).unwrap();
        assert_eq!((list.output_size(), list.has_changes()), ((64, 32), false));
        let list = TransformList::new(vec![Step::CentreCrop((7, 5)), GREY]).unwrap();
        assert_eq!(list.output_size(), (7, 5));
        let resize = Step::Resize(ResizeTo::Exact((9, 8)));
        let erase = Step::RandomErasing(RandomErasing::new());
        let list = TransformList::new(vec![resize, erase]).unwrap();
        assert_eq!((list.output_size(), list.erasing.is_some()), ((9, 8), true));
    }

    #[test]
    fn orders_that_do_not_work_say_which_does() {
        assert!(refused(&[]).contains("begin with RandomResizedCrop"));
        assert!(refused(&[FLIP, CROP]).contains("RandomHorizontalFlip comes first: begin with"));
        assert!(refused(&[CROP, CROP]).contains("too late"));
        let short = Step::Resize(ResizeTo::Short(64));
        assert!(refused(&[short, FLIP]).contains("put CentreCrop(64) right after it"));
        let erase = Step::RandomErasing(RandomErasing::new());
        assert!(refused(&[CROP, erase, GREY]).contains("last"));
        assert!(refused(&[CROP, erase, erase]).contains("only one"));
        assert!(refused(&[CROP; 33]).contains("33 transforms"));
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let tail = |step| refused(&[CROP, step]);
        assert!(tail(Step::RandomHorizontalFlip(1.5)).contains("probability"));
        assert!(tail(Step::RandomVerticalFlip(f64::NAN)).contains("RandomVerticalFlip"));
        let jitter = ColorJitter {
            brightness: None,
            contrast: None,
            saturation: None,
            hue: Some((-0.6, 0.1)),
        };
        assert!(tail(Step::ColorJitter(jitter)).contains("hue"));
        let augment = RandAugment {
            num_ops: 2,
            magnitude: 31,
            num_magnitude_bins: 31,
            motion: Motion::default(),
        };
        assert!(tail(Step::RandAugment(augment)).contains("bins 0 to 30"));
        let trivial = TrivialAugmentWide {
            num_magnitude_bins: 1,
            motion: Motion::default(),
        };
        assert!(tail(Step::TrivialAugmentWide(trivial)).contains("2 to 1000"));
        let erasing = RandomErasing {
            ratio: (0.0, 1.0),
            ..RandomErasing::new()
        };
        assert!(tail(Step::RandomErasing(erasing)).contains("ratio"));
        assert!(refused(&[Step::Resize(ResizeTo::Exact((0, 4)))]).contains("height"));
    }
}
