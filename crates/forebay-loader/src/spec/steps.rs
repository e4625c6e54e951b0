//! Lists of transforms as they travel: `forebay.wire.v1.TransformList`.

use forebay_image::{
    Bounds, ColorJitter, Fill, Interpolation, Motion, RandAugment, RandomErasing, RandomGrayscale,
    RandomResizedCrop, ResizeTo, Step, TransformList, TrivialAugmentWide,
};
use forebay_proto::wire;
use wire::step::Kind;

use crate::error::{Error, Result};

/// The list that a stranger asks for, checked.
pub(super) fn from_wire(list: &wire::TransformList) -> Result<TransformList> {
    let steps: Result<Vec<Step>> = list.steps.iter().map(step_from).collect();
    TransformList::new(steps?).map_err(Error::Transform)
}

pub(super) fn to_wire(list: &TransformList) -> wire::TransformList {
    wire::TransformList {
        steps: list.steps().iter().map(step_to).collect(),
    }
}

fn step_from(step: &wire::Step) -> Result<Step> {
    let bounds = |bounds: &Option<wire::Bounds>| -> Option<Bounds> {
        bounds.as_ref().map(|bounds| (bounds.low, bounds.high))
    };
    Ok(match &step.kind {
        Some(Kind::RandomResizedCrop(crop)) => Step::RandomResizedCrop(RandomResizedCrop {
            size: (crop.height, crop.width),
            scale: (crop.scale_min, crop.scale_max),
            ratio: (crop.ratio_min, crop.ratio_max),
        }),
        Some(Kind::Resize(resize)) => Step::Resize(match resize.short_side {
            0 => ResizeTo::Exact((resize.height, resize.width)),
            side => ResizeTo::Short(side),
        }),
        Some(Kind::CentreCrop(crop)) => Step::CentreCrop((crop.height, crop.width)),
        Some(Kind::RandomHorizontalFlip(flip)) => Step::RandomHorizontalFlip(flip.p),
        Some(Kind::RandomVerticalFlip(flip)) => Step::RandomVerticalFlip(flip.p),
        Some(Kind::ColorJitter(jitter)) => Step::ColorJitter(ColorJitter {
            brightness: bounds(&jitter.brightness),
            contrast: bounds(&jitter.contrast),
            saturation: bounds(&jitter.saturation),
            hue: bounds(&jitter.hue),
        }),
        Some(Kind::RandomGrayscale(grayscale)) => {
            Step::RandomGrayscale(RandomGrayscale { p: grayscale.p })
        }
        Some(Kind::RandAugment(augment)) => Step::RandAugment(RandAugment {
            num_ops: augment.num_ops,
            magnitude: augment.magnitude,
            num_magnitude_bins: augment.num_magnitude_bins,
            motion: motion_from(augment.motion.as_ref())?,
        }),
        Some(Kind::TrivialAugmentWide(augment)) => Step::TrivialAugmentWide(TrivialAugmentWide {
            num_magnitude_bins: augment.num_magnitude_bins,
            motion: motion_from(augment.motion.as_ref())?,
        }),
        Some(Kind::RandomErasing(erasing)) => Step::RandomErasing(RandomErasing {
            p: erasing.p,
            scale: (erasing.scale_min, erasing.scale_max),
            ratio: (erasing.ratio_min, erasing.ratio_max),
            value: match (erasing.random, <[f32; 3]>::try_from(&erasing.value[..])) {
                (true, _) => Fill::Random,
                (false, Ok(value)) => Fill::Value(value),
                (false, Err(_)) => {
                    let found = format!("RandomErasing of {} numbers", erasing.value.len());
                    return Err(Error::option("transform", found, "three numbers, or noise"));
                }
            },
        }),
        None => {
            return Err(Error::option(
                "transform",
                "a list with a transform that this release does not know",
                "transforms of docs/transforms.md",
            ));
        }
    })
}

