//! Reads the footer of a Parquet file and validates its schema before the decoder builds it.
//!
//! The decoder recurses into groups of columns without a limit and reserves as many members as a group claims, so a footer of a
//! few kilobytes would overflow the stack. This module therefore walks the list of schema elements first and decodes it
//! separately. Then the whole footer is decoded with that schema, which ignores any other one. Types of fields are compared,
//! because the decoder does not check them.

use super::thrift::Compact;
use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::FOOTER_SIZE;
use parquet::file::metadata::{
    FooterTail, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
};
use parquet::file::reader::ChunkReader;

/// Deepest nesting of groups, including the root.
const MAX_DEPTH: usize = 64;

/// Reads and decodes the footer of a file.
pub(super) fn read(file: &impl ChunkReader) -> ParquetResult<ParquetMetaData> {
    let reader = ParquetMetaDataReader::new;
    let tail = file.len().checked_sub(FOOTER_SIZE as u64);
    let Some(tail_at) = tail else {
        // Too short for a footer: the decoder reports it.
        return reader().parse_and_finish(file);
    };
    let tail = file.get_bytes(tail_at, FOOTER_SIZE)?;
    let decoded = FooterTail::try_from(&tail[..])?;
    let len = decoded.metadata_length();
    let start = tail_at.checked_sub(len as u64);
    let (Some(start), false) = (start, decoded.is_encrypted_footer()) else {
        return reader().parse_and_finish(file);
    };
    let footer = file.get_bytes(start, len + FOOTER_SIZE)?;
    let schema = schema(&footer[..len]).map_err(ParquetError::General)?;
    let schema = reader().parse_and_finish(&only(schema))?;
    let schema = schema.file_metadata().schema_descr_ptr();
    let options = ParquetMetaDataOptions::new().with_schema(schema);
    reader()
        .with_metadata_options(Some(options))
        .parse_and_finish(&footer)
}

/// Returns the end of a file with this schema and no rows.
fn only(schema: &[u8]) -> Bytes {
    // The version, and the field header of the schema.
    let mut file = vec![0x15, 0x02, 0x19];
    file.extend_from_slice(schema);
    // No rows, no row groups, and the end of the struct.
    file.extend_from_slice(&[0x16, 0x00, 0x19, 0x0c, 0x00]);
    let len = file.len() as u32;
    file.extend_from_slice(&len.to_le_bytes());
    file.extend_from_slice(b"PAR1");
    file.into()
}

/// Validates the list of schema elements and returns its encoded bytes.
fn schema(footer: &[u8]) -> Result<&[u8], String> {
    let mut thrift = Compact { rest: footer };
    let start = thrift.schema_start();
    let start = start.ok_or("its footer does not begin with a version and a schema")?;
    let elements = thrift.list_of_structs().ok_or("its schema is no list")?;
    // Number of members that are still to come, for each open group.
    let mut open: Vec<u64> = Vec::new();
    for number in 0..elements {
        let damaged = || format!("element {number} of its schema is damaged");
        let members = thrift.element().ok_or_else(damaged)?;
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if members > elements - number {
            return Err(damaged());
        }
        if members > 0 {
            open.push(members);
        }
        if open.len() > MAX_DEPTH {
            return Err(format!(
                "groups of columns nest deeper than {MAX_DEPTH} levels at element {number} of its schema"
            ));
        }
    }
    Ok(&start[..start.len() - thrift.rest.len()])
}

/// Types of Thrift's compact protocol. Types 1 and 2 are booleans, which have no further bytes.
const FLAGS: [u8; 2] = [1, 2];
const BYTE: u8 = 3;
const INT16: u8 = 4;
const INT32: u8 = 5;
const INT64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

