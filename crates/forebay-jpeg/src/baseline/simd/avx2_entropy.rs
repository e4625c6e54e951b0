//! The portable loops, compiled for processors with AVX2: shifts by a register and bit-field
//! extraction are then single instructions that do not change the flags.

use super::entropy::{self, Reader, Slot, Tables, Way};
use super::lane::{self, Lane};

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(super) fn read<W: Way>(
    reader: Reader<'_>,
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: &mut [i16],
) -> bool {
    entropy::read::<W>(reader, tables, slots, coefficients)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(super) fn read_two<W: Way>(
    readers: [Reader<'_>; 2],
    tables: &Tables<'_>,
    slots: &[Slot],
    coefficients: [&mut [i16]; 2],
) -> bool {
    entropy::read_two::<W>(readers, tables, slots, coefficients)
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(super) fn walk(lane: &mut Lane<'_>) {
    lane::walk(lane);
}

#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
pub(super) fn walk_two(first: &mut Lane<'_>, second: &mut Lane<'_>) {
    lane::walk_two(first, second);
}
