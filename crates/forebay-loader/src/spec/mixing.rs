//! How the samples of a batch are mixed, as it travels: `forebay.wire.v1.BatchTransform`.

use forebay_image::{BatchTransform, Mixing};
use forebay_proto::wire;
use wire::batch_transform::{Choice, choice::Kind};

use crate::error::{Error, Result};

/// What a stranger asks for, checked.
pub(super) fn from_wire(
    transform: Option<&wire::BatchTransform>,
) -> Result<Option<BatchTransform>> {
    let Some(transform) = transform else {
        return Ok(None);
    };
    let choices = transform.choices.iter().map(|choice| {
        let mixing = match &choice.kind {
            Some(Kind::Mixup(mixup)) => Mixing::Mixup { alpha: mixup.alpha },
            Some(Kind::Cutmix(cutmix)) => Mixing::CutMix {
                alpha: cutmix.alpha,
            },
            None => Mixing::Nothing,
        };
        (mixing, choice.weight)
    });
    BatchTransform::new(choices.collect())
        .map(Some)
        .map_err(|error| Error::option("batch_transform", "invalid", error))
}

pub(super) fn to_wire(transform: &BatchTransform) -> wire::BatchTransform {
    let choices = transform.choices().iter().map(|&(mixing, weight)| Choice {
        kind: match mixing {
            Mixing::Mixup { alpha } => Some(Kind::Mixup(wire::Mixup { alpha })),
            Mixing::CutMix { alpha } => Some(Kind::Cutmix(wire::CutMix { alpha })),
            _ => None,
        },
        weight,
    });
    wire::BatchTransform {
        choices: choices.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_the_way() {
        let choices = vec![
            (Mixing::Mixup { alpha: 0.2 }, 1.0),
            (Mixing::CutMix { alpha: 1.0 }, 2.5),
            (Mixing::Nothing, 0.5),
        ];
        let transform = BatchTransform::new(choices).unwrap();
        let sent = to_wire(&transform);
        assert_eq!(from_wire(Some(&sent)).unwrap(), Some(transform));
        assert_eq!(from_wire(None).unwrap(), None);
    }

    #[test]
    fn choices_of_strangers_are_checked() {
        let refused = |alpha, weight, count| {
            let kind = Some(Kind::Mixup(wire::Mixup { alpha }));
            let choices = vec![Choice { kind, weight }; count];
            from_wire(Some(&wire::BatchTransform { choices })).is_err()
        };
        assert!(!refused(1.0, 1.0, 1));
        assert!(refused(f64::NAN, 1.0, 1));
        assert!(refused(1.0, f64::INFINITY, 1));
        assert!(refused(1.0, 1.0, 0));
        assert!(refused(1.0, 1.0, 100_000));
    }
}
