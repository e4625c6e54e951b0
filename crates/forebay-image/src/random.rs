//! Random numbers as a pure function of (seed, epoch, sample, occurrence, purpose, index of the
//! draw).
//!
//! The definition is part of the project's contract: a run repeated years later, on another
//! machine, thread or server, must draw the same crops. All arithmetic is modulo 2^64:
//!
//! ```text
//! mix(z)  = z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^ (z >> 31)
//! G       = 0x9e3779b97f4a7c15
//! key     = mix(mix(mix(mix(seed + G) ^ epoch + G) ^ sample + G) ^ purpose + G)     (^ binds first)
//! key     = mix((key ^ occurrence) + G)                where the occurrence is not 0
//! draw(i) = mix(key + (i + 1) * G)                     i = 0, 1, 2, ...
//! unit    = (draw >> 11) * 2^-53                       in [0, 1)
//! below n = ((draw >> 32) * n) >> 32                   in 0..n, n < 2^32
//! ```
//!
//! `purpose` is the number of the decision ([`Purpose`]) plus 2^32 times the number of preceding
//! decisions of that kind in a list of transforms.
//!
//! `mix` and the counter are SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
//! generators", OOPSLA 2014). Each random decision of a transform has its own *purpose*, so adding
//! one never changes the draws of another. Logarithm and exponential are computed here with
//! additions and multiplications only, because those of C libraries differ in the last bit.

use forebay_batch::splitmix::{GOLDEN, mix};

/// Identifies a sample of an epoch of a run: everything that random decisions about a sample depend
/// on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleSeed {
    /// Seed of the run.
    pub seed: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Index of the sample in its dataset.
    pub sample: u64,
    /// Repetition of the sample within the epoch, from 0.
    pub occurrence: u64,
}

/// A kind of random decision. The number is part of the contract: kinds are numbered from 1, and no
/// number is ever reused. Those of ops on pixels are in the table of `ops`, where a test checks that
/// they are unique.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Purpose(pub(crate) u64);

impl Purpose {
    /// The region of a random crop.
    pub(crate) const CROP: Self = Self(1);
    /// A horizontal flip.
    pub(crate) const FLIP: Self = Self(2);
    /// The rectangle to erase.
    pub(crate) const ERASE: Self = Self(8);
    /// The noise in an erased rectangle.
    pub(crate) const NOISE: Self = Self(9);
    /// The mixing of a batch; the sample is the position of the global batch.
    pub(crate) const MIX: Self = Self(10);
}

/// The draws for one purpose of one sample.
#[derive(Debug, Clone)]
pub(crate) struct Draws {
    state: u64,
}

impl Draws {
    pub(crate) fn new(seed: SampleSeed, purpose: Purpose) -> Self {
        Self::nth(seed, purpose, 0)
    }

    /// Returns the draws of an op in a list with `before` preceding ops of the same purpose.
    pub(crate) fn nth(seed: SampleSeed, purpose: Purpose, before: u64) -> Self {
        let purpose = purpose.0 + (before << 32);
        let mut key = mix(seed.seed.wrapping_add(GOLDEN));
        for part in [seed.epoch, seed.sample, purpose] {
            key = mix((key ^ part).wrapping_add(GOLDEN));
        }
        if seed.occurrence != 0 {
            key = mix((key ^ seed.occurrence).wrapping_add(GOLDEN));
        }
        Self { state: key }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform in `[low, high)`.
    pub(crate) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in `0..n`. The bias is below n / 2^32.
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(n)) >> 32) as u32
    }
}

