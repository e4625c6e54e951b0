//! The parts of the protobuf wire format that an Example needs.

use super::ExampleError;
use crate::varint;

/// Wire types of fields.
pub(super) const VARINT: u32 = 0;
pub(super) const FIXED64: u32 = 1;
pub(super) const BYTES: u32 = 2;
pub(super) const FIXED32: u32 = 5;

/// A field's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64,
    Bytes(Piece<'a>),
    Fixed32(u32),
}

/// A part of a record, with its offset in the record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Piece<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) offset: usize,
}

impl<'a> Piece<'a> {
    pub(super) fn fields(self) -> Fields<'a> {
        Fields { rest: self }
    }

    pub(super) fn error(self, problem: &'static str) -> ExampleError {
        ExampleError::Encoding {
            offset: self.offset,
            problem,
        }
    }

    /// Takes `len` bytes from the front.
    fn take(&mut self, len: usize) -> Option<Piece<'a>> {
        let (front, rest) = self.bytes.split_at_checked(len)?;
        let taken = Piece {
            bytes: front,
            offset: self.offset,
        };
        *self = Piece {
            bytes: rest,
            offset: self.offset + len,
        };
        Some(taken)
    }

    /// Takes a varint from the front: at most ten bytes, and a value of at most 64 bits.
    pub(super) fn varint(&mut self) -> Result<u64, ExampleError> {
        let mut value = 0u64;
        for (i, &byte) in self.bytes.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                if i == 9 && byte > 1 {
                    return Err(self.error("a varint of more than 64 bits"));
                }
                self.take(i + 1);
                return Ok(value);
            }
        }
        Err(self.error(if self.bytes.len() < 10 {
            "a varint is cut short"
        } else {
            "a varint of more than ten bytes"
        }))
    }

    /// Takes four bytes, little-endian.
    pub(super) fn fixed32(&mut self) -> Result<u32, ExampleError> {
        let error = self.error("a 32-bit value is cut short");
        let piece = self.take(4).ok_or(error)?;
        piece
            .bytes
            .try_into()
            .map(u32::from_le_bytes)
            .map_err(|_| piece.error("not four bytes"))
    }
}

/// Walks the fields of a message.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a> {
    rest: Piece<'a>,
}

impl<'a> Fields<'a> {
    /// Returns the byte at which the next field begins.
    pub(super) fn offset(&self) -> usize {
        self.rest.offset
    }

    /// Returns the error for the last field, which has the wrong wire type.
    pub(super) fn wrong_type(&self) -> ExampleError {
        self.rest
            .error("the field before this byte has the wrong wire type")
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), ExampleError> {
        let start = self.rest;
        let tag = self.rest.varint()?;
        let number = u32::try_from(tag >> 3).unwrap_or(0);
        if number == 0 || number >= 1 << 29 {
            return Err(start.error("a field number out of range"));
        }
        let value = match tag as u32 & 7 {
            VARINT => Value::Varint(self.rest.varint()?),
            FIXED64 => {
                self.rest
                    .take(8)
                    .ok_or_else(|| start.error("a 64-bit field is cut short"))?;
                Value::Fixed64
            }
            BYTES => {
                let len = usize::try_from(self.rest.varint()?).unwrap_or(usize::MAX);
                let bytes = self.rest.take(len);
                Value::Bytes(bytes.ok_or_else(|| start.error("a field longer than its message"))?)
            }
            FIXED32 => Value::Fixed32(self.rest.fixed32()?),
            _ => return Err(start.error("a field of a wire type that no Example has")),
        };
        Ok((number, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), ExampleError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.bytes.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest.bytes = &[];
        }
        Some(field)
    }
}

/// Appends tag and length of a field with `len` bytes.
pub(super) fn put_bytes_head(out: &mut Vec<u8>, number: u32, len: usize) {
    varint::put(u64::from(number << 3 | BYTES), out);
    varint::put(len as u64, out);
}

/// Returns the encoded length of a varint.
pub(super) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Returns the encoded length of a field of `len` bytes with a number below 16.
pub(super) fn bytes_field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}
