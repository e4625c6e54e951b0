//! Headers of NumPy's `.npy` files: the type, shape and order of an array.

use forebay_shard::schema::{ColumnType, NumberType};

/// Only structured types have longer headers, and these are not tensors.
pub(super) const HEADER_MAX_BYTES: usize = 4096;
const MAGIC: &[u8] = b"\x93NUMPY";
/// Headers are padded to a multiple of this.
const ALIGN_BYTES: usize = 64;
/// Most dimensions of a tensor column.
const MAX_DIMENSIONS: usize = 8;

/// Header of an array that is a tensor: its numbers follow the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NpyHeader {
    pub(super) number: NumberType,
    pub(super) shape: Vec<u64>,
    /// Length of the header in bytes.
    pub(super) len: usize,
}

impl NpyHeader {
    /// Parses the beginning of a file of `size` bytes. Returns `None` for an array that is not a tensor: objects, text,
    /// big-endian or structured types, Fortran order, or another file size.
    pub(super) fn parse(head: &[u8], size: u64) -> Option<Self> {
        let described = Description::parse(head)?;
        let number = number_of(described.descr)?;
        let is_tensor = !described.is_big_endian() && !described.is_fortran;
        let numbers = described
            .shape
            .iter()
            .try_fold(number.bytes() as u64, |all, dim| all.checked_mul(*dim))?;
        let fits = numbers.checked_add(described.len as u64) == Some(size);
        (is_tensor && fits && described.shape.len() <= MAX_DIMENSIONS).then_some(Self {
            number,
            shape: described.shape,
            len: described.len,
        })
    }

    /// Appends the header of an array as NumPy writes it; `None` if NumPy does not have the type.
    pub(super) fn encode(number: NumberType, shape: &[u64], out: &mut Vec<u8>) -> Option<()> {
        let descr = NUMBERS.iter().find(|(_, known)| *known == number)?.0;
        encode_header(descr, shape, out)
    }
}

/// Appends the header of an array whose type is NumPy's `descr`.
pub(super) fn encode_header(descr: &str, shape: &[u64], out: &mut Vec<u8>) -> Option<()> {
    let mut dims = String::new();
    for (at, dim) in shape.iter().enumerate() {
        dims += &match at {
            0 => format!("{dim}"),
            _ => format!(", {dim}"),
        };
    }
    if shape.len() == 1 {
        dims.push(',');
    }
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({dims}), }}");
    let start = MAGIC.len() + 4;
    let len = (start + text.len() + 1).next_multiple_of(ALIGN_BYTES);
    while start + text.len() + 1 < len {
        text.push(' ');
    }
    text.push('\n');
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&u16::try_from(text.len()).ok()?.to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    Some(())
}

/// The header of an array of any type.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Description<'a> {
    /// NumPy's name of the type, such as `<f4`.
    pub(super) descr: &'a str,
    /// Whether the first index varies fastest.
    pub(super) is_fortran: bool,
    pub(super) shape: Vec<u64>,
    /// Length of the header in bytes.
    pub(super) len: usize,
}

impl<'a> Description<'a> {
    /// Parses the beginning of a file; `None` if it is not an `.npy` file, or has a structured type.
    pub(super) fn parse(head: &'a [u8]) -> Option<Self> {
        let rest = head.strip_prefix(MAGIC)?;
        let (text_len, start) = match rest {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
            [2 | 3, _, a, b, c, d, ..] => {
                let len = u32::from_le_bytes([*a, *b, *c, *d]);
                (usize::try_from(len).ok()?, 12)
            }
            _ => return None,
        };
        let len = start + text_len;
        if len > HEADER_MAX_BYTES {
            return None;
        }
        let text = std::str::from_utf8(head.get(start..len)?).ok()?;
        Self::of_text(text, len)
    }

    /// Parses `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
    fn of_text(text: &'a str, len: usize) -> Option<Self> {
        let text = text.trim().strip_prefix('{')?.strip_suffix('}')?;
        let value = |key: &str| {
            let (_, rest) = text.split_once(key)?;
            Some(rest.trim_start().strip_prefix(':')?.trim_start())
        };
        let descr = value("'descr'")?.strip_prefix('\'')?;
        let (descr, _) = descr.split_once('\'')?;
        let order = value("'fortran_order'")?;
        let is_fortran = order.starts_with("True");
        let (shape, _) = value("'shape'")?.strip_prefix('(')?.split_once(')')?;
        let mut dims = Vec::new();
        let mut parts: Vec<&str> = shape.split(',').map(str::trim).collect();
        if parts.last() == Some(&"") {
            parts.pop();
        }
        for part in parts {
            dims.push(part.parse().ok()?);
        }
        (is_fortran || order.starts_with("False")).then_some(Self {
            descr,
            is_fortran,
            shape: dims,
            len,
        })
    }

    /// Returns whether elements are big-endian.
    pub(super) fn is_big_endian(&self) -> bool {
        self.descr.starts_with('>')
    }
}

