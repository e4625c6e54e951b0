//! Encodings of columns: their names in `index.json`, and the types of their values.

use forebay_shard::schema::{ColumnType, NumberType};

/// Most dimensions of an array, as for a tensor column.
const MAX_DIMENSIONS: usize = 8;

/// How the values of a column are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::records) enum Encoding {
    Bytes,
    Str,
    Jpeg,
    Png,
    /// Numbers of a named type, such as "int" and "float32".
    Scalar(&'static str, NumberType),
    /// Arrays. Type and shape are either given here or precede each value.
    Array {
        number: Option<NumberType>,
        shape: Option<Vec<u64>>,
        /// The number of dimensions if shapes vary, from the first sample.
        dimensions: usize,
    },
}

const SCALARS: &[(&str, NumberType)] = &[
    ("int", NumberType::Int64),
    ("uint8", NumberType::Uint8),
    ("int8", NumberType::Int8),
    ("uint16", NumberType::Uint16),
    ("int16", NumberType::Int16),
    ("uint32", NumberType::Uint32),
    ("int32", NumberType::Int32),
    ("uint64", NumberType::Uint64),
    ("int64", NumberType::Int64),
    ("float16", NumberType::Float16),
    ("float32", NumberType::Float32),
    ("float64", NumberType::Float64),
];

/// The types of arrays by their ids in values.
const ARRAYS: &[(u8, NumberType)] = &[
    (8, NumberType::Uint8),
    (9, NumberType::Int8),
    (16, NumberType::Uint16),
    (17, NumberType::Int16),
    (18, NumberType::Float16),
    (32, NumberType::Uint32),
    (33, NumberType::Int32),
    (34, NumberType::Float32),
    (64, NumberType::Uint64),
    (65, NumberType::Int64),
    (66, NumberType::Float64),
];

/// Returns whether arrays of this type can be stored.
pub(in crate::records) fn is_array_type(number: NumberType) -> bool {
    ARRAYS.iter().any(|(_, known)| *known == number)
}

/// Returns the encoding of a single number.
pub(in crate::records) fn scalar(number: NumberType) -> Option<Encoding> {
    // "int" comes first in the table, because readers expect Python's int.
    let found = SCALARS.iter().find(|(_, known)| *known == number)?;
    Some(Encoding::Scalar(found.0, found.1))
}

impl Encoding {
    /// Parses the name of an encoding.
    pub(in crate::records) fn parse(text: &str) -> Result<Self, String> {
        if let Some((name, number)) = SCALARS.iter().find(|(name, _)| *name == text) {
            return Ok(Self::Scalar(name, *number));
        }
        let (name, config) = text.split_once(':').unwrap_or((text, ""));
        match name {
            "bytes" => Ok(Self::Bytes),
            // Decimal numbers and JSON are stored as text.
            "str" | "str_int" | "str_float" | "str_decimal" | "json" => Ok(Self::Str),
            "jpeg" => Ok(Self::Jpeg),
            "png" => Ok(Self::Png),
            "ndarray" => {
                Self::array(config).ok_or_else(|| format!("the array {text:?} is not known"))
            }
            "pkl" => Err(
                "it is pickled, which is not read: reading it would execute what it says"
                    .to_owned(),
            ),
            "pil" => Err(
                "it has the raw pixels of images, which are not read: write it as jpeg or png"
                    .to_owned(),
            ),
            _ => Err(format!("values of {text:?} are not read")),
        }
    }

    fn array(config: &str) -> Option<Self> {
        let (number, shape) = match config.split_once(':') {
            Some((number, shape)) => (number, Some(shape)),
            None => (config, None),
        };
        let number = match number {
            "" => None,
            name => Some(NumberType::from_name(name).filter(|number| is_array_type(*number))?),
        };
        let shape = match shape {
            Some(shape) => {
                let dims = shape.split(',').map(|dim| dim.trim().parse::<u64>().ok());
                let dims: Vec<u64> = dims.collect::<Option<_>>()?;
                let is_shape = dims.len() <= MAX_DIMENSIONS && dims.iter().all(|dim| *dim > 0);
                Some(Some(dims).filter(|_| is_shape)?)
            }
            None => None,
        };
        Some(Self::Array {
            number,
            shape,
            dimensions: 0,
        })
    }

