//! Reads an Example in place.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ExampleError;
use super::wire::{Fields, Piece, Value};

/// A record viewed as a `tensorflow.Example`. It borrows the record: an image is a slice of it.
///
/// ```
/// use forebay_shard::{ExampleBuilder, ExampleView};
///
/// let mut builder = ExampleBuilder::new();
/// builder.add_bytes("image/encoded", b"\xff\xd8...").add_int64("image/class/label", 7);
/// let record = builder.to_vec();
///
/// let example = ExampleView::parse(&record)?;
/// assert_eq!(example.bytes("image/encoded")?, Some(&b"\xff\xd8..."[..]));
/// assert_eq!(example.int64("image/class/label")?, Some(7));
/// assert_eq!(example.int64("image/height")?, None);
/// # Ok::<(), forebay_shard::ExampleError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExampleView<'a> {
    root: Piece<'a>,
}

impl<'a> ExampleView<'a> {
    /// Validates the names and the extent of every feature; values are validated when they are
    /// read.
    ///
    /// # Errors
    /// [`ExampleError::Encoding`] if the bytes are not an Example.
    pub fn parse(record: &'a [u8]) -> Result<Self, ExampleError> {
        let view = Self {
            root: Piece {
                bytes: record,
                offset: 0,
            },
        };
        let mut features = view.walk();
        while features.step()?.is_some() {}
        Ok(view)
    }

    fn walk(self) -> Features<'a> {
        Features {
            root: self.root.fields(),
            features: None,
        }
    }

    /// Returns all features, in the order of the record.
    pub fn iter(self) -> Features<'a> {
        self.walk()
    }

    /// Returns whether the record is a `tensorflow.SequenceExample`: it has feature lists, and its context is readable
    /// as an Example.
    pub fn has_feature_lists(self) -> bool {
        let mut fields = self.root.fields();
        fields.any(|field| matches!(field, Ok((2, Value::Bytes(_)))))
    }

    /// Returns the feature with this name; the last one if there are several, as protobuf defines.
    pub fn get(self, name: &str) -> Option<FeatureView<'a>> {
        self.iter().filter(|feature| feature.name == name).last()
    }

    /// Returns the first byte string of a feature; `None` if the feature is absent or empty.
    ///
    /// # Errors
    /// If the feature holds numbers, or is invalid.
    pub fn bytes(self, name: &str) -> Result<Option<&'a [u8]>, ExampleError> {
        self.get(name)
            .map_or(Ok(None), |feature| feature.one_bytes(true))
    }

    /// Returns the first integer of a feature; `None` if the feature is absent or empty.
    ///
    /// # Errors
    /// If the feature holds another kind, or is invalid.
    pub fn int64(self, name: &str) -> Result<Option<i64>, ExampleError> {
        self.get(name)
            .map_or(Ok(None), |feature| feature.one_int64(true))
    }

    /// Returns the first float of a feature; `None` if the feature is absent or empty.
    ///
    /// # Errors
    /// If the feature holds another kind, or is invalid.
    pub fn float(self, name: &str) -> Result<Option<f32>, ExampleError> {
        let Some(feature) = self.get(name) else {
            return Ok(None);
        };
        feature.floats().map(|floats| floats.first().copied())
    }
}

/// Iterates over the features of a record that was not validated.
pub(super) fn walk(record: &[u8]) -> Features<'_> {
    let root = Piece {
        bytes: record,
        offset: 0,
    };
    ExampleView { root }.walk()
}

/// Iterates over the features of an Example.
#[derive(Debug, Clone)]
pub struct Features<'a> {
    root: Fields<'a>,
    features: Option<Fields<'a>>,
}

