//! The values of leaves, as LitData's serializers write them.

use crate::records::samples::{Encoding, SampleColumn, Target, put_typed_array, values_at};
use forebay_image::{PngCompression, SampleFormat, encode_png_samples};
use forebay_shard::schema::NumberType;
use std::borrow::Cow;

/// NumPy's types by their numbers in LitData.
const NUMPY: [Option<NumberType>; 14] = [
    Some(NumberType::Int8),
    Some(NumberType::Int16),
    Some(NumberType::Int32),
    Some(NumberType::Int64),
    Some(NumberType::Uint8),
    Some(NumberType::Uint16),
    Some(NumberType::Uint32),
    Some(NumberType::Uint64),
    Some(NumberType::Float16),
    Some(NumberType::Float32),
    Some(NumberType::Float64),
    // Complex numbers.
    None,
    None,
    Some(NumberType::Bool),
];

/// PyTorch's types by their numbers in LitData; several types have two names in PyTorch.
const TORCH: [Option<NumberType>; 21] = [
    Some(NumberType::Float32),
    Some(NumberType::Float32),
    Some(NumberType::Float64),
    Some(NumberType::Float64),
    // Complex numbers.
    None,
    None,
    None,
    None,
    Some(NumberType::Float16),
    Some(NumberType::Float16),
    Some(NumberType::Bfloat16),
    Some(NumberType::Uint8),
    Some(NumberType::Int8),
    Some(NumberType::Int16),
    Some(NumberType::Int16),
    Some(NumberType::Int32),
    Some(NumberType::Int32),
    Some(NumberType::Int64),
    Some(NumberType::Int64),
    Some(NumberType::Bool),
    Some(NumberType::Uint16),
];

/// Most dimensions of an array, as for a tensor column.
const MAX_DIMENSIONS: u32 = 8;

/// Splits an item into the values of its leaves, in the order of `places`.
pub(super) fn values<'a>(places: &[usize], item: &'a [u8]) -> Result<Vec<&'a [u8]>, String> {
    values_at(places.iter().map(|_| None), places, item)
}

/// The type of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaf {
    Text,
    Bytes,
    /// An encoded image.
    Image,
    /// Raw pixels in a mode of Pillow.
    Pil,
    Bool,
    Int,
    Float,
    /// Arrays that begin with type and shape.
    Numpy,
    Tensor,
    /// Arrays with one dimension.
    Flat(NumberType),
}

impl Leaf {
    /// Parses an entry of `data_format`: the name of a serializer, with a parameter after a colon.
    pub(super) fn parse(format: &str) -> Result<Self, String> {
        let (name, parameter) = format.split_once(':').unwrap_or((format, ""));
        let flat = |numbers: &[Option<NumberType>]| {
            let number: Option<usize> = parameter.parse().ok();
            let number = number.and_then(|at| numbers.get(at).copied().flatten());
            number.map(Self::Flat).ok_or_else(|| {
                format!("arrays of {format:?} have numbers of a type that no column holds")
            })
        };
        Ok(match name {
            "str" | "text" => Self::Text,
            "bytes" | "file" => Self::Bytes,
            "jpeg" | "image" | "tiff" | "tifffile" => Self::Image,
            "pil" => Self::Pil,
            "bool" => Self::Bool,
            "int" => Self::Int,
            "float" => Self::Float,
            "numpy" => Self::Numpy,
            "tensor" => Self::Tensor,
            "no_header_numpy" => flat(&NUMPY)?,
            "no_header_tensor" => flat(&TORCH)?,
            "pickle" | "graph" => {
                return Err(
                    "it is pickled, which is not read: reading it would execute what it says"
                        .to_owned(),
                );
            }
            _ => return Err(format!("values of {format:?} are not read")),
        })
    }

    /// Returns the encoding of converted values.
    pub(super) fn encoding(self) -> Encoding {
        match self {
            Self::Text => Encoding::Str,
            Self::Bytes => Encoding::Bytes,
            Self::Image | Self::Pil => Encoding::Jpeg,
            Self::Bool => Encoding::Scalar("uint8", NumberType::Uint8),
            Self::Int => Encoding::Scalar("int", NumberType::Int64),
            Self::Float => Encoding::Scalar("float64", NumberType::Float64),
            Self::Numpy | Self::Tensor | Self::Flat(_) => Encoding::Array {
                number: None,
                shape: None,
                dimensions: 0,
            },
        }
    }

