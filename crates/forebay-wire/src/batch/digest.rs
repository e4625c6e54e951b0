//! Which samples were delivered, at which place of the epoch, in 64 bits.
//!
//! A sample `s` at global position `p` of an epoch counts as
//!
//! ```text
//! value(p, s) = mix(mix(p + 0x9e3779b97f4a7c15) + s)
//! mix(z):  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
//!          z = (z ^ (z >> 27)) * 0x94d049bb133111eb
//!          z ^ (z >> 31)
//! ```
//!
//! with all arithmetic modulo 2^64 (`mix` is the finaliser of SplitMix64). The
//! digest of a batch is the sum of the values of its samples, padding and failed ones left out;
//! the digest of an epoch is the sum of the digests of its batches, and the sum
//! over all ranks is the digest of the whole epoch.
//!
//! A sum, because then the digest of an epoch depends neither on the number of
//! ranks nor on the batch size nor on where a run was interrupted, and yet a
//! sample that is missing, doubled or at another position changes it. It finds
//! mistakes and damage; it is no proof against somebody who forges samples.

use super::FLAG_SAMPLE;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What one sample at one position of the epoch adds to a digest.
#[must_use]
pub const fn value(position: u64, sample: u64) -> u64 {
    mix(mix(position.wrapping_add(GOLDEN)).wrapping_add(sample))
}

/// Digest of a batch of rank `rank` of `world_size`, whose global batch begins
/// at `position`: its sample `i` is at position `position + rank + i * world_size`.
///
/// Samples whose flag is not [`FLAG_SAMPLE`] do not count; a sample
/// without a flag does.
#[must_use]
pub fn batch(position: u64, rank: u64, world_size: u64, samples: &[u64], flags: &[u8]) -> u64 {
    let mut at = position.wrapping_add(rank);
    let mut sum = 0u64;
    for (i, &sample) in samples.iter().enumerate() {
        if flags.get(i).is_none_or(|&flag| flag == FLAG_SAMPLE) {
            sum = fold(sum, value(at, sample));
        }
        at = at.wrapping_add(world_size);
    }
    sum
}

/// The digest of two parts of an epoch together. Starts from 0; order does not matter.
#[must_use]
pub const fn fold(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first is the published first output of SplitMix64 for seed 0; the
    /// others were computed in Python from the formula above.
    #[test]
    fn known_values() {
        assert_eq!(mix(GOLDEN), 0xe220_a839_7b1d_cdaf);
        assert_eq!(value(0, 0), 0x4821_8226_ff3c_d4bf);
        assert_eq!(value(7, 123_456_789), 0xd8bb_20cc_8e9c_ae50);
        assert_eq!(
            batch(0, 0, 1, &[3, 1, 2], &[0, 0, 0]),
            0x0d30_712d_0c19_c362
        );
        assert_eq!(batch(0, 0, 1, &[], &[]), 0);
    }

    #[test]
    fn an_epoch_has_one_digest_for_any_world_and_any_batch_size() {
        let order: Vec<u64> = (0..96).map(|p| p * 37 % 96).collect();
        let whole = batch(0, 0, 1, &order, &[0; 96]);
        for (world, size) in [(1, 8), (2, 4), (4, 12), (8, 3), (3, 32)] {
            let global = world * size;
            let mut sum = 0;
            for position in (0..96).step_by(global) {
                for rank in 0..world {
                    let samples: Vec<u64> = (0..size)
                        .map(|i| order[position + rank + i * world])
                        .collect();
                    let part = batch(position as u64, rank as u64, world as u64, &samples, &[]);
                    sum = fold(sum, part);
                }
            }
            assert_eq!(sum, whole, "{world} ranks, batches of {size}");
        }
    }

    #[test]
    fn order_and_repetition_show_and_padding_does_not() {
        let whole = batch(0, 0, 1, &[5, 6, 7], &[0, 0, 0]);
        assert_ne!(whole, batch(0, 0, 1, &[6, 5, 7], &[0, 0, 0]));
        assert_ne!(whole, batch(0, 0, 1, &[5, 6, 7, 7], &[0, 0, 0, 0]));
        assert_ne!(whole, batch(3, 0, 1, &[5, 6, 7], &[0, 0, 0]));
        assert_eq!(whole, batch(0, 0, 1, &[5, 6, 7, 5], &[0, 0, 0, 1]));
    }
}
