//! Lists of transforms on the wire: names, and parameters in JSON.

use forebay_image::{Compose, ImageError, Op, ops};
use forebay_proto::wire;

use crate::error::{Error, Result};

/// Reads and checks a list.
pub(super) fn from_wire(list: &wire::TransformList) -> Result<Compose> {
    let ops: Result<Vec<Op>> = list.ops.iter().map(op_from).collect();
    Compose::new(ops?).map_err(Error::Transform)
}

pub(super) fn to_wire(list: &Compose) -> wire::TransformList {
    let ops = list.ops().iter().map(|op| wire::Op {
        name: op.name().to_owned(),
        params: op.params().to_string(),
    });
    wire::TransformList { ops: ops.collect() }
}

fn op_from(op: &wire::Op) -> Result<Op> {
    let params: serde_json::Map<_, _> = serde_json::from_str(&op.params).map_err(|error| {
        let what = format!("{}: {error}", op.name);
        Error::Transform(ImageError::Transform { what })
    })?;
    ops::parse(&op.name, params.into()).map_err(Error::Transform)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> wire::TransformList {
        let op = |(name, params): (&str, &str)| wire::Op {
            name: name.to_owned(),
            params: params.to_owned(),
        };
        let ops = [
            (
                "RandomResizedCrop",
                r#"{"size": [160, 192], "ratio": [0.1, 1.3333333333333333]}"#,
            ),
            ("RandomHorizontalFlip", "{}"),
            ("ColorJitter", r#"{"hue": [-0.1, 0.2]}"#),
            ("RandAugment", r#"{"fill": [128, 0, 255]}"#),
            ("Normalize", "{}"),
            ("RandomErasing", r#"{"value": [0.1, -2.5, 3]}"#),
        ];
        wire::TransformList {
            ops: ops.into_iter().map(op).collect(),
        }
    }

    #[test]
    fn lists_round_trip() {
        let read = from_wire(&list()).unwrap();
        assert_eq!(from_wire(&to_wire(&read)).unwrap(), read);
        let Op::RandomResizedCrop(crop) = read.ops()[0] else {
            panic!("{read:?}")
        };
        assert_eq!(crop.ratio, (0.1, 4.0 / 3.0));
    }

    #[test]
    fn invalid_lists_are_refused() {
        let refused = |change: &dyn Fn(&mut Vec<wire::Op>)| {
            let mut list = list();
            change(&mut list.ops);
            from_wire(&list).unwrap_err().to_string()
        };
        assert!(refused(&|ops| ops.clear()).contains("transform"));
        assert!(refused(&|ops| ops[3].name = "Shake".into()).contains("unknown transform"));
        assert!(refused(&|ops| ops[3].params = "{".into()).contains("RandAugment: EOF"));
        assert!(refused(&|ops| ops[1].params = "[]".into()).contains("RandomHorizontalFlip"));
        assert!(refused(&|ops| ops.swap(0, 1)).contains("comes first"));
        let flips = |ops: &mut Vec<wire::Op>| {
            let flip = ops[1].clone();
            ops.splice(1..1, std::iter::repeat_n(flip, 1000));
        };
        assert!(refused(&flips).contains("1006 transforms"));
        let augment = |params: &'static str| refused(&|ops| ops[3].params = params.into());
        assert!(augment(r#"{"num_ops": 4294967295}"#).contains("num_ops"));
        assert!(augment(r#"{"num_magnitude_bins": 4294967295}"#).contains("num_magnitude_bins"));
        assert!(augment(r#"{"fill": 256}"#).contains("fill of RandAugment"));
    }
}
