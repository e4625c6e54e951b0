//! The identity of sampling options, for the states of loaders.
//!
//! States that were saved long ago are compared with it, so these bytes never change, whatever else does: numbers are varints
//! behind a field's number and kind, as protobuf has them, and what is 0, empty or false is left out.

use super::{Sampling, Weights};
use crate::plan::Key;

/// The kinds of fields.
const VARINT: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const LENGTH: u64 = 2;

/// Sixteen hexadecimal digits that follow from the options.
pub(super) fn identity(sampling: &Sampling) -> String {
    let bytes = encoded(sampling);
    let mut key = Key::root(bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        key = key.child(u64::from_le_bytes(word));
    }
    format!("{:016x}", key.bits())
}

fn encoded(sampling: &Sampling) -> Vec<u8> {
    let mut out = Vec::new();
    let mut last = 0u64;
    let gaps = sampling.indices.iter().map(|&index| {
        let gap = index.wrapping_sub(last);
        last = index;
        gap
    });
    packed(1, gaps, &mut out);
    for class in &sampling.classes {
        bytes(2, class.as_bytes(), &mut out);
    }
    packed(
        3,
        sampling.labels.iter().map(|&label| zigzag(label)),
        &mut out,
    );
    number(4, sampling.limit, &mut out);
    match &sampling.weights {
        Weights::None => {}
        Weights::Balanced => number(5, 1, &mut out),
        Weights::ByLabel(weights) => {
            for &(label, weight) in weights {
                bytes(6, &of_class(label, "", weight), &mut out);
            }
        }
        Weights::ByClass(weights) => {
            for (class, weight) in weights {
                bytes(6, &of_class(0, class, *weight), &mut out);
            }
        }
        Weights::BySample(weights) if weights.is_empty() => {}
        Weights::BySample(weights) => {
            let floats: Vec<u8> = weights
                .iter()
                .flat_map(|weight| weight.to_le_bytes())
                .collect();
            bytes(7, &floats, &mut out);
        }
    }
    number(8, sampling.num_samples, &mut out);
    number(9, sampling.repeats, &mut out);
    out
}

/// The weight of a class, by label or by name.
fn of_class(label: i64, class: &str, weight: f64) -> Vec<u8> {
    let mut out = Vec::new();
    number(1, zigzag(label), &mut out);
    if weight.to_bits() != 0 {
        varint(2 << 3 | EIGHT_BYTES, &mut out);
        out.extend(weight.to_le_bytes());
    }
    if !class.is_empty() {
        bytes(3, class.as_bytes(), &mut out);
    }
    out
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Numbers near zero are short, whatever their sign.
fn zigzag(number: i64) -> u64 {
    (number.wrapping_shl(1) ^ (number >> 63)) as u64
}

fn number(field: u64, value: u64, out: &mut Vec<u8>) {
    if value != 0 {
        varint(field << 3 | VARINT, out);
        varint(value, out);
    }
}

fn bytes(field: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(field << 3 | LENGTH, out);
    varint(value.len() as u64, out);
    out.extend_from_slice(value);
}

fn packed(field: u64, values: impl Iterator<Item = u64>, out: &mut Vec<u8>) {
    let mut list = Vec::new();
    values.for_each(|value| varint(value, &mut list));
    if !list.is_empty() {
        bytes(field, &list, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sampling options of every kind.
    fn all() -> Vec<Sampling> {
        let weights = [
            Weights::None,
            Weights::Balanced,
            Weights::ByLabel(vec![(1, 0.5), (-3, 2.0), (0, 0.0)]),
            Weights::ByClass(vec![("cat".into(), 0.5), ("dog".into(), 2.0)]),
            Weights::BySample([0.5, 1.5, 0.0].into()),
        ];
        let of = |weights| Sampling {
            indices: [0, 5, 6, 1 << 40].into(),
            classes: vec!["cat".into(), "n01440764".into()],
            labels: vec![-1, 7, i64::MIN, i64::MAX],
            limit: 9,
            weights,
            num_samples: 300,
            repeats: 3,
        };
        weights
            .into_iter()
            .map(of)
            .chain([Sampling {
                num_samples: u64::MAX,
                ..Sampling::default()
            }])
            .collect()
    }

    /// As the protobuf library gave them that wrote these bytes in earlier versions.
    #[test]
    fn identities_never_change() {
        let found: Vec<String> = all().iter().map(identity).collect();
        let expected = [
            "6538c5fa4b739870",
            "bcfc921e8bd198d3",
            "367b0545263a3b8f",
            "47b45ea71a58f366",
            "c5dbe6b4867c0bda",
            "e2f2111de8fa2eb8",
        ];
        assert_eq!(found, expected);
    }
}
