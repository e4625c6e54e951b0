//! The order of a shuffled split.
//!
//! The order is part of the output of a pack, so it is implemented here instead of in a library: Fisher-Yates with numbers
//! from xoshiro256** (Blackman and Vigna, 2018), whose initial state is the BLAKE3 hash of seed and split.

/// Returns a permutation of `0..count`, the same on every machine and in every version.
pub(super) fn order(count: u32, seed: u64, split: &str) -> Vec<u32> {
    let mut random = Random::new(seed, split);
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..order.len()).rev() {
        // last + 1 <= u32::MAX, so the bound fits.
        let other = random.below(last as u32 + 1);
        order.swap(last, other as usize);
    }
    order
}

struct Random([u64; 4]);

impl Random {
    fn new(seed: u64, split: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(b"forebay pack shuffle 1\0")
            .update(&seed.to_le_bytes())
            .update(split.as_bytes());
        let hash = hasher.finalize();
        let mut state = [0; 4];
        for (word, bytes) in state.iter_mut().zip(hash.as_bytes().chunks_exact(8)) {
            *word = bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        Self(state)
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a uniform number below `bound`: the high bits of a product, with biased draws rejected (Lemire, 2019).
    fn below(&mut self, bound: u32) -> u32 {
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = (self.next() >> 32) * u64::from(bound);
            if product as u32 >= threshold {
                return (product >> 32) as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_of_xoshiro() {
        // Values from the reference implementation with the state 1, 2, 3, 4.
        let mut random = Random([1, 2, 3, 4]);
        let first: Vec<_> = (0..4).map(|_| random.next()).collect();
        assert_eq!(first, [11520, 0, 1509978240, 1215971899390074240]);
    }

    #[test]
    fn every_number_once_and_seeds_differ() {
        for count in [0, 1, 2, 7, 1000] {
            let mut sorted = order(count, 3, "train");
            sorted.sort();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
        }
        assert_ne!(order(100, 0, "train"), order(100, 1, "train"));
        assert_ne!(order(100, 0, "train"), order(100, 0, "other"));
    }

    #[test]
    fn the_order_never_changes() {
        assert_eq!(order(10, 0, "train"), [2, 9, 7, 1, 0, 5, 6, 4, 3, 8]);
    }
}