impl<'a> Features<'a> {
    pub(super) fn step(&mut self) -> Result<Option<FeatureView<'a>>, ExampleError> {
        loop {
            if let Some(features) = &mut self.features {
                match features.next().transpose()? {
                    Some((1, Value::Bytes(entry))) => return FeatureView::parse(entry).map(Some),
                    Some((1, _)) => return Err(features.wrong_type()),
                    Some(_) => continue,
                    None => self.features = None,
                }
            }
            match self.root.next().transpose()? {
                Some((1, Value::Bytes(features))) => self.features = Some(features.fields()),
                Some((1, _)) => return Err(self.root.wrong_type()),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

impl<'a> Iterator for Features<'a> {
    type Item = FeatureView<'a>;

    /// Returns the next feature. The view was validated by `parse`, so this cannot fail.
    fn next(&mut self) -> Option<Self::Item> {
        self.step().ok().flatten()
    }
}

/// The kind of a feature's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureKind {
    /// Byte strings.
    Bytes,
    /// 32-bit floats.
    Float,
    /// 64-bit integers.
    Int64,
    /// The kind is not set.
    #[serde(skip_deserializing)]
    Unset,
}

impl fmt::Display for FeatureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Float => "float",
            Self::Int64 => "int64",
            Self::Unset => "unset",
        })
    }
}

/// One feature of an Example.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeatureView<'a> {
    name: &'a str,
    /// The map entry, whose field 2 is the feature.
    entry: Piece<'a>,
}

impl<'a> FeatureView<'a> {
    pub(super) fn parse(entry: Piece<'a>) -> Result<Self, ExampleError> {
        let mut name = "";
        for field in entry.fields() {
            match field? {
                (1, Value::Bytes(piece)) => {
                    name = std::str::from_utf8(piece.bytes)
                        .map_err(|_| piece.error("a feature name that is not UTF-8"))?;
                }
                (2, Value::Bytes(_)) => {}
                (1 | 2, _) => return Err(entry.error("a field has the wrong wire type")),
                _ => {}
            }
        }
        Ok(Self { name, entry })
    }

