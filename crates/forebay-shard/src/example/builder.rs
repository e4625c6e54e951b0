//! Builds Examples with features sorted by name, so that equal features give equal bytes.

use std::collections::BTreeMap;

use super::wire::{bytes_field_len, put_bytes_head, varint_len};
use crate::varint;

/// Collects features and encodes them; borrows byte strings.
///
/// Features are written in the byte order of their names, as C++ protobuf, and so TensorFlow, does
/// with deterministic serialization: the same features give the same bytes, from any writer.
/// (Python's protobuf sorts a name after longer names that start with it.)
///
/// ```
/// use forebay_shard::ExampleBuilder;
///
/// let mut builder = ExampleBuilder::new();
/// builder.add_int64("label", 7).add_bytes("id", b"a");
/// let mut swapped = ExampleBuilder::new();
/// swapped.add_bytes("id", b"a").add_int64("label", 7);
/// assert_eq!(builder.to_vec(), swapped.to_vec());
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExampleBuilder<'a> {
    features: BTreeMap<&'a str, List<'a>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum List<'a> {
    One(&'a [u8]),
    Bytes(Vec<&'a [u8]>),
    Floats(Vec<f32>),
    Int64s(Vec<i64>),
    Int64(i64),
    /// A byte string of this length that the caller writes.
    Hole(usize),
    /// No list.
    Unset,
}

impl<'a> ExampleBuilder<'a> {
    /// Creates a builder without features.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes all features, to start the next record.
    pub fn clear(&mut self) -> &mut Self {
        self.features.clear();
        self
    }

    /// Adds a feature with one byte string. Adding a feature again replaces it.
    pub fn add_bytes(&mut self, name: &'a str, value: &'a [u8]) -> &mut Self {
        self.add(name, List::One(value))
    }

    /// Adds a feature with a list of byte strings.
    pub fn add_bytes_list(&mut self, name: &'a str, values: &[&'a [u8]]) -> &mut Self {
        self.add(name, List::Bytes(values.to_vec()))
    }

    /// Adds a feature with one integer.
    pub fn add_int64(&mut self, name: &'a str, value: i64) -> &mut Self {
        self.add(name, List::Int64(value))
    }

    /// Adds a feature with a list of integers.
    pub fn add_int64s(&mut self, name: &'a str, values: &[i64]) -> &mut Self {
        self.add(name, List::Int64s(values.to_vec()))
    }

    /// Adds a feature with one float.
    pub fn add_float(&mut self, name: &'a str, value: f32) -> &mut Self {
        self.add(name, List::Floats(vec![value]))
    }

    /// Adds a feature with a list of floats.
    pub fn add_floats(&mut self, name: &'a str, values: &[f32]) -> &mut Self {
        self.add(name, List::Floats(values.to_vec()))
    }

    /// Adds a feature without a value and without a kind.
    pub fn add_unset(&mut self, name: &'a str) -> &mut Self {
        self.add(name, List::Unset)
    }

    fn add(&mut self, name: &'a str, list: List<'a>) -> &mut Self {
        self.features.insert(name, list);
        self
    }

    /// Returns the length of the encoded record.
    pub fn encoded_len(&self) -> usize {
        let features = self.features_len();
        bytes_field_len(features)
    }

    fn features_len(&self) -> usize {
        self.features
            .iter()
            .map(|(name, list)| bytes_field_len(entry_len(name, list)))
            .sum()
    }

    /// Appends the encoded record.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len());
        put_bytes_head(out, 1, self.features_len());
        for (name, list) in &self.features {
            put_entry(out, name, list);
        }
    }

    /// Returns the encoded record.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out
    }

    /// Encodes the record as if it also had a feature `name` with one byte string of `len` bytes,
    /// leaving those bytes out: `before` is replaced by the bytes before them, `after` by the bytes
    /// after them. So an image can be read from its file directly into its place in a shard's
    /// buffer.
    ///
    /// ```
    /// use forebay_shard::ExampleBuilder;
    ///
    /// let mut builder = ExampleBuilder::new();
    /// builder.add_int64("image/class/label", 7).add_bytes("image/format", b"JPEG");
    /// let (mut record, mut after) = (Vec::new(), Vec::new());
    /// builder.encode_around("image/encoded", 4, &mut record, &mut after);
    /// record.extend_from_slice(b"jpeg");
    /// record.extend_from_slice(&after);
    ///
    /// builder.add_bytes("image/encoded", b"jpeg");
    /// assert_eq!(record, builder.to_vec());
    /// ```
    pub fn encode_around(&self, name: &str, len: usize, before: &mut Vec<u8>, after: &mut Vec<u8>) {
        before.clear();
        after.clear();
        let hole = List::Hole(len);
        let others = self.features.iter().filter(|(other, _)| **other != name);
        let features: usize = others
            .clone()
            .map(|(n, l)| bytes_field_len(entry_len(n, l)))
            .sum::<usize>()
            + bytes_field_len(entry_len(name, &hole));
        put_bytes_head(before, 1, features);
        for (other, list) in others.clone().filter(|(other, _)| **other < name) {
            put_entry(before, other, list);
        }
        put_entry(before, name, &hole);
        for (other, list) in others.filter(|(other, _)| **other > name) {
            put_entry(after, other, list);
        }
    }
}

