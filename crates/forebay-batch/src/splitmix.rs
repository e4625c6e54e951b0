//! The arithmetic of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).

/// 2^64 divided by the golden ratio: the increment.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer (Stafford's variant 13): a bijection of 64 bits in which each input bit changes half of the output bits
/// on average.
#[must_use]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
