//! Types of columns, and their spelling: "image", "vector[4]", "tensor[3,*,float32]".

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::example::FeatureKind;

/// Maximum number of dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;

/// The type of a column.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum ColumnType {
    /// "image": an encoded image.
    Image,
    /// "label": the label of one class, -1 for none.
    Label,
    /// "labels": labels of any number of classes.
    Labels,
    /// "int": a 64-bit integer.
    Int,
    /// "float": a 32-bit floating-point number.
    Float,
    /// "vector\[4\]", "vector\[*,int64\]": a list of numbers, `*` for any length.
    Vector {
        /// The length; `None` if it varies.
        len: Option<u64>,
        /// [`NumberType::Float32`] or [`NumberType::Int64`].
        number: NumberType,
    },
    /// "tensor\[3,*,uint8\]": numbers in row-major order, `*` for a dimension that varies.
    Tensor {
        /// The dimensions; `None` for those that vary.
        shape: Vec<Option<u64>>,
        /// The type of the numbers.
        number: NumberType,
    },
    /// "text": UTF-8.
    Text,
    /// "texts": a list of UTF-8 strings.
    Texts,
    /// "json": a JSON document of at most [`MAX_JSON_BYTES`](super::MAX_JSON_BYTES).
    Json,
    /// "polygons": COCO's segmentation of each object, as JSON in pixels of the stored image.
    Polygons,
    /// "bytes": a byte string.
    Bytes,
    /// "boxes": rectangles as (xmin, ymin, xmax, ymax) from 0 to 1, each with a label.
    Boxes,
    /// "mask": an encoded image of one channel whose pixels are ids of classes or instances.
    Mask,
    /// "keypoints": points as (x, y) from 0 to 1, each with COCO's visibility.
    Keypoints,
}

/// The types without parameters, by name.
const NAMES: [(&str, ColumnType); 13] = [
    ("image", ColumnType::Image),
    ("label", ColumnType::Label),
    ("labels", ColumnType::Labels),
    ("int", ColumnType::Int),
    ("float", ColumnType::Float),
    ("text", ColumnType::Text),
    ("texts", ColumnType::Texts),
    ("json", ColumnType::Json),
    ("polygons", ColumnType::Polygons),
    ("bytes", ColumnType::Bytes),
    ("boxes", ColumnType::Boxes),
    ("mask", ColumnType::Mask),
    ("keypoints", ColumnType::Keypoints),
];

macro_rules! number_types {
    ($($variant:ident $name:literal $bytes:literal,)*) => {
        /// The type of the numbers of a vector or a tensor, little-endian.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum NumberType {
            $(
                #[doc = concat!("\"", $name, "\", as in NumPy.")]
                $variant,
            )*
        }

        impl NumberType {
            /// All types.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name, as in NumPy.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the size of a number in bytes.
            #[must_use]
            pub const fn bytes(self) -> usize {
                match self {
                    $(Self::$variant => $bytes,)*
                }
            }
        }
    };
}

number_types! {
    Bool "bool" 1,
    Uint8 "uint8" 1,
    Int8 "int8" 1,
    Uint16 "uint16" 2,
    Int16 "int16" 2,
    Uint32 "uint32" 4,
    Int32 "int32" 4,
    Uint64 "uint64" 8,
    Int64 "int64" 8,
    Float16 "float16" 2,
    Bfloat16 "bfloat16" 2,
    Float32 "float32" 4,
    Float64 "float64" 8,
}

impl NumberType {
    /// Returns the type with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|number| number.name() == name)
    }

    /// Returns the kind of feature that holds a vector of these numbers.
    pub(super) fn kind(self) -> FeatureKind {
        match self {
            Self::Int64 => FeatureKind::Int64,
            _ => FeatureKind::Float,
        }
    }
}

