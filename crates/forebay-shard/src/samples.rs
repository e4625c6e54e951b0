//! The identity of samples: their keys, labels and order, independent of their bytes, shards and
//! format.
//!
//! A dataset keeps its samples when it is converted to another format or divided into other shards.
//! A [`SampleDigest`] can therefore be combined with another one: the digest of a split is that of its shards in
//! order, independent of the boundaries between shards. Each sample is hashed to a number *e*, and
//! a sequence of samples is the polynomial `e1 * G^(n-1) + ... + en` modulo 2^127 - 1; appending to
//! it takes two multiplications.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// "No label" on disk and in digests. In memory it is the lowest value of the narrower type.
pub(crate) const NO_LABEL: i64 = i64::MIN;

/// The modulus: a Mersenne prime, so that reduction needs shifts only.
const MODULUS: u128 = (1 << 127) - 1;
/// The base of the polynomial, an arbitrary large number without a pattern.
const FACTOR: u128 = 0x5851_f42d_4c95_7f2d_1405_7b7e_f767_814f;
/// The key of the hash of a sample.
#[cfg(feature = "blake3")]
const HASH_KEY: &[u8; 32] = b"forebay samples: labels and keys";
/// The context of the hash of a dataset.
#[cfg(feature = "blake3")]
const CONTEXT: &str = "forebay sample fingerprint v1";
/// Labels and keys of up to this total length in bytes are concatenated on the stack.
#[cfg(feature = "blake3")]
const SHORT_BYTES: usize = 256;

/// Digest of the labels and keys of consecutive samples. It is known only if every sample has a
/// key, because without keys different samples could have equal digests. Needs the feature `blake3`;
/// without it, the digest is never known.
///
/// ```
/// use forebay_shard::SampleDigest;
///
/// let of = |samples: &[(i64, &str)]| {
///     let mut digest = SampleDigest::default();
///     for (label, key) in samples {
///         digest.push(Some(*label), key.as_bytes());
///     }
///     digest
/// };
/// let mut joined = of(&[(1, "a"), (2, "b")]);
/// joined.combine(&of(&[(1, "c")]));
/// assert_eq!(joined, of(&[(1, "a"), (2, "b"), (1, "c")]));
/// assert_ne!(joined, of(&[(2, "b"), (1, "a"), (1, "c")]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SampleDigest {
    records: u64,
    /// Number of samples with a label of 0 or more.
    labelled: u64,
    /// `None` after a sample without a key.
    value: Option<u128>,
}

impl Default for SampleDigest {
    fn default() -> Self {
        Self {
            records: 0,
            labelled: 0,
            value: Some(0),
        }
    }
}

impl SampleDigest {
    /// Appends a sample.
    pub fn push(&mut self, label: Option<i64>, key: &[u8]) {
        self.records += 1;
        self.labelled += u64::from(label.is_some_and(|label| label >= 0));
        self.value = match self.value {
            Some(value) if !key.is_empty() => {
                element(label, key).map(|element| add(multiply(value, FACTOR), element))
            }
            _ => None,
        };
    }

    /// Appends the samples of another digest.
    pub fn combine(&mut self, next: &Self) {
        self.records += next.records;
        self.labelled += next.labelled;
        self.value = match (self.value, next.value) {
            (Some(value), Some(rest)) => Some(add(multiply(value, power(next.records)), rest)),
            _ => None,
        };
    }

    /// Returns the number of samples.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of samples with a label of 0 or more.
    pub fn labelled(&self) -> u64 {
        self.labelled
    }

    /// Returns whether every sample so far has a key.
    pub fn is_known(&self) -> bool {
        self.value.is_some()
    }
}

impl fmt::Display for SampleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) => write!(f, "{} {} {value:032x}", self.records, self.labelled),
            None => write!(f, "{} {} -", self.records, self.labelled),
        }
    }
}

impl From<SampleDigest> for String {
    fn from(digest: SampleDigest) -> Self {
        digest.to_string()
    }
}

impl FromStr for SampleDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(' ').and_then(|(records, rest)| {
            let (labelled, value) = rest.split_once(' ')?;
            let value = match value {
                "-" => None,
                digits => {
                    let value = u128::from_str_radix(digits, 16).ok();
                    Some(value.filter(|&value| value < MODULUS && digits.len() == 32)?)
                }
            };
            let (records, labelled) = (records.parse().ok()?, labelled.parse().ok()?);
            (labelled <= records).then_some(Self {
                records,
                labelled,
                value,
            })
        });
        parsed.ok_or_else(|| format!("not a digest of samples: {text:?}"))
    }
}

impl TryFrom<String> for SampleDigest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Computes the sample fingerprint of a dataset: 32 hexadecimal digits, or `None` if a sample has
/// no key. `splits` are sorted by name.
#[cfg(feature = "blake3")]
pub(crate) fn fingerprint<'a>(
    label_base: i64,
    splits: impl ExactSizeIterator<Item = (&'a str, SampleDigest)>,
) -> Option<String> {
    let mut hash = blake3::Hasher::new_derive_key(CONTEXT);
    let mut text = |value: &str| {
        hash.update(&(value.len() as u64).to_le_bytes());
        hash.update(value.as_bytes());
    };
    text(&label_base.to_string());
    text(&splits.len().to_string());
    for (name, digest) in splits {
        text(name);
        text(&digest.records.to_string());
        text(&format!("{:032x}", digest.value?));
    }
    Some(hash.finalize().to_hex()[..32].to_owned())
}

