//! A keyed permutation of `0..n` that needs no memory, and its keys.
//!
//! This is the only source of randomness of an epoch's order. The arithmetic below is a contract:
//! runs are resumed and compared by position, so the same key must always give the same
//! permutation. Tests pin it.
//!
//! It is a Feistel network over a domain of `a * b >= n` numbers (Black and Rogaway, "Ciphers with
//! Arbitrary Finite Domains", 2002): `x = l * b + r`, and rounds that add a pseudorandom function
//! of one half to the other half, modulo `a` or `b`. Each round is invertible, so the whole is a
//! bijection. With `a = ceil(sqrt(n))` and `b = ceil(n / a)`, fewer than `a` numbers of the domain
//! are not below `n`; if the result is one of them, the network is applied again (cycle walking).

use crate::splitmix::{GOLDEN, mix};

/// Maps 64 uniform bits to `0..n` by multiplication: `floor(bits * n / 2^64)`.
const fn reduce(bits: u64, n: u64) -> u64 {
    ((bits as u128 * n as u128) >> 64) as u64
}

/// The key of a permutation, in 64 bits.
///
/// `root(seed) = child(GOLDEN, seed)` and `child(k, v) = mix(k ^ mix(v + GOLDEN))`: the order of
/// the children matters, and each one is a different key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// Returns the key of a seed.
    #[must_use]
    pub const fn root(seed: u64) -> Key {
        Key(GOLDEN).child(seed)
    }

    /// Returns the child with a number.
    #[must_use]
    pub const fn child(self, value: u64) -> Key {
        Key(mix(self.0 ^ mix(value.wrapping_add(GOLDEN))))
    }

    /// Returns the child for a domain.
    #[must_use]
    pub const fn domain(self, domain: Domain) -> Key {
        self.child(domain as u64)
    }

    /// Returns the key as a number.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Returns a number in `0..n` that depends on the key alone.
    #[must_use]
    pub const fn below(self, n: u64) -> u64 {
        reduce(self.0, n)
    }
}

/// Purposes of random numbers. Each domain is a child of the epoch's key, which makes the numbers
/// of different shuffles independent. The values are part of every order and must not change.
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
pub enum Domain {
    /// The record at which blocks begin.
    Rotation = 1,
    /// The order of blocks.
    Blocks = 2,
    /// The order within each window of a virtual rank.
    Windows = 3,
    /// The permutation of all samples.
    Full = 4,
    /// Draws with replacement.
    Draws = 5,
    /// Portions of a mix: a child of the seed's key, since portions continue from epoch to epoch.
    Portions = 6,
}

/// Up to this size the number of rounds is high enough that all `n!` orders are equally likely as
/// far as a test can tell (measured up to `n = 6`: 16 rounds are too few, 24 enough).
const SMALL: u64 = 64;
const ROUNDS_SMALL: u64 = 32;
const ROUNDS: u64 = 12;

/// A permutation of `0..n`, `n >= 1`.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    n: u64,
    a: u64,
    b: u64,
    rounds: u64,
    key: u64,
}

impl Permutation {
    /// Creates the permutation of `0..n` for `key`. An `n` of 0 counts as 1.
    #[must_use]
    pub fn new(n: u64, key: Key) -> Self {
        let n = n.max(1);
        let floor = n.isqrt();
        let a = floor + u64::from(floor * floor < n);
        Permutation {
            n,
            a,
            b: n.div_ceil(a),
            rounds: if n <= SMALL { ROUNDS_SMALL } else { ROUNDS },
            key: key.0,
        }
    }

    /// Returns the image of `x < n`.
    #[must_use]
    pub fn at(&self, x: u64) -> u64 {
        debug_assert!(x < self.n);
        if self.n == 1 {
            return 0;
        }
        let mut x = x;
        loop {
            x = self.pass(x);
            if x < self.n {
                return x;
            }
        }
    }

    /// One pass of the network over its whole domain `0..a * b`.
    ///
    /// Round `i` of `rounds` adds `reduce(mix(key + (i + 1) * GOLDEN ^ other), size)`;
    /// even rounds change `l`, odd rounds change `r`.
    fn pass(&self, x: u64) -> u64 {
        let (mut l, mut r) = (x / self.b, x % self.b);
        let mut key = self.key;
        for _ in 0..self.rounds / 2 {
            key = key.wrapping_add(GOLDEN);
            l = add(l, reduce(mix(key ^ r), self.a), self.a);
            key = key.wrapping_add(GOLDEN);
            r = add(r, reduce(mix(key ^ l), self.b), self.b);
        }
        l * self.b + r
    }
}

