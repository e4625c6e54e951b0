//! Encodes options for messages: as JSON, with the two lists that may have millions of numbers in separate fields.
//!
//! A million record numbers take 1 MB as varints of their differences and 8 MB as JSON; a million weights take 4 MB and 11 MB.

use std::fmt::Display;

use crate::{LoaderOptions, WeightsSpec};

/// Maximum length of the JSON that is parsed: enough for names and weights of tens of thousands of classes.
pub const MAX_JSON_BYTES: usize = 1 << 20;

/// Options for a message: the fields of `forebay.wire.v2.StreamSpec`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EncodedOptions {
    /// The options as a JSON object, without the two lists below.
    pub json: String,
    /// `indices`, ascending: the first number, then the difference of each number to the preceding one.
    pub index_gaps: Vec<u64>,
    /// `weights`, if it has one number per record.
    pub sample_weights: Vec<f32>,
}

impl LoaderOptions {
    /// Encodes these options for a message.
    #[must_use]
    pub fn encode(&self) -> EncodedOptions {
        let mut options = self.clone();
        let mut indices = options.indices.take().unwrap_or_default();
        indices.sort_unstable();
        let mut last = 0;
        for index in &mut indices {
            let gap = *index - last;
            last = std::mem::replace(index, gap);
        }
        let sample_weights = match options.weights.take() {
            Some(WeightsSpec::BySample(weights)) => weights,
            others => {
                options.weights = others;
                Vec::new()
            }
        };
        EncodedOptions {
            json: serde_json::to_string(&options)
                .unwrap_or_else(|_| unreachable!("every option is JSON")),
            index_gaps: indices,
            sample_weights,
        }
    }

    /// Reads the options that a peer sent.
    ///
    /// # Errors
    ///
    /// JSON that is too long or malformed, an unknown option, an invalid value, or an option given twice.
    pub fn decode(encoded: EncodedOptions) -> Result<LoaderOptions, String> {
        let EncodedOptions {
            json,
            index_gaps: mut indices,
            sample_weights,
        } = encoded;
        if json.len() > MAX_JSON_BYTES {
            return Err(format!(
                "options of {} bytes: expected at most {MAX_JSON_BYTES}",
                json.len()
            ));
        }
        let mut options: LoaderOptions =
            forebay_shard::json::from_str(&json).map_err(|error| error.to_string())?;
        let mut last = 0u64;
        for gap in &mut indices {
            last = last
                .checked_add(*gap)
                .ok_or("option indices has a number beyond 2^64: expected numbers of records")?;
            *gap = last;
        }
        fn put<T>(option: &mut Option<T>, name: impl Display, value: T) -> Result<(), String> {
            match option.replace(value) {
                None => Ok(()),
                Some(_) => Err(format!("option {name} is given twice")),
            }
        }
        if !indices.is_empty() {
            put(&mut options.indices, "indices", indices)?;
        }
        if !sample_weights.is_empty() {
            put(
                &mut options.weights,
                "weights",
                WeightsSpec::BySample(sample_weights),
            )?;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(value: serde_json::Value) -> LoaderOptions {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn long_lists_are_encoded_outside_of_the_json() {
        let given = options(
            json!({"seed": u64::MAX, "indices": [0, 5, 6, 1u64 << 40], "weights": [0.1, 2.0]}),
        );
        let encoded = given.encode();
        assert_eq!(encoded.json, r#"{"seed":18446744073709551615}"#);
        assert_eq!(encoded.index_gaps, [0, 5, 1, (1 << 40) - 6]);
        assert_eq!(encoded.sample_weights, [0.1, 2.0]);
        assert_eq!(LoaderOptions::decode(encoded).unwrap(), given);
        let unsorted = options(json!({"indices": [6, 0, 5, 6], "weights": {"cat": 2.0}}));
        let sorted = options(json!({"indices": [0, 5, 6, 6], "weights": {"cat": 2.0}}));
        assert_eq!(LoaderOptions::decode(unsorted.encode()).unwrap(), sorted);
        assert_eq!(
            LoaderOptions::decode(LoaderOptions::default().encode()).unwrap(),
            LoaderOptions::default()
        );
    }

    #[test]
    fn decoded_options_are_validated() {
        let refused = |change: &dyn Fn(&mut EncodedOptions)| {
            let mut encoded = options(json!({"seed": 7})).encode();
            change(&mut encoded);
            LoaderOptions::decode(encoded).unwrap_err()
        };
        assert!(
            refused(&|e| e.json = "{}".to_owned() + &" ".repeat(MAX_JSON_BYTES))
                .contains("at most 1048576")
        );
        assert!(refused(&|e| e.json.clear()).contains("EOF"));
        assert!(refused(&|e| e.json += "{}").contains("trailing characters"));
        assert!(refused(&|e| e.json = "[]".into()).contains("the options of a loader"));
        assert!(
            refused(&|e| e.json = r#"{"colour": 1}"#.into()).contains("unknown field `colour`")
        );
        assert!(refused(&|e| e.json = r#"{"seed": -1}"#.into()).contains("option seed is -1"));
        assert!(
            refused(&|e| e.json = format!(r#"{{"transform": {}"#, "[".repeat(100_000)))
                .contains("nest deeper than 32 levels")
        );
        assert!(refused(&|e| e.index_gaps = vec![u64::MAX, 1]).contains("beyond 2^64"));
        let twice = |e: &mut EncodedOptions| {
            e.json = r#"{"indices": [1]}"#.into();
            e.index_gaps = vec![1];
        };
        assert!(refused(&twice).contains("option indices is given twice"));
        let twice = |e: &mut EncodedOptions| {
            e.json = r#"{"weights": {"cat": 2}}"#.into();
            e.sample_weights = vec![1.0];
        };
        assert!(refused(&twice).contains("option weights is given twice"));
    }

    #[test]
    fn a_million_indices_take_one_byte_each() {
        let given = LoaderOptions {
            indices: Some((0..1_000_000).map(|i| i * 10).collect()),
            ..LoaderOptions::default()
        };
        let encoded = given.encode();
        assert!(encoded.index_gaps.iter().all(|&gap| gap < 128));
        assert_eq!(LoaderOptions::decode(encoded).unwrap(), given);
    }
}