    /// Returns the name of the encoding.
    pub(in crate::records) fn name(&self) -> String {
        match self {
            Self::Bytes => "bytes".to_owned(),
            Self::Str => "str".to_owned(),
            Self::Jpeg => "jpeg".to_owned(),
            Self::Png => "png".to_owned(),
            Self::Scalar(name, _) => (*name).to_owned(),
            Self::Array { number, shape, .. } => {
                let number = number.map_or("", NumberType::name);
                let dims = shape.iter().map(|dims| {
                    let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
                    format!(":{}", dims.join(","))
                });
                format!("ndarray:{number}{}", dims.collect::<String>())
            }
        }
    }

    /// Returns the size of a value in bytes; `None` if values have different sizes.
    pub(in crate::records) fn size(&self) -> Option<u64> {
        match self {
            Self::Scalar(_, number) => Some(number.bytes() as u64),
            Self::Array {
                number: Some(number),
                shape: Some(shape),
                ..
            } => {
                let item = number.bytes() as u64;
                shape
                    .iter()
                    .try_fold(item, |all, dim| all.checked_mul(*dim))
            }
            _ => None,
        }
    }

    /// Returns the type of the column.
    pub(in crate::records) fn column_type(&self) -> ColumnType {
        match self {
            Self::Bytes => ColumnType::Bytes,
            Self::Str => ColumnType::Text,
            Self::Jpeg | Self::Png => ColumnType::Image,
            Self::Scalar(_, NumberType::Float32) => ColumnType::Float,
            Self::Scalar(
                _,
                number @ (NumberType::Uint64 | NumberType::Float16 | NumberType::Float64),
            ) => ColumnType::Tensor {
                shape: Vec::new(),
                number: *number,
            },
            Self::Scalar(..) => ColumnType::Int,
            Self::Array {
                number,
                shape,
                dimensions,
            } => ColumnType::Tensor {
                number: number.unwrap_or(NumberType::Uint8),
                shape: match shape {
                    Some(shape) => shape.iter().copied().map(Some).collect(),
                    None => vec![None; *dimensions],
                },
            },
        }
    }

    /// Takes the type and the number of dimensions of arrays from a first value.
    pub(in crate::records) fn settle(&mut self, value: &[u8]) -> Result<(), String> {
        let read = match self {
            Self::Array { .. } => array(self, value)?,
            _ => return Ok(()),
        };
        if let Self::Array {
            number, dimensions, ..
        } = self
        {
            *number = Some(read.number);
            *dimensions = read.shape.len();
        }
        Ok(())
    }
}

/// The value of an array column.
#[derive(Debug, PartialEq)]
pub(in crate::records) struct Array<'a> {
    pub(in crate::records) number: NumberType,
    pub(in crate::records) shape: Vec<u64>,
    pub(in crate::records) bytes: &'a [u8],
}

/// Parses an array. `encoding` must be the stored one, which tells whether type and shape precede the numbers.
pub(in crate::records) fn array<'a>(
    encoding: &Encoding,
    value: &'a [u8],
) -> Result<Array<'a>, String> {
    let Encoding::Array { number, shape, .. } = encoding else {
        return Err("this is no array".to_owned());
    };
    let short = || "the array is cut short".to_owned();
    let mut rest = value;
    let number = match number {
        Some(number) => *number,
        None => {
            let (first, after) = rest.split_first().ok_or_else(short)?;
            rest = after;
            let known = ARRAYS.iter().find(|(id, _)| id == first);
            known
                .ok_or_else(|| format!("an array of type {first} is not known"))?
                .1
        }
    };
    let shape = match shape {
        Some(shape) => shape.clone(),
        None => {
            let (first, after) = rest.split_first().ok_or_else(short)?;
            let (dims, width) = (usize::from(first >> 2), 1usize << (first & 3));
            if dims > MAX_DIMENSIONS {
                return Err(format!(
                    "an array of {dims} dimensions, at most {MAX_DIMENSIONS} are read"
                ));
            }
            let (shape, after) = after.split_at_checked(dims * width).ok_or_else(short)?;
            rest = after;
            let dim = |bytes: &[u8]| {
                let mut whole = [0; 8];
                whole
                    .iter_mut()
                    .zip(bytes)
                    .for_each(|(to, from)| *to = *from);
                u64::from_le_bytes(whole)
            };
            shape.chunks(width).map(dim).collect()
        }
    };
    let item = number.bytes() as u64;
    let expected = shape
        .iter()
        .try_fold(item, |all, dim| all.checked_mul(*dim));
    if expected != Some(rest.len() as u64) {
        let found = rest.len();
        return Err(format!(
            "an array of shape {shape:?} of {} has not {found} bytes",
            number.name()
        ));
    }
    Ok(Array {
        number,
        shape,
        bytes: rest,
    })
}