/// Returns `(x + y) mod n` for `x, y < n`.
const fn add(x: u64, y: u64, n: u64) -> u64 {
    let sum = x + y;
    if sum >= n { sum - n } else { sum }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn order(n: u64, key: Key) -> Vec<u64> {
        let permutation = Permutation::new(n, key);
        (0..n).map(|x| permutation.at(x)).collect()
    }

    /// The published first output of SplitMix64 for seed 0.
    #[test]
    fn mix_is_the_published_finaliser() {
        assert_eq!(mix(GOLDEN), 0xe220_a839_7b1d_cdaf);
    }

    /// The permutation is a contract: changing these numbers breaks every resumed run. They were also computed by
    /// `tools/golden/epoch_order.py`.
    #[test]
    fn golden_orders() {
        let key = Key::root(7).child(3);
        assert_eq!(key.0, GOLDEN_KEY);
        assert_eq!(order(10, key), GOLDEN_10);
        let million = Permutation::new(1_000_000, key);
        let found: Vec<u64> = (0..6).map(|x| million.at(x)).collect();
        assert_eq!(found, GOLDEN_MILLION);
        assert_eq!(million.at(999_999), GOLDEN_MILLION_LAST);
    }
    const GOLDEN_KEY: u64 = 0x05ff_04c0_cdda_9090;
    const GOLDEN_10: [u64; 10] = [0, 1, 3, 6, 2, 8, 4, 7, 9, 5];
    const GOLDEN_MILLION: [u64; 6] = [195874, 244603, 239579, 219449, 663068, 101940];
    const GOLDEN_MILLION_LAST: u64 = 82876;

    proptest! {
        #[test]
        fn each_number_once(n in 1u64..3000, seed: u64) {
            let mut all = order(n, Key::root(seed));
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(0..n));
        }

        #[test]
        fn large_domains_stay_inside(n in 1u64..1 << 56, seed: u64, x: u64) {
            let permutation = Permutation::new(n, Key::root(seed));
            prop_assert!(permutation.at(x % n) < n);
        }
    }

    /// Over many keys all `n!` orders of a small domain are equally frequent.
    #[test]
    fn all_orders_of_small_domains_are_equally_likely() {
        for n in 2..=5u64 {
            let orders: u64 = (1..=n).product();
            let trials = orders * 400;
            let mut seen: HashMap<Vec<u64>, u64> = HashMap::new();
            for seed in 0..trials {
                *seen.entry(order(n, Key::root(seed))).or_default() += 1;
            }
            assert_eq!(seen.len() as u64, orders, "n = {n}");
            assert_plausible(seen.into_values(), 400.0, &format!("n = {n}"));
        }
    }

    /// Over many keys each number is equally frequent at each position, and so is each difference
    /// between neighbors.
    #[test]
    fn places_and_neighbours_are_uniform() {
        for n in [6u64, 7, 12, 37, 64, 65, 100, 128] {
            let trials = 4000;
            let mut place = vec![0u64; (n * n) as usize];
            let mut step = vec![0u64; (n - 1) as usize];
            for seed in 0..trials {
                let found = order(n, Key::root(seed).child(n));
                for (x, &y) in found.iter().enumerate() {
                    place[x * n as usize + y as usize] += 1;
                }
                step[((found[n as usize / 2] + n - found[n as usize / 2 - 1]) % n - 1) as usize] +=
                    1;
            }
            assert_plausible(place, trials as f64 / n as f64, &format!("places, n = {n}"));
            let expected = trials as f64 / (n - 1) as f64;
            assert_plausible(step, expected, &format!("neighbours, n = {n}"));
        }
    }

    /// Changing one bit of the seed or of the epoch moves all but about one number.
    #[test]
    fn each_bit_of_seed_and_epoch_counts() {
        let n = 4096u64;
        let base = order(n, Key::root(1).child(0));
        for bit in 0..64 {
            for key in [
                Key::root(1 ^ (1 << bit)).child(0),
                Key::root(1).child(1 << bit),
            ] {
                let other = order(n, key);
                let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
                assert!(same < 10, "bit {bit}: {same} of {n} numbers stayed");
            }
        }
        assert_ne!(Key::root(1).child(2), Key::root(2).child(1));
    }

    /// Chi-squared test against a uniform distribution: within six standard deviations.
    fn assert_plausible(counts: impl IntoIterator<Item = u64>, expected: f64, what: &str) {
        let counts: Vec<u64> = counts.into_iter().collect();
        let chi: f64 = counts
            .iter()
            .map(|&count| (count as f64 - expected).powi(2) / expected)
            .sum();
        let freedom = (counts.len() - 1) as f64;
        let limit = freedom + 6.0 * (2.0 * freedom).sqrt() + 6.0;
        assert!(
            chi < limit,
            "{what}: chi-squared {chi:.1}, limit {limit:.1}"
        );
    }
}