fn motion_from(motion: Option<&wire::Motion>) -> Result<Motion> {
    use wire::motion::Interpolation as Known;
    let Some(motion) = motion else {
        return Ok(Motion::default());
    };
    let unknown = |what: String| Error::option("transform", what, "what docs/transforms.md has");
    let interpolation = match Known::try_from(motion.interpolation) {
        Ok(Known::Nearest) => Interpolation::Nearest,
        Ok(Known::Bilinear) => Interpolation::Bilinear,
        Ok(Known::Bicubic) => Interpolation::Bicubic,
        Err(_) => return Err(unknown(format!("interpolation {}", motion.interpolation))),
    };
    let [0, fill @ ..] = motion.fill.to_be_bytes() else {
        return Err(unknown(format!("fill {:#x}", motion.fill)));
    };
    Ok(Motion {
        interpolation,
        fill,
    })
}

/// The default is left out, so that releases that know nothing else are asked for nothing else.
fn motion_to(motion: Motion) -> Option<wire::Motion> {
    use wire::motion::Interpolation as Known;
    let [red, green, blue] = motion.fill;
    let interpolation = match motion.interpolation {
        Interpolation::Nearest => Known::Nearest,
        Interpolation::Bilinear => Known::Bilinear,
        Interpolation::Bicubic => Known::Bicubic,
    };
    (motion != Motion::default()).then(|| wire::Motion {
        interpolation: interpolation.into(),
        fill: u32::from_be_bytes([0, red, green, blue]),
    })
}