impl<'a> Compact<'a> {
    /// Skips the version and returns the rest, which begins with the value of the schema.
    fn schema_start(&mut self) -> Option<&'a [u8]> {
        let mut id = 0;
        if self.field(&mut id)? != Some(INT32) || id != 1 {
            return None;
        }
        self.varint()?;
        (self.field(&mut id)? == Some(LIST) && id == 2).then_some(self.rest)
    }

    /// Returns the number of structs in a list.
    fn list_of_structs(&mut self) -> Option<u64> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            count => count.into(),
        };
        // Each struct has at least one byte.
        (head & 0xf == STRUCT && count <= self.rest.len() as u64).then_some(count)
    }

    /// Returns the type of the next field of a struct and adds its number to `id`; `None` at the end of the struct.
    fn field(&mut self, id: &mut u8) -> Option<Option<u8>> {
        let head = self.byte()?;
        if head & 0xf == 0 {
            return Some(None);
        }
        // Fields are in ascending order. Field numbers that are too far apart for the short form are not needed here.
        *id = id.checked_add(head >> 4).filter(|_| head >> 4 != 0)?;
        Some(Some(head & 0xf))
    }

    fn scalar(&mut self, kind: u8) -> Option<()> {
        match kind {
            kind if FLAGS.contains(&kind) => Some(()),
            BYTE => self.skip_bytes(1),
            INT16 | INT32 | INT64 => self.varint().map(drop),
            DOUBLE => self.skip_bytes(8),
            BINARY => {
                let len = self.varint()?;
                self.skip_bytes(len)
            }
            _ => None,
        }
    }

    /// Skips a schema element and returns the number of its members.
    fn element(&mut self) -> Option<u64> {
        let (mut id, mut members) = (0, 0);
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (5, INT32) => {
                    // Zigzag encoding: negative numbers are odd.
                    members = self.varint().filter(|zigzag| zigzag & 1 == 0)? / 2;
                }
                (1..=3 | 6..=9, INT32) | (4, BINARY) => self.scalar(kind)?,
                (10, STRUCT) => self.logical_type()?,
                (..=10, _) => return None,
                _ => self.scalar(kind)?,
            }
        }
        Some(members)
    }

    /// Skips a logical type: a union of structs, some of which have parameters.
    fn logical_type(&mut self) -> Option<()> {
        let mut which = 0;
        while let Some(kind) = self.field(&mut which)? {
            let mut id = 0;
            if kind != STRUCT {
                return None;
            }
            while let Some(kind) = self.field(&mut id)? {
                let is_flag = FLAGS.contains(&kind);
                match (which, id) {
                    // Precision and scale of a decimal; the algorithm of a geography.
                    (5, 1 | 2) | (18, 2) if kind == INT32 => self.scalar(kind)?,
                    // UTC flag and unit of a time or timestamp; signedness of an integer.
                    (7 | 8, 1) | (10, 2) if is_flag => {}
                    (7 | 8, 2) if kind == STRUCT => self.unit()?,
                    // The bit width of an integer; the version of a variant.
                    (10 | 16, 1) if kind == BYTE => self.scalar(kind)?,
                    // The coordinate reference system.
                    (17 | 18, 1) if kind == BINARY => self.scalar(kind)?,
                    // Types of a later version of Parquet.
                    (20.., _) => self.scalar(kind)?,
                    _ => return None,
                }
            }
        }
        Some(())
    }

    /// Skips the unit of a time: a union of empty structs.
    fn unit(&mut self) -> Option<()> {
        let (mut which, mut none) = (0, 0);
        while let Some(kind) = self.field(&mut which)? {
            if kind != STRUCT || self.field(&mut none)?.is_some() {
                return None;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the end of a file whose schema has `levels` nested groups and one column.
    fn nested(levels: usize, members: u8) -> Bytes {
        let count = levels as u32 + 1;
        let mut list = vec![0xfc];
        list.extend([
            0x80 | (count & 0x7f) as u8,
            0x80 | (count >> 7 & 0x7f) as u8,
        ]);
        list.push((count >> 14) as u8);
        for _ in 0..levels {
            // Required, name "g", this many members.
            list.extend([0x35, 0x00, 0x18, 0x01, b'g', 0x15, 2 * members, 0x00]);
        }
        // A column of 32-bit integers: required, name "c".
        list.extend([0x15, 0x02, 0x25, 0x00, 0x18, 0x01, b'c', 0x00]);
        only(&list)
    }

    #[test]
    fn nested_groups_are_bounded() {
        let read = |levels| read(&nested(levels, 1));
        let metadata = read(MAX_DEPTH).unwrap();
        assert_eq!(metadata.file_metadata().schema_descr().num_columns(), 1);
        for levels in [MAX_DEPTH + 1, 100_000] {
            let error = read(levels).unwrap_err().to_string();
            assert!(error.contains("nest deeper than 64 levels"), "{error}");
        }
    }

    #[test]
    fn groups_cannot_claim_more_members_than_follow() {
        let error = read(&nested(2, 63)).unwrap_err().to_string();
        assert!(
            error.contains("element 0 of its schema is damaged"),
            "{error}"
        );
    }

    #[test]
    fn wrong_field_types_cannot_hide_groups() {
        // The type of the name field says integer: the decoder would read more elements than were counted.
        let list = [0x1c, 0x35, 0x00, 0x15, 0x01, 0x00];
        let error = read(&only(&list)).unwrap_err().to_string();
        assert!(
            error.contains("element 0 of its schema is damaged"),
            "{error}"
        );
    }
}
