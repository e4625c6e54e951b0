//! Little-endian numbers of columns.

use forebay_shard::schema::NumberType;

/// Returns whether the type is an integer type whose values fit into an `i64`.
pub(super) fn is_integer(number: NumberType) -> bool {
    is_signed(number)
        || matches!(
            number,
            NumberType::Bool | NumberType::Uint8 | NumberType::Uint16 | NumberType::Uint32
        )
}

fn is_signed(number: NumberType) -> bool {
    matches!(
        number,
        NumberType::Int8 | NumberType::Int16 | NumberType::Int32 | NumberType::Int64
    )
}

/// Returns the value of an [integer](is_integer).
pub(super) fn integer(number: NumberType, bytes: &[u8]) -> i64 {
    let is_negative = is_signed(number) && bytes.last().is_some_and(|last| last & 0x80 != 0);
    let mut whole = [if is_negative { 0xff } else { 0 }; 8];
    whole
        .iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    i64::from_le_bytes(whole)
}

pub(super) fn int64s(bytes: &[u8]) -> Vec<i64> {
    let words = bytes.chunks_exact(8);
    words
        .map(|word| i64::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect()
}

pub(super) fn float32s(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| f32::from_le_bytes(word.try_into().unwrap_or_default()))
        .collect()
}