fn step_to(step: &Step) -> wire::Step {
    let bounds = |bounds: Option<Bounds>| bounds.map(|(low, high)| wire::Bounds { low, high });
    let kind = match *step {
        Step::RandomResizedCrop(crop) => Kind::RandomResizedCrop(wire::RandomResizedCrop {
            height: crop.size.0,
            width: crop.size.1,
            scale_min: crop.scale.0,
            scale_max: crop.scale.1,
            ratio_min: crop.ratio.0,
            ratio_max: crop.ratio.1,
        }),
        Step::Resize(to) => Kind::Resize(match to {
            ResizeTo::Short(short_side) => wire::Resize {
                short_side,
                ..wire::Resize::default()
            },
            ResizeTo::Exact((height, width)) => wire::Resize {
                short_side: 0,
                height,
                width,
            },
        }),
        Step::CentreCrop((height, width)) => Kind::CentreCrop(wire::CentreCrop { height, width }),
        Step::RandomHorizontalFlip(p) => Kind::RandomHorizontalFlip(wire::RandomFlip { p }),
        Step::RandomVerticalFlip(p) => Kind::RandomVerticalFlip(wire::RandomFlip { p }),
        Step::ColorJitter(jitter) => Kind::ColorJitter(wire::ColorJitter {
            brightness: bounds(jitter.brightness),
            contrast: bounds(jitter.contrast),
            saturation: bounds(jitter.saturation),
            hue: bounds(jitter.hue),
        }),
        Step::RandomGrayscale(RandomGrayscale { p }) => {
            Kind::RandomGrayscale(wire::RandomGrayscale { p })
        }
        Step::RandAugment(augment) => Kind::RandAugment(wire::RandAugment {
            num_ops: augment.num_ops,
            magnitude: augment.magnitude,
            num_magnitude_bins: augment.num_magnitude_bins,
            motion: motion_to(augment.motion),
        }),
        Step::TrivialAugmentWide(augment) => Kind::TrivialAugmentWide(wire::TrivialAugmentWide {
            num_magnitude_bins: augment.num_magnitude_bins,
            motion: motion_to(augment.motion),
        }),
        Step::RandomErasing(erasing) => Kind::RandomErasing(wire::RandomErasing {
            p: erasing.p,
            scale_min: erasing.scale.0,
            scale_max: erasing.scale.1,
            ratio_min: erasing.ratio.0,
            ratio_max: erasing.ratio.1,
            random: erasing.value == Fill::Random,
            value: match erasing.value {
                Fill::Value(value) => value.to_vec(),
                Fill::Random => Vec::new(),
            },
        }),
        // A step that the wire has no words for is left out, and refused by the other side.
        _ => return wire::Step { kind: None },
    };
    wire::Step { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<Step> {
        vec![
            Step::RandomResizedCrop(RandomResizedCrop {
                size: (160, 192),
                scale: (0.1, 0.9),
                ratio: (0.5, 2.0),
            }),
            Step::RandomHorizontalFlip(0.25),
            Step::RandomVerticalFlip(1.0 / 3.0),
            Step::ColorJitter(ColorJitter {
                brightness: Some((0.6, 1.4)),
                contrast: None,
                saturation: Some((0.0, 3.0)),
                hue: Some((-0.1, 0.2)),
            }),
            Step::RandomGrayscale(RandomGrayscale { p: 0.2 }),
            Step::RandAugment(RandAugment {
                num_ops: 3,
                magnitude: 7,
                num_magnitude_bins: 20,
                motion: Motion::default(),
            }),
            Step::TrivialAugmentWide(TrivialAugmentWide {
                num_magnitude_bins: 31,
                motion: Motion {
                    interpolation: Interpolation::Bicubic,
                    fill: [128, 0, 255],
                },
            }),
            Step::RandomErasing(RandomErasing {
                p: 0.25,
                scale: (0.1, 0.2),
                ratio: (0.4, 1.2),
                value: Fill::Value([1.0, -2.5, 3.0]),
            }),
        ]
    }

    #[test]
    fn lists_say_everything() {
        let mut lists = vec![steps()];
        for resize in [ResizeTo::Short(256), ResizeTo::Exact((300, 280))] {
            let mut list = steps();
            list.splice(0..1, [Step::Resize(resize), Step::CentreCrop((224, 200))]);
            list.pop();
            list.push(Step::RandomErasing(RandomErasing {
                value: Fill::Random,
                ..RandomErasing::new()
            }));
            lists.push(list);
        }
        for steps in lists {
            let list = TransformList::new(steps).unwrap();
            assert_eq!(from_wire(&to_wire(&list)).unwrap(), list);
        }
    }

    #[test]
    fn lists_of_strangers_are_checked() {
        let good = to_wire(&TransformList::new(steps()).unwrap());
        let refused = |change: &dyn Fn(&mut wire::TransformList)| {
            let mut list = good.clone();
            change(&mut list);
            from_wire(&list).unwrap_err().to_string()
        };
        assert!(refused(&|list| list.steps.clear()).contains("transform"));
        assert!(refused(&|list| list.steps[3].kind = None).contains("does not know"));
        assert!(refused(&|list| list.steps.swap(0, 1)).contains("comes first"));
        assert!(
            refused(&|list| {
                let flip = list.steps[1].clone();
                list.steps.splice(1..1, std::iter::repeat_n(flip, 1000));
            })
            .contains("1008 transforms")
        );
        let augment = |num_ops, num_magnitude_bins| {
            refused(&|list| {
                list.steps[5].kind = Some(Kind::RandAugment(wire::RandAugment {
                    num_ops,
                    magnitude: 1,
                    num_magnitude_bins,
                    motion: None,
                }));
            })
        };
        for (interpolation, fill, what) in
            [(7, 0, "interpolation 7"), (1, 1 << 24, "fill 0x1000000")]
        {
            let said = refused(&|list| {
                if let Some(Kind::TrivialAugmentWide(augment)) = &mut list.steps[6].kind {
                    augment.motion = Some(wire::Motion {
                        interpolation,
                        fill,
                    });
                }
            });
            assert!(said.contains(what), "{said}");
        }
        assert!(augment(u32::MAX, 31).contains("num_ops"));
        assert!(augment(2, u32::MAX).contains("num_magnitude_bins"));
        assert!(
            refused(&|list| {
                if let Some(Kind::RandomErasing(erasing)) = &mut list.steps[7].kind {
                    erasing.value.push(1.0);
                }
            })
            .contains("4 numbers")
        );
        assert!(
            refused(&|list| {
                if let Some(Kind::RandomResizedCrop(crop)) = &mut list.steps[0].kind {
                    crop.height = u32::MAX;
                }
            })
            .contains("height")
        );
    }
}