    fn convert(self, value: &[u8]) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Self::Text | Self::Bytes | Self::Image => Ok(value.into()),
            Self::Bool | Self::Int | Self::Float => {
                let size = self.encoding().size().unwrap_or(0);
                match value.len() as u64 == size {
                    true => Ok(value.into()),
                    false => Err(format!("{} bytes are no number of {size}", value.len())),
                }
            }
            Self::Pil => pil(value).map(Cow::Owned),
            Self::Numpy => {
                let (number, shape, bytes) = header(value, &NUMPY, u32::from_le_bytes)?;
                array(number, &shape, bytes)
            }
            Self::Tensor => {
                let (number, shape, bytes) = header(value, &TORCH, u32::from_be_bytes)?;
                array(number, &shape, bytes)
            }
            Self::Flat(number) => {
                let count = value.len() / number.bytes();
                array(number, &[count as u64], value)
            }
        }
    }
}

/// Converts the values of an item to the encodings of their columns. Values of dropped leaves are not checked.
pub(super) fn convert<'a>(
    leaves: &[Leaf],
    columns: &[SampleColumn],
    values: Vec<&'a [u8]>,
) -> Result<Vec<Cow<'a, [u8]>>, String> {
    let all = leaves.iter().zip(columns).zip(values);
    let convert = all.map(|((leaf, column), value)| match column.target {
        Target::Nothing => Ok(Cow::Borrowed(value)),
        _ => {
            let converted = leaf.convert(value);
            converted.map_err(|what| format!("leaf {:?}: {what}", column.name))
        }
    });
    convert.collect()
}

fn array(number: NumberType, shape: &[u64], bytes: &[u8]) -> Result<Cow<'static, [u8]>, String> {
    let mut out = Vec::with_capacity(bytes.len() + 64);
    put_typed_array(number, shape, bytes, &mut out)?;
    Ok(Cow::Owned(out))
}

/// Parses type, shape and numbers of an array. The number of values is checked when the array is read.
fn header<'a>(
    value: &'a [u8],
    numbers: &[Option<NumberType>],
    word: fn([u8; 4]) -> u32,
) -> Result<(NumberType, Vec<u64>, &'a [u8]), String> {
    let mut rest = value;
    let mut next = || {
        let (first, after) = rest
            .split_first_chunk::<4>()
            .ok_or("the array is cut short")?;
        rest = after;
        Ok::<u32, &str>(word(*first))
    };
    let (number, dimensions) = (next()?, next()?);
    if dimensions > MAX_DIMENSIONS {
        return Err(format!(
            "an array of {dimensions} dimensions, at most {MAX_DIMENSIONS} are read"
        ));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        shape.push(u64::from(next()?));
    }
    let found = numbers.get(number as usize).copied().flatten();
    let found = found
        .ok_or_else(|| format!("an array has numbers of type {number}, which no column holds"))?;
    Ok((found, shape, rest))
}

/// Encodes Pillow pixels as PNG. The input has width, height, length of the mode, mode, and rows.
fn pil(value: &[u8]) -> Result<Vec<u8>, String> {
    let short = "the image is cut short";
    let (sizes, rest) = value.split_first_chunk::<12>().ok_or(short)?;
    let size = |at: usize| {
        let word = sizes[at..at + 4].try_into().unwrap_or_default();
        u32::from_le_bytes(word)
    };
    let (width, height) = (size(0), size(4));
    let (mode, pixels) = rest.split_at_checked(size(8) as usize).ok_or(short)?;
    let format = match mode {
        b"L" => SampleFormat::Gray8,
        b"RGB" => SampleFormat::Rgb8,
        _ => {
            return Err(format!(
                "pixels of mode \"{}\" are not read, only \"L\" and \"RGB\": convert the images in the function of `optimize`",
                crate::finding::escape(&mode[..mode.len().min(16)])
            ));
        }
    };
    let encoded = encode_png_samples(pixels, width, height, format, PngCompression::Fast);
    encoded.map_err(|error| format!("it cannot be encoded: {error}"))
}
