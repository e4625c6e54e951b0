//! The portable loops, compiled for processors with AVX2: shifts by a register and bit fields are then single
//! instructions that leave the flags alone.

use super::entropy::{self, Reader, Slot, Tables};

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(super) fn decode<const KEEP: bool>(
    reader: Reader<'_>,
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: &mut [i16],
) -> bool {
    entropy::decode::<KEEP>(reader, tables, slots, coefficients)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(super) fn walk(
    reader: Reader<'_>,
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: &mut [i16],
) -> bool {
    entropy::walk(reader, tables, slots, coefficients)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(super) fn decode_two<const KEEP: bool>(
    first: Reader<'_>,
    second: Reader<'_>,
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: [&mut [i16]; 2],
) -> bool {
    entropy::decode_two::<KEEP>(first, second, tables, slots, coefficients)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(super) fn walk_two(
    first: Reader<'_>,
    second: Reader<'_>,
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: &mut [i16],
) -> bool {
    entropy::walk_two(first, second, tables, slots, coefficients)
}