    /// Returns the feature's name.
    pub fn name(self) -> &'a str {
        self.name
    }

    /// Returns the kind of the values.
    ///
    /// # Errors
    /// If its encoding is invalid.
    pub fn kind(self) -> Result<FeatureKind, ExampleError> {
        let mut kind = FeatureKind::Unset;
        self.each_list(|found, _| {
            kind = found;
            Ok(())
        })?;
        Ok(kind)
    }

    /// Returns the byte strings, without a copy.
    ///
    /// # Errors
    /// If it holds another kind, or its encoding is invalid.
    pub fn bytes_list(self) -> Result<Vec<&'a [u8]>, ExampleError> {
        let mut values = Vec::new();
        self.values(FeatureKind::Bytes, |value| match value {
            None => values.clear(),
            Some(piece) => values.push(piece.bytes),
        })?;
        Ok(values)
    }

    /// Returns the integers.
    ///
    /// # Errors
    /// If it holds another kind, or its encoding is invalid.
    pub fn int64s(self) -> Result<Vec<i64>, ExampleError> {
        let mut values = Vec::new();
        self.numbers(FeatureKind::Int64, |value| match value {
            None => values.clear(),
            Some(Number::Int64(value)) => values.push(value),
            Some(Number::Float(_)) => {}
        })?;
        Ok(values)
    }

    /// Returns the floats.
    ///
    /// # Errors
    /// If it holds another kind, or its encoding is invalid.
    pub fn floats(self) -> Result<Vec<f32>, ExampleError> {
        let mut values = Vec::new();
        self.numbers(FeatureKind::Float, |value| match value {
            None => values.clear(),
            Some(Number::Float(value)) => values.push(value),
            Some(Number::Int64(_)) => {}
        })?;
        Ok(values)
    }

    /// Returns the byte string; an error if there are several, unless `first_counts`.
    pub(crate) fn one_bytes(self, first_counts: bool) -> Result<Option<&'a [u8]>, ExampleError> {
        let (mut first, mut values) = (None, 0);
        self.values(FeatureKind::Bytes, |value| match value {
            None => (first, values) = (None, 0),
            Some(piece) => {
                first = first.or(Some(piece.bytes));
                values += 1;
            }
        })?;
        self.refuse_several(values, first_counts)?;
        Ok(first)
    }

    /// Returns the integer; an error if there are several, unless `first_counts`.
    pub(crate) fn one_int64(self, first_counts: bool) -> Result<Option<i64>, ExampleError> {
        let (mut first, mut values) = (None, 0);
        self.numbers(FeatureKind::Int64, |value| match value {
            None => (first, values) = (None, 0),
            Some(Number::Int64(value)) => {
                first = first.or(Some(value));
                values += 1;
            }
            Some(Number::Float(_)) => {}
        })?;
        self.refuse_several(values, first_counts)?;
        Ok(first)
    }

    fn refuse_several(self, values: usize, first_counts: bool) -> Result<(), ExampleError> {
        if values > 1 && !first_counts {
            return Err(ExampleError::Several {
                name: self.name.to_owned(),
                values,
            });
        }
        Ok(())
    }

    /// Calls `each` for every list that the feature contains. Protobuf merges lists of one kind, and
    /// a later list of another kind overrides earlier ones.
    fn each_list(
        self,
        mut each: impl FnMut(FeatureKind, Piece<'a>) -> Result<(), ExampleError>,
    ) -> Result<(), ExampleError> {
        for field in self.entry.fields() {
            let (2, Value::Bytes(feature)) = field? else {
                continue;
            };
            for field in feature.fields() {
                let (kind, value) = match field? {
                    (1, value) => (FeatureKind::Bytes, value),
                    (2, value) => (FeatureKind::Float, value),
                    (3, value) => (FeatureKind::Int64, value),
                    _ => continue,
                };
                let Value::Bytes(list) = value else {
                    return Err(feature.error("a list has the wrong wire type"));
                };
                each(kind, list)?;
            }
        }
        Ok(())
    }

    /// Calls `each` for every list of `kind`, and with `None` when a preceding list of another kind
    /// is overridden.
    fn lists(
        self,
        kind: FeatureKind,
        mut each: impl FnMut(Option<Piece<'a>>) -> Result<(), ExampleError>,
    ) -> Result<(), ExampleError> {
        let mut last = FeatureKind::Unset;
        self.each_list(|found, list| {
            if found != last {
                each(None)?;
            }
            last = found;
            if found == kind {
                each(Some(list))
            } else {
                Ok(())
            }
        })?;
        if last != kind && last != FeatureKind::Unset {
            return Err(ExampleError::Kind {
                name: self.name.to_owned(),
                expected: kind,
                found: last,
            });
        }
        Ok(())
    }

    fn values(
        self,
        kind: FeatureKind,
        mut each: impl FnMut(Option<Piece<'a>>),
    ) -> Result<(), ExampleError> {
        self.lists(kind, |list| {
            let Some(list) = list else {
                each(None);
                return Ok(());
            };
            for field in list.fields() {
                match field? {
                    (1, Value::Bytes(piece)) => each(Some(piece)),
                    (1, _) => return Err(list.error("a value has the wrong wire type")),
                    _ => {}
                }
            }
            Ok(())
        })
    }

    /// Reads numbers in packed form, or, from old writers, as one field per number.
    fn numbers(
        self,
        kind: FeatureKind,
        mut each: impl FnMut(Option<Number>),
    ) -> Result<(), ExampleError> {
        let float = kind == FeatureKind::Float;
        self.lists(kind, |list| {
            let Some(list) = list else {
                each(None);
                return Ok(());
            };
            for field in list.fields() {
                match field? {
                    (1, Value::Bytes(mut packed)) => {
                        while !packed.bytes.is_empty() {
                            each(Some(if float {
                                Number::Float(f32::from_bits(packed.fixed32()?))
                            } else {
                                Number::Int64(packed.varint()? as i64)
                            }));
                        }
                    }
                    (1, Value::Varint(value)) if !float => each(Some(Number::Int64(value as i64))),
                    (1, Value::Fixed32(bits)) if float => {
                        each(Some(Number::Float(f32::from_bits(bits))));
                    }
                    (1, _) => return Err(list.error("a value has the wrong wire type")),
                    _ => {}
                }
            }
            Ok(())
        })
    }
}

enum Number {
    Float(f32),
    Int64(i64),
}
