//! Pseudorandom numbers that are the same in each run, for offsets, samples and contents.

/// Marsaglia's 64-bit xorshift; not for secrets.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Starts a sequence that depends on the seed.
    pub fn new(seed: u64) -> Self {
        // Zero is the only state that the generator never leaves.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d).warm()
    }

    fn warm(mut self) -> Self {
        if self.0 == 0 {
            self.0 = 0x9e37_79b9_7f4a_7c15;
        }
        // Sequences of similar seeds start with similar numbers, which are skipped.
        for _ in 0..8 {
            self.next_u64();
        }
        self
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number from 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills a buffer with incompressible bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for eight in bytes.chunks_mut(8) {
            let number = self.next_u64().to_le_bytes();
            eight.copy_from_slice(&number[..eight.len()]);
        }
    }

    /// Shuffles the items (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_differ_by_seed_and_cover_their_range() {
        let take = |seed| {
            let mut random = Random::new(seed);
            (0..1000).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
        for value in 0..10 {
            let count = take(0).iter().filter(|&&v| v == value).count();
            assert!((60..150).contains(&count), "{value}: {count}");
        }
        assert_eq!(Random::new(5).below(0), 0);
    }

    #[test]
    fn a_shuffle_keeps_all_items() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::new(3).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