impl List<'_> {
    /// Length of the BytesList, FloatList or Int64List message.
    fn len(&self) -> usize {
        match self {
            Self::One(value) => bytes_field_len(value.len()),
            Self::Hole(len) => bytes_field_len(*len),
            Self::Bytes(values) => values
                .iter()
                .map(|value| bytes_field_len(value.len()))
                .sum(),
            Self::Floats(values) => packed_len(values.len() * 4),
            Self::Int64(value) => packed_len(varint_len(*value as u64)),
            Self::Unset => 0,
            Self::Int64s(values) => {
                packed_len(values.iter().map(|value| varint_len(*value as u64)).sum())
            }
        }
    }

    /// Returns the field number of the list in a Feature, if it has one.
    fn number(&self) -> Option<u32> {
        match self {
            Self::One(_) | Self::Bytes(_) | Self::Hole(_) => Some(1),
            Self::Floats(_) => Some(2),
            Self::Int64(_) | Self::Int64s(_) => Some(3),
            Self::Unset => None,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::One(value) => put_bytes(out, value),
            Self::Hole(len) => put_bytes_head(out, 1, *len),
            Self::Bytes(values) => values.iter().for_each(|value| put_bytes(out, value)),
            Self::Floats(values) if !values.is_empty() => {
                put_bytes_head(out, 1, values.len() * 4);
                values
                    .iter()
                    .for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
            }
            Self::Int64(value) => {
                put_bytes_head(out, 1, varint_len(*value as u64));
                varint::put(*value as u64, out);
            }
            Self::Int64s(values) if !values.is_empty() => {
                put_bytes_head(out, 1, values.iter().map(|v| varint_len(*v as u64)).sum());
                values
                    .iter()
                    .for_each(|value| varint::put(*value as u64, out));
            }
            Self::Floats(_) | Self::Int64s(_) | Self::Unset => {}
        }
    }
}

/// Length of a packed field; 0 if it is empty.
fn packed_len(len: usize) -> usize {
    if len == 0 { 0 } else { bytes_field_len(len) }
}

fn put_bytes(out: &mut Vec<u8>, value: &[u8]) {
    put_bytes_head(out, 1, value.len());
    out.extend_from_slice(value);
}

/// Length of a map entry: the name, then the Feature.
fn entry_len(name: &str, list: &List<'_>) -> usize {
    bytes_field_len(name.len()) + bytes_field_len(feature_len(list))
}

/// Length of a Feature.
fn feature_len(list: &List<'_>) -> usize {
    list.number().map_or(0, |_| bytes_field_len(list.len()))
}

pub(super) fn put_entry(out: &mut Vec<u8>, name: &str, list: &List<'_>) {
    put_bytes_head(out, 1, entry_len(name, list));
    put_bytes(out, name.as_bytes());
    put_bytes_head(out, 2, feature_len(list));
    if let Some(number) = list.number() {
        put_bytes_head(out, number, list.len());
        list.put(out);
    }
}