/// Returns the type of numbers by NumPy's name, in either byte order.
pub(super) fn number_of(descr: &str) -> Option<NumberType> {
    let kind = descr.get(1..)?;
    let order = descr.get(..1)?;
    let is_known = |(name, _): &&(&str, NumberType)| {
        name[1..] == *kind
            && (order == &name[..1] || order == ">" || order == "|" && name.ends_with('1'))
    };
    NUMBERS.iter().find(is_known).map(|(_, number)| *number)
}

/// Types by NumPy's names; types of one byte have no byte order.
const NUMBERS: &[(&str, NumberType)] = &[
    ("|b1", NumberType::Bool),
    ("|u1", NumberType::Uint8),
    ("|i1", NumberType::Int8),
    ("<u2", NumberType::Uint16),
    ("<i2", NumberType::Int16),
    ("<u4", NumberType::Uint32),
    ("<i4", NumberType::Int32),
    ("<u8", NumberType::Uint64),
    ("<i8", NumberType::Int64),
    ("<f2", NumberType::Float16),
    ("<f4", NumberType::Float32),
    ("<f8", NumberType::Float64),
];

/// The common type of the arrays of a column that were added so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum NpyColumn {
    /// No array was added.
    #[default]
    Unseen,
    /// Numbers of this type. A dimension that varies is `None`.
    Tensor(NumberType, Vec<Option<u64>>),
    /// Arrays of different types: the column holds bytes.
    Mixed,
}

impl NpyColumn {
    /// Adds the header of an array; `None` for an array that is not a tensor.
    pub(super) fn add(&mut self, header: Option<NpyHeader>) {
        let other = header.map_or(Self::Mixed, |header| {
            Self::Tensor(header.number, header.shape.into_iter().map(Some).collect())
        });
        self.merge(other);
    }

    /// Returns whether both are tensors, but differ in type or number of dimensions, so that no tensor column holds both.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tensor(number, dims), Self::Tensor(same, others)) => {
                number != same || dims.len() != others.len()
            }
            _ => false,
        }
    }

    /// Adds the types that were collected separately.
    pub(super) fn merge(&mut self, other: Self) {
        *self = match (std::mem::take(self), other) {
            (Self::Unseen, other) | (other, Self::Unseen) => other,
            (Self::Tensor(number, mut dims), Self::Tensor(same, other))
                if number == same && dims.len() == other.len() =>
            {
                for (dim, other) in dims.iter_mut().zip(other) {
                    *dim = dim.filter(|dim| Some(*dim) == other);
                }
                Self::Tensor(number, dims)
            }
            _ => Self::Mixed,
        };
    }

    /// Returns the type of the column.
    pub(super) fn column_type(&self) -> ColumnType {
        match self {
            Self::Tensor(number, shape) => ColumnType::Tensor {
                shape: shape.clone(),
                number: *number,
            },
            Self::Unseen | Self::Mixed => ColumnType::Bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_numpy() {
        let mut bytes = Vec::new();
        NpyHeader::encode(NumberType::Float32, &[2, 3], &mut bytes).unwrap();
        // The header that numpy.save writes.
        let expected =
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        assert!(bytes.starts_with(expected) && bytes.ends_with(b" \n"));
        assert_eq!(bytes.len(), 128);
        let header = NpyHeader::parse(&bytes, 128 + 24).unwrap();
        assert_eq!((header.shape, header.len), (vec![2, 3], 128));
        assert_eq!(NpyHeader::parse(&bytes, 128 + 23), None);
        for shape in [&[][..], &[7], &[1, 2, 3]] {
            let mut bytes = Vec::new();
            NpyHeader::encode(NumberType::Bool, shape, &mut bytes).unwrap();
            let size = bytes.len() as u64 + shape.iter().product::<u64>();
            assert_eq!(NpyHeader::parse(&bytes, size).unwrap().shape, shape);
        }
        let mut none = Vec::new();
        assert_eq!(
            NpyHeader::encode(NumberType::Bfloat16, &[], &mut none),
            None
        );
    }

    /// Returns a header padded with zeros to a file of one KiB.
    fn file(text: &str) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.resize(1 << 10, 0);
        bytes
    }

    #[test]
    fn arrays_that_are_not_tensors_are_bytes() {
        let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";
        let len = 10 + text.len() as u64;
        assert!(NpyHeader::parse(&file(text), len + 8).is_some());
        for text in [
            "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }",
            "{'descr': '<f4', 'shape': (2,), }",
            "{",
            "",
        ] {
            assert_eq!(NpyHeader::parse(&file(text), 1 << 10), None, "{text}");
        }
        assert_eq!(
            NpyHeader::parse(b"\x93NUMPY\x01\x00\xff\xff{", 1 << 40),
            None
        );
        let mut column = NpyColumn::default();
        for shape in [vec![2, 3], vec![2, 4]] {
            let number = NumberType::Int8;
            column.add(Some(NpyHeader {
                number,
                shape,
                len: 0,
            }));
        }
        assert_eq!(column.column_type().to_string(), "tensor[2,*,int8]");
        column.add(None);
        assert_eq!(column.column_type(), ColumnType::Bytes);
    }
}