/// Sine and cosine of an angle of a few turns, in radians. The results have the same bits on every
/// platform and are correctly rounded: they are computed with twice the digits, because the results
/// for 45 degrees depend on the last one.
pub(crate) fn sin_cos(x: f64) -> (f64, f64) {
    use std::f64::consts::FRAC_PI_2;
    const REST: f64 = 6.123_233_995_736_766e-17; // the rounding error of the constant
    let quarter = (x / FRAC_PI_2).round();
    let whole = quarter * FRAC_PI_2;
    let lost = quarter.mul_add(FRAC_PI_2, -whole);
    let r = Twice::sum(x - whole, -lost - quarter * REST);
    let r2 = r.times(r);
    let one = Twice::sum(1.0, 0.0);
    let (mut sin, mut cos) = (one, one);
    let mut n = 28.0; // |r| < 0.79: the terms after this one are below 2^-110
    while n > 0.0 {
        sin = one.minus(sin.times(r2).over(n * (n + 1.0)));
        cos = one.minus(cos.times(r2).over(n * (n - 1.0)));
        n -= 2.0;
    }
    let (sin, cos) = (sin.times(r).high, cos.high);
    match quarter.rem_euclid(4.0) as u32 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// An unevaluated sum of two numbers, the second smaller than the last bit of the first.
#[derive(Clone, Copy)]
struct Twice {
    high: f64,
    low: f64,
}

impl Twice {
    /// Adds any two numbers exactly (Knuth's two-sum).
    fn sum(a: f64, b: f64) -> Self {
        let high = a + b;
        let back = high - a;
        let low = (a - (high - back)) + (b - back);
        Self { high, low }
    }

    fn minus(self, other: Self) -> Self {
        let sum = Self::sum(self.high, -other.high);
        Self::sum(sum.high, sum.low + (self.low - other.low))
    }

    fn times(self, other: Self) -> Self {
        let high = self.high * other.high;
        let rest = self.high.mul_add(other.high, -high);
        Self::sum(high, rest + (self.high * other.low + self.low * other.high))
    }

    fn over(self, divisor: f64) -> Self {
        let high = self.high / divisor;
        let rest = (-high).mul_add(divisor, self.high) + self.low;
        Self::sum(high, rest / divisor)
    }
}

/// Natural logarithm of a positive, finite, normal number; the same bits on every platform.
pub(crate) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh((m - 1) / (m + 1)).
    let bits = x.to_bits();
    let mut e = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    let t = (m - 1.0) / (m + 1.0);
    let t2 = t * t;
    let mut sum = 0.0;
    let mut n = 27.0; // t^2 < 0.0295: the term after this one is below 2^-70
    while n > 0.0 {
        sum = sum * t2 + 1.0 / n;
        n -= 2.0;
    }
    e as f64 * std::f64::consts::LN_2 + 2.0 * t * sum
}

/// Exponential of a number in -700..700; the same bits on every platform.
pub(crate) fn exp(x: f64) -> f64 {
    debug_assert!(x.abs() < 700.0);
    let k = (x / std::f64::consts::LN_2).round();
    let r = x - k * std::f64::consts::LN_2;
    let mut sum = 1.0;
    let mut n = 18.0; // |r| < 0.347: the term after this one is below 2^-80
    while n > 0.0 {
        sum = 1.0 + sum * r / n;
        n -= 1.0;
    }
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_as_documented() {
        // Computed by an independent implementation of the definition above, in Python.
        let mut draws = Draws::new(
            SampleSeed {
                seed: 1,
                epoch: 2,
                sample: 3,
                occurrence: 0,
            },
            Purpose::CROP,
        );
        let got: Vec<u64> = (0..3).map(|_| draws.next_u64()).collect();
        assert_eq!(
            got,
            [0xc51feb729db69d8f, 0xddd15123cf1272b5, 0x6c17dfd27f160cfc]
        );
    }

    #[test]
    fn sine_and_cosine_are_accurate() {
        for i in -7000..7000 {
            let x = f64::from(i) * 0.001;
            let (sin, cos) = sin_cos(x);
            assert!((sin - x.sin()).abs() < 1e-15, "{x}");
            assert!((cos - x.cos()).abs() < 1e-15, "{x}");
        }
        // The correctly rounded sine and cosine of these numbers, computed with 60 digits.
        let high = std::f64::consts::FRAC_1_SQRT_2;
        let low = high.next_down();
        assert_eq!(sin_cos(45f64.to_radians()), (low, high));
        assert_eq!(sin_cos(135f64.to_radians()), (high, -low));
        assert_eq!(sin_cos(90f64.to_radians()).0, 1.0);
    }

    #[test]
    fn ln_and_exp_are_accurate() {
        for i in 1..2000 {
            let x = i as f64 * 0.0137;
            assert!(
                (ln(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0),
                "{x}"
            );
            let y = (i - 1000) as f64 * 0.01;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-14, "{y}");
        }
    }
}
