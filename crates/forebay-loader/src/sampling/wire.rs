//! Sampling options as they travel: `forebay.wire.v1.Sampling`.

use forebay_proto::prost::Message;
use forebay_proto::wire;

use super::{Sampling, Weights};
use crate::error::{Error, Result};
use crate::plan::Key;

impl Sampling {
    /// From a message of somebody else. What it means for a split is checked when it is resolved.
    pub(crate) fn from_wire(message: Option<&wire::Sampling>) -> Result<Sampling> {
        let Some(message) = message else {
            return Ok(Sampling::default());
        };
        let mut last = 0u64;
        let mut indices = Vec::with_capacity(message.index_gaps.len());
        for &gap in &message.index_gaps {
            last = last.checked_add(gap).ok_or_else(|| {
                Error::option("indices", "a number beyond 2^64", "numbers of records")
            })?;
            indices.push(last);
        }
        let given = [
            message.class_balanced,
            !message.label_weights.is_empty(),
            !message.sample_weights.is_empty(),
        ];
        if given.iter().filter(|&&given| given).count() > 1 {
            let expected = "one of class_balanced, weights of labels and weights of samples";
            return Err(Error::option("weights", "given in several ways", expected));
        }
        let weights = if message.class_balanced {
            Weights::Balanced
        } else if !message.label_weights.is_empty()
            && message
                .label_weights
                .iter()
                .all(|weight| !weight.class.is_empty())
        {
            let of = |weight: &wire::LabelWeight| (weight.class.clone(), weight.weight);
            Weights::ByClass(message.label_weights.iter().map(of).collect())
        } else if !message.label_weights.is_empty() {
            let of = |weight: &wire::LabelWeight| (weight.label, weight.weight);
            Weights::ByLabel(message.label_weights.iter().map(of).collect())
        } else if !message.sample_weights.is_empty() {
            Weights::BySample(message.sample_weights.as_slice().into())
        } else {
            Weights::None
        };
        Ok(Sampling {
            indices: indices.into(),
            classes: message.classes.clone(),
            labels: message.labels.clone(),
            limit: message.limit,
            weights,
            draws: message.draws,
            repeats: message.repeats,
        })
    }

    /// As a message; `None` for everything, once.
    pub(crate) fn to_wire(&self) -> Option<wire::Sampling> {
        if self.is_everything() {
            return None;
        }
        let mut message = wire::Sampling {
            classes: self.classes.clone(),
            labels: self.labels.clone(),
            limit: self.limit,
            draws: self.draws,
            repeats: self.repeats,
            ..wire::Sampling::default()
        };
        let mut last = 0;
        for &index in &*self.indices {
            message.index_gaps.push(index.wrapping_sub(last));
            last = index;
        }
        match &self.weights {
            Weights::None => {}
            Weights::Balanced => message.class_balanced = true,
            Weights::ByLabel(weights) => {
                let of = |&(label, weight)| wire::LabelWeight {
                    label,
                    weight,
                    class: String::new(),
                };
                message.label_weights = weights.iter().map(of).collect();
            }
            Weights::ByClass(weights) => {
                let of = |(class, weight): &(String, f64)| wire::LabelWeight {
                    label: 0,
                    weight: *weight,
                    class: class.clone(),
                };
                message.label_weights = weights.iter().map(of).collect();
            }
            Weights::BySample(weights) => message.sample_weights = weights.to_vec(),
        }
        Some(message)
    }
}

/// Sixteen hexadecimal digits that follow from the message's bytes.
pub(super) fn identity(sampling: &Sampling) -> String {
    let bytes = sampling.to_wire().unwrap_or_default().encode_to_vec();
    let mut key = Key::root(bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        key = key.child(u64::from_le_bytes(word));
    }
    format!("{:016x}", key.bits())
}