/// Appends an array whose type is in the encoding; `with_shape` also appends the shape.
pub(in crate::records) fn put_array(
    shape: &[u64],
    bytes: &[u8],
    with_shape: bool,
    out: &mut Vec<u8>,
) {
    if with_shape {
        let most = shape.iter().copied().max().unwrap_or(0);
        let code = match most {
            0..=0xff => 0u8,
            0x100..=0xffff => 1,
            0x1_0000..=0xffff_ffff => 2,
            _ => 3,
        };
        let dims = u8::try_from(shape.len()).unwrap_or(MAX_DIMENSIONS as u8);
        out.push((dims << 2) | code);
        for dim in shape {
            out.extend_from_slice(&dim.to_le_bytes()[..1 << code]);
        }
    }
    out.extend_from_slice(bytes);
}

/// Appends an array, preceded by its type and shape.
pub(in crate::records) fn put_typed_array(
    number: NumberType,
    shape: &[u64],
    bytes: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let stored = match number {
        NumberType::Bool => NumberType::Uint8,
        number => number,
    };
    let id = ARRAYS.iter().find(|(_, known)| *known == stored);
    let id = id.ok_or_else(|| format!("an array of {} is not read", number.name()))?;
    out.push(id.0);
    put_array(shape, bytes, true, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_encodings_are_those_of_streaming() {
        for text in [
            "bytes",
            "str",
            "jpeg",
            "png",
            "int",
            "float64",
            "ndarray:uint8:3,4",
            "ndarray:float32",
        ] {
            assert_eq!(Encoding::parse(text).unwrap().name(), text);
        }
        assert_eq!(
            Encoding::parse("ndarray:float32:2,3").unwrap().size(),
            Some(24)
        );
        for text in [
            "pkl",
            "pil",
            "list[jpeg]",
            "ndarray:bool",
            "ndarray:float32:0",
            "ndarray:float32:x",
            "ndarray:float32:1,1,1,1,1,1,1,1,1",
            "",
        ] {
            assert!(Encoding::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arrays_are_read_as_streaming_writes_them() {
        let any = Encoding::parse("ndarray").unwrap();
        // np.array([[1, 2, 300]], np.uint16): type, dimensions and width, shape, values.
        let value = [16, 2 << 2, 1, 3, 1, 0, 2, 0, 44, 1];
        let read = array(&any, &value).unwrap();
        assert_eq!((read.number, read.shape), (NumberType::Uint16, vec![1, 3]));
        let mut written = vec![16];
        put_array(&[1, 3], read.bytes, true, &mut written);
        assert_eq!(written, value);
        let mut wide = Vec::new();
        put_array(&[300], &[0; 300], true, &mut wide);
        let typed = Encoding::parse("ndarray:uint8").unwrap();
        assert_eq!(array(&typed, &wide).unwrap().shape, [300]);
        for damaged in [
            &[][..],
            &[16],
            &[7, 4, 1, 0],
            &[16, 63 << 2],
            &[16, 1 << 2, 2, 0, 0],
            &[
                66,
                (2 << 2) | 3,
                0xff,
                0xff,
                0xff,
                0xff,
                0xff,
                0xff,
                0xff,
                0xff,
                2,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
            ],
        ] {
            assert!(array(&any, damaged).is_err(), "{damaged:?}");
        }
    }
}