/// The error for a text that is not a column type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "column type {text:?}: expected image, label, labels, int, float, vector[LENGTH], vector[LENGTH,int64], tensor[SHAPE,DTYPE], text, texts, json, bytes, boxes, polygons, mask or keypoints, with * for a length that varies"
)]
pub struct ParseColumnTypeError {
    text: String,
}

impl FromStr for ColumnType {
    type Err = ParseColumnTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParseColumnTypeError {
            text: text.chars().take(100).collect(),
        };
        if let Some((_, known)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(known.clone());
        }
        let (name, inside) = text
            .strip_suffix(']')
            .and_then(|text| text.split_once('['))
            .ok_or_else(refused)?;
        let (dimensions, number) = match inside.rsplit_once(',') {
            _ if NumberType::from_name(inside).is_some() => ("", NumberType::from_name(inside)),
            Some((dimensions, last))
                if !dimensions.is_empty() && NumberType::from_name(last).is_some() =>
            {
                (dimensions, NumberType::from_name(last))
            }
            _ => (inside, None),
        };
        let mut shape = Vec::new();
        for dimension in dimensions.split(',').filter(|_| !dimensions.is_empty()) {
            shape.push(match dimension {
                "*" => None,
                _ if dimension.len() > 1 && dimension.starts_with('0') => return Err(refused()),
                digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
                    Some(digits.parse().map_err(|_| refused())?)
                }
                _ => return Err(refused()),
            });
        }
        match (name, shape.as_slice(), number) {
            ("vector", &[len], None | Some(NumberType::Float32 | NumberType::Int64)) => {
                let number = number.unwrap_or(NumberType::Float32);
                Ok(Self::Vector { len, number })
            }
            ("tensor", dimensions, Some(number)) if dimensions.len() <= MAX_DIMENSIONS => {
                Ok(Self::Tensor { shape, number })
            }
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dimension = |len: &Option<u64>| len.map_or("*".to_owned(), |len| len.to_string());
        match self {
            Self::Vector {
                len,
                number: NumberType::Float32,
            } => write!(f, "vector[{}]", dimension(len)),
            Self::Vector { len, number } => {
                write!(f, "vector[{},{}]", dimension(len), number.name())
            }
            Self::Tensor { shape, number } => {
                f.write_str("tensor[")?;
                for len in shape {
                    write!(f, "{},", dimension(len))?;
                }
                write!(f, "{}]", number.name())
            }
            plain => {
                let name = NAMES.iter().find(|(_, known)| known == plain);
                f.write_str(name.map_or("", |(name, _)| name))
            }
        }
    }
}

impl TryFrom<String> for ColumnType {
    type Error = ParseColumnTypeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ColumnType> for String {
    fn from(column_type: ColumnType) -> Self {
        column_type.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_spelled_in_one_way() {
        for text in [
            "image",
            "label",
            "labels",
            "int",
            "float",
            "text",
            "texts",
            "json",
            "polygons",
            "bytes",
            "boxes",
            "mask",
            "keypoints",
            "vector[4]",
            "vector[*]",
            "vector[*,int64]",
            "tensor[uint8]",
            "tensor[3,*,224,bfloat16]",
        ] {
            assert_eq!(text.parse::<ColumnType>().unwrap().to_string(), text);
        }
        assert_eq!(
            "vector[4,float32]"
                .parse::<ColumnType>()
                .unwrap()
                .to_string(),
            "vector[4]"
        );
        for text in [
            "",
            "Image",
            "vector",
            "vector[]",
            "vector[-1]",
            "vector[04]",
            "vector[+4]",
            "vector[4,uint8]",
            "vector[1,2]",
            "tensor[2]",
            "tensor[2,",
            "tensor[]",
            "tensor[,uint8]",
            "tensor[2,,uint8]",
            "tensor[1,1,1,1,1,1,1,1,1,uint8]",
            "vector[99999999999999999999]",
        ] {
            let error = text.parse::<ColumnType>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("column type {text:?}")),
                "{error}"
            );
        }
    }
}