#[cfg(not(feature = "blake3"))]
pub(crate) fn fingerprint<'a>(
    _label_base: i64,
    _splits: impl ExactSizeIterator<Item = (&'a str, SampleDigest)>,
) -> Option<String> {
    None
}

/// Hashes a sample to a number.
#[cfg(feature = "blake3")]
fn element(label: Option<i64>, key: &[u8]) -> Option<u128> {
    let label = label.unwrap_or(NO_LABEL).to_le_bytes();
    let len = label.len() + key.len();
    let hash = if len <= SHORT_BYTES {
        let mut bytes = [0; SHORT_BYTES];
        bytes[..label.len()].copy_from_slice(&label);
        bytes[label.len()..len].copy_from_slice(key);
        blake3::keyed_hash(HASH_KEY, &bytes[..len])
    } else {
        let mut hash = blake3::Hasher::new_keyed(HASH_KEY);
        hash.update(&label).update(key).finalize()
    };
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    Some(reduce(u128::from_le_bytes(first)))
}

#[cfg(not(feature = "blake3"))]
fn element(_label: Option<i64>, _key: &[u8]) -> Option<u128> {
    None
}

/// Returns `value` modulo 2^127 - 1.
fn reduce(value: u128) -> u128 {
    let folded = (value & MODULUS) + (value >> 127);
    if folded >= MODULUS {
        folded - MODULUS
    } else {
        folded
    }
}

fn add(a: u128, b: u128) -> u128 {
    reduce(a + b)
}

/// Returns the product of two reduced numbers, from halves of 64 bits: 2^127 is 1 modulo the modulus, so 2^128 is 2.
fn multiply(a: u128, b: u128) -> u128 {
    const LOW: u128 = u64::MAX as u128;
    let (a_high, a_low, b_high, b_low) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let middle = a_high * b_low + a_low * b_high;
    let high = reduce(2 * a_high * b_high);
    let middle = reduce((middle >> 63) + ((middle & (LOW >> 1)) << 64));
    add(add(high, middle), reduce(a_low * b_low))
}

/// Returns the base to the power of `exponent`.
fn power(mut exponent: u64) -> u128 {
    let (mut result, mut square) = (1, FACTOR);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(samples: &[(Option<i64>, Vec<u8>)]) -> SampleDigest {
        let mut digest = SampleDigest::default();
        for (label, key) in samples {
            digest.push(*label, key);
        }
        digest
    }

    fn samples(count: u32) -> Vec<(Option<i64>, Vec<u8>)> {
        (0..count)
            .map(|i| {
                let label = (i % 3 > 0).then_some(i64::from(i) - 5);
                (label, vec![b'a'; 1 + (i as usize * 37) % 400])
            })
            .collect()
    }

    #[test]
    fn digests_can_be_combined_at_any_boundary() {
        let samples = samples(23);
        let whole = digest(&samples);
        for cut in 0..=samples.len() {
            let mut joined = digest(&samples[..cut]);
            joined.combine(&digest(&samples[cut..]));
            assert_eq!(joined, whole, "cut at {cut}");
        }
        assert_eq!(whole.to_string().parse(), Ok(whole));
    }

    #[test]
    fn label_key_and_order_each_change_the_digest() {
        let samples = samples(9);
        let whole = digest(&samples);
        for at in 0..samples.len() {
            let mut other = samples.clone();
            other[at].0 = Some(77);
            assert_ne!(digest(&other), whole, "label of {at}");
            let mut other = samples.clone();
            other[at].1.push(b'b');
            assert_ne!(digest(&other), whole, "key of {at}");
            let mut other = samples.clone();
            other.remove(at);
            assert_ne!(digest(&other), whole, "without {at}");
            if at > 0 {
                let mut other = samples.clone();
                other.swap(at, at - 1);
                assert_ne!(digest(&other), whole, "{at} before {}", at - 1);
            }
        }
    }

    #[test]
    fn samples_without_a_key_have_no_digest() {
        let mut keyed = digest(&samples(2));
        assert!(keyed.is_known());
        let mut keyless = SampleDigest::default();
        keyless.push(Some(1), b"");
        assert!(!keyless.is_known());
        assert_eq!(
            (keyless.to_string().as_str(), keyless.labelled()),
            ("1 1 -", 1)
        );
        assert_eq!("1 1 -".parse(), Ok(keyless));
        keyless.push(None, b"");
        keyless.push(Some(-1), b"");
        assert_eq!((keyless.records(), keyless.labelled()), (3, 1));
        keyed.combine(&keyless);
        assert!(!keyed.is_known());
        assert_eq!(fingerprint(0, [("train", keyed)].into_iter()), None);
        for wrong in [
            "",
            "1",
            "1 0",
            "1 0 0",
            "x 0 -",
            "1 2 -",
            "1 0 ffffffffffffffffffffffffffffffff",
        ] {
            assert!(wrong.parse::<SampleDigest>().is_err(), "{wrong:?}");
        }
    }

    /// Expected values come from an independent computation in Python.
    #[test]
    fn arithmetic_is_modulo_2_to_the_127_less_1() {
        let large = MODULUS - 1;
        assert_eq!(multiply(large, large), 1);
        assert_eq!(multiply(large, 2), MODULUS - 2);
        assert_eq!(multiply(1 << 126, 4), 2);
        assert_eq!(reduce(u128::MAX), 1);
        assert_eq!(reduce(MODULUS), 0);
        assert_eq!(power(0), 1);
        assert_eq!(power(3), multiply(FACTOR, multiply(FACTOR, FACTOR)));
        assert_eq!(power(1_000_003), 0x1bd9_0356_8bfc_6fc1_329e_0145_c220_acd3);
    }
}
