//! MixUp and CutMix: mix samples of a finished batch with each other.
//!
//! As in torchvision, each sample's partner is the preceding one in the batch; the partner of the
//! first sample is the last one. A batch has one weight: `lam` for the sample itself, `1 - lam` for
//! its partner. Random decisions are a pure function of seed, epoch and position of the global
//! batch, so all ranks make the same ones; partners are in the same rank's batch.

use crate::error::{ImageError, Result};
use crate::ops::Size;
use crate::output::{Dtype, Layout, Output};
use crate::random::{Draws, Purpose, SampleSeed, exp, ln};

/// Weights are multiples of 1 / `UNIT`, so that pixels and labels use exactly the same weight in every data type.
/// `UNIT` is a signed integer of 16 bits; SIMD multiplies eight or more of these at a time.
const UNIT: i16 = 1 << 14;
/// Maximum number of choices of a batch transform.
const MAX_CHOICES: usize = 16;

/// A way to mix the samples of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Mixing {
    /// Weighted sums of two samples. Zhang, Cisse, Dauphin, Lopez-Paz: "mixup: Beyond Empirical Risk Minimization", 2017.
    Mixup {
        /// The weight has the distribution Beta(alpha, alpha).
        alpha: f64,
    },
    /// Pastes a rectangle of one sample into another. Yun et al.: "CutMix: Regularization Strategy
    /// to Train Strong Classifiers with Localizable Features", 2019.
    CutMix {
        /// The weight of the sample has the distribution Beta(alpha, alpha), before the rectangle
        /// is cut at the border.
        alpha: f64,
    },
    /// Leaves the batch unchanged.
    Nothing,
}

/// Several ways to mix, one of which is drawn for each batch.
///
/// ```
/// use forebay_image::{BatchTransform, Mixing};
///
/// let both = [(Mixing::Mixup { alpha: 0.2 }, 0.5), (Mixing::CutMix { alpha: 1.0 }, 0.5)];
/// assert!(BatchTransform::new(both.to_vec()).is_ok());
/// assert!(BatchTransform::new(Vec::new()).is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BatchTransform {
    choices: Vec<(Mixing, f64)>,
}

/// The random decision of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drawn {
    Nothing,
    /// Weight of the sample itself, in multiples of 1/[`UNIT`].
    Blend(i16),
    /// Half-open ranges of rows and columns.
    Paste {
        rows: (usize, usize),
        columns: (usize, usize),
    },
}

/// How the samples of one batch are mixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchMix {
    drawn: Drawn,
    height: usize,
    width: usize,
}

impl BatchTransform {
    /// Creates a transform from choices with their weights, which need not add up to 1.
    ///
    /// # Errors
    /// [`ImageError::Transform`]: no choices or too many, an invalid `alpha` or weight.
    pub fn new(choices: Vec<(Mixing, f64)>) -> Result<Self> {
        let invalid = |what| Err(ImageError::Transform { what });
        if !(1..=MAX_CHOICES).contains(&choices.len()) {
            return invalid(format!(
                "{} ways to mix a batch, 1 to {MAX_CHOICES} are possible",
                choices.len()
            ));
        }
        for (mixing, weight) in &choices {
            if !(0.0..=1e9).contains(weight) {
                return invalid(format!(
                    "the weight of a choice is {weight}, expected 0 or more"
                ));
            }
            if let Mixing::Mixup { alpha } | Mixing::CutMix { alpha } = mixing
                && !(1e-3..=1e3).contains(alpha)
            {
                return invalid(format!("alpha is {alpha}, expected 0.001 to 1000"));
            }
        }
        if choices.iter().all(|(_, weight)| *weight == 0.0) {
            return invalid("all choices have the weight 0".into());
        }
        Ok(Self { choices })
    }

    /// Returns the choices with their weights, as given.
    pub fn choices(&self) -> &[(Mixing, f64)] {
        &self.choices
    }

    /// Draws the random decision for the batch at `position` of an epoch, with samples of the given
    /// size; a pure function.
    pub fn draw(&self, seed: u64, epoch: u64, position: u64, (height, width): Size) -> BatchMix {
        let place = SampleSeed {
            seed,
            epoch,
            sample: position,
            occurrence: 0,
        };
        let draws = &mut Draws::new(place, Purpose::MIX);
        let sum: f64 = self.choices.iter().map(|(_, weight)| weight).sum();
        let mut left = draws.unit() * sum;
        // If rounding errors leave a remainder, the last choice with a positive weight is taken.
        let mut chosen = Mixing::Nothing;
        for &(mixing, weight) in self.choices.iter().filter(|(_, weight)| *weight > 0.0) {
            chosen = mixing;
            left -= weight;
            if left < 0.0 {
                break;
            }
        }
        let drawn = match chosen {
            Mixing::Mixup { alpha } => {
                let share = beta(alpha, draws) * f64::from(UNIT);
                Drawn::Blend(share.round_ties_even() as i16)
            }
            Mixing::CutMix { alpha } => {
                let lam = beta(alpha, draws);
                let part = 0.5 * (1.0 - lam).sqrt();
                let mut side = |length: u32| {
                    let middle = i64::from(draws.below(length));
                    let half = (part * f64::from(length)) as i64;
                    let end = (middle + half).min(length.into());
                    ((middle - half).max(0) as usize, end as usize)
                };
                let columns = side(width);
                let rows = side(height);
                Drawn::Paste { rows, columns }
            }
            Mixing::Nothing => Drawn::Nothing,
        };
        BatchMix {
            drawn,
            height: height as usize,
            width: width as usize,
        }
    }
}

/// Draws from Beta(alpha, alpha), as the ratio of one gamma variate to the sum of two.
fn beta(alpha: f64, draws: &mut Draws) -> f64 {
    let (a, b) = (ln_gamma_number(alpha, draws), ln_gamma_number(alpha, draws));
    1.0 / (1.0 + exp((b - a).clamp(-690.0, 690.0)))
}

/// Draws the logarithm of a Gamma(shape, 1) variate. Marsaglia, Tsang: "A simple method for
/// generating gamma variables", 2000. Logarithms avoid underflow for small shapes.
fn ln_gamma_number(shape: f64, draws: &mut Draws) -> f64 {
    // Shapes below 1 use a shape that is larger by 1, and a power of a uniform variate.
    let boost = if shape < 1.0 {
        ln(open_unit(draws)) / shape
    } else {
        0.0
    };
    let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(draws);
        let v = 1.0 + c * x;
        if v <= 0.0 {
            continue;
        }
        let ln_v = 3.0 * ln(v);
        let v = v * v * v;
        if ln(open_unit(draws)) < 0.5 * x * x + d - d * v + d * ln_v {
            return ln(d) + ln_v + boost;
        }
    }
}

/// Uniform in (0, 1).
fn open_unit(draws: &mut Draws) -> f64 {
    draws.unit() + 0.5 / (1u64 << 53) as f64
}

/// Draws from the standard normal distribution, by Marsaglia's polar method.
fn normal(draws: &mut Draws) -> f64 {
    loop {
        let (x, y) = (draws.uniform(-1.0, 1.0), draws.uniform(-1.0, 1.0));
        let square = x * x + y * y;
        if square < 1.0 && square > 1e-300 {
            return x * (-2.0 * ln(square) / square).sqrt();
        }
    }
}

impl BatchMix {
    /// Returns the weight of each sample itself, 1 if nothing is mixed; its partner has the rest.
    pub fn lam(&self) -> f32 {
        match self.drawn {
            Drawn::Nothing => 1.0,
            Drawn::Blend(share) => f32::from(share) / f32::from(UNIT),
            Drawn::Paste { rows, columns } => {
                let pasted = rows.1.saturating_sub(rows.0) * columns.1.saturating_sub(columns.0);
                (1.0 - pasted as f64 / (self.width * self.height) as f64) as f32
            }
        }
    }

    /// Returns the pairs `(sample, partner)` for `members`, which are indices of samples in their
    /// batch.
    pub fn partners(members: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
        let last = members.last().copied();
        let before = last.into_iter().chain(members.iter().copied());
        members.iter().copied().zip(before)
    }

    /// Mixes the samples of a batch. Only those in `members` (ascending indices) take part; padding
    /// does not.
    ///
    /// # Panics
    /// If a sample is not in `batch`, or `output` is not that of the batch.
    pub fn apply(&self, output: &Output, members: &[usize], batch: &mut [u8]) {
        if self.drawn == Drawn::Nothing || members.len() < 2 {
            return;
        }
        let bytes = self.width * self.height * 3 * output.dtype.bytes();
        // From the last sample to the first, so that partners are still unmixed. The first sample's
        // partner is the last one, so a copy of it is kept.
        let end = members[members.len() - 1];
        let kept = batch[end * bytes..][..bytes].to_vec();
        for pair in members.windows(2).rev() {
            let (before, rest) = batch.split_at_mut(pair[1] * bytes);
            self.mix(
                output,
                &mut rest[..bytes],
                &before[pair[0] * bytes..][..bytes],
            );
        }
        self.mix(output, &mut batch[members[0] * bytes..][..bytes], &kept);
    }

    fn mix(&self, output: &Output, sample: &mut [u8], partner: &[u8]) {
        match self.drawn {
            Drawn::Nothing => {}
            Drawn::Blend(share) => blend(output.dtype, share, sample, partner),
            Drawn::Paste { rows, columns } => {
                if rows.0 >= rows.1 || columns.0 >= columns.1 {
                    return;
                }
                let number = output.dtype.bytes();
                let (pixel, planes) = match output.layout {
                    Layout::Nhwc => (3 * number, 1),
                    Layout::Nchw => (number, 3),
                };
                let row = self.width * pixel;
                for plane in 0..planes {
                    for y in rows.0..rows.1 {
                        let start = (plane * self.height + y) * row;
                        let part = start + columns.0 * pixel..start + columns.1 * pixel;
                        sample[part.clone()].copy_from_slice(&partner[part]);
                    }
                }
            }
        }
    }
}

/// `sample * lam + partner * (1 - lam)`: bytes are rounded to the nearest, halves up; other types
/// are computed in binary32 and rounded to their type.
fn blend(dtype: Dtype, share: i16, sample: &mut [u8], partner: &[u8]) {
    let part = |share: i16| f32::from(share) / f32::from(UNIT);
    let (a, b) = (part(share), part(UNIT - share));
    match dtype {
        Dtype::Uint8 => {
            for (x, &y) in sample.iter_mut().zip(partner) {
                let sum = i32::from(*x) * i32::from(share) + i32::from(y) * i32::from(UNIT - share);
                *x = ((sum + i32::from(UNIT / 2)) >> UNIT.trailing_zeros()) as u8;
            }
        }
        Dtype::Float32 => {
            let (sample, _) = sample.as_chunks_mut::<4>();
            for (x, y) in sample.iter_mut().zip(partner.as_chunks::<4>().0) {
                *x = (f32::from_le_bytes(*x) * a + f32::from_le_bytes(*y) * b).to_le_bytes();
            }
        }
        Dtype::Float16 => blend_short(
            sample,
            partner,
            (a, b),
            |n| half::f16::from_bits(n).to_f32(),
            |v| half::f16::from_f32(v).to_bits(),
        ),
        Dtype::Bfloat16 => blend_short(
            sample,
            partner,
            (a, b),
            |n| half::bf16::from_bits(n).to_f32(),
            |v| half::bf16::from_f32(v).to_bits(),
        ),
    }
}

fn blend_short(
    sample: &mut [u8],
    partner: &[u8],
    (a, b): (f32, f32),
    wide: impl Fn(u16) -> f32,
    short: impl Fn(f32) -> u16,
) {
    let (sample, _) = sample.as_chunks_mut::<2>();
    for (x, y) in sample.iter_mut().zip(partner.as_chunks::<2>().0) {
        let (own, other) = (wide(u16::from_le_bytes(*x)), wide(u16::from_le_bytes(*y)));
        *x = short(own * a + other * b).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(mixing: Mixing, position: u64) -> BatchMix {
        BatchTransform::new(vec![(mixing, 1.0)])
            .unwrap()
            .draw(3, 0, position, (12, 20))
    }

    #[test]
    fn weights_have_the_beta_distribution() {
        for alpha in [0.05, 0.2, 1.0, 3.0] {
            let draws = &mut Draws::new(SampleSeed::default(), Purpose::MIX);
            let n = 20_000;
            let numbers: Vec<f64> = (0..n).map(|_| beta(alpha, draws)).collect();
            assert!(numbers.iter().all(|x| (0.0..=1.0).contains(x)));
            let mean = numbers.iter().sum::<f64>() / f64::from(n);
            let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
            // Mean and variance of Beta(a, a): 1/2 and 1 / (4 (2a + 1)).
            assert!((mean - 0.5).abs() < 0.015, "{alpha}: {mean}");
            let expected = 0.25 / (2.0 * alpha + 1.0);
            assert!(
                (variance / expected - 1.0).abs() < 0.05,
                "{alpha}: {variance}"
            );
        }
    }

    fn numbers(dtype: Dtype, count: usize) -> (Vec<u8>, Vec<f32>) {
        let values: Vec<f32> = (0..count * 12 * 20 * 3)
            .map(|i| (i * 31 % 256) as f32 - if dtype == Dtype::Uint8 { 0.0 } else { 99.5 })
            .collect();
        let bytes = values.iter().flat_map(|&v| match dtype {
            Dtype::Uint8 => vec![v as u8],
            Dtype::Float32 => v.to_le_bytes().to_vec(),
            Dtype::Float16 => half::f16::from_f32(v).to_le_bytes().to_vec(),
            Dtype::Bfloat16 => half::bf16::from_f32(v).to_le_bytes().to_vec(),
        });
        (bytes.collect(), values)
    }

    fn read(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
        let chunks = bytes.chunks_exact(dtype.bytes());
        let number = |b: &[u8]| match dtype {
            Dtype::Uint8 => f32::from(b[0]),
            Dtype::Float32 => f32::from_le_bytes(b.try_into().unwrap()),
            Dtype::Float16 => half::f16::from_le_bytes(b.try_into().unwrap()).to_f32(),
            Dtype::Bfloat16 => half::bf16::from_le_bytes(b.try_into().unwrap()).to_f32(),
        };
        chunks.map(number).collect()
    }

    #[test]
    fn mixup_is_a_weighted_sum_with_the_preceding_sample() {
        for (dtype, error) in [
            (Dtype::Uint8, 0.5),
            (Dtype::Float32, 1e-4),
            (Dtype::Float16, 0.1),
            (Dtype::Bfloat16, 1.5),
        ] {
            let output = Output {
                dtype,
                ..Output::default()
            };
            for position in 0..5 {
                let mix = mixed(Mixing::Mixup { alpha: 1.0 }, position);
                let (mut bytes, values) = numbers(dtype, 4);
                // The third sample is padding.
                mix.apply(&output, &[0, 1, 3], &mut bytes);
                let got = read(dtype, &bytes);
                let sample = |i: usize| i * 720..(i + 1) * 720;
                for (own, partner) in [(0, 3), (1, 0), (3, 1)] {
                    let pairs = values[sample(own)].iter().zip(&values[sample(partner)]);
                    for (got, (a, b)) in got[sample(own)].iter().zip(pairs) {
                        let expected = a * mix.lam() + b * (1.0 - mix.lam());
                        assert!((got - expected).abs() <= error, "{got} {expected}");
                    }
                }
                assert_eq!(got[sample(2)], read(dtype, &numbers(dtype, 4).0)[sample(2)]);
            }
        }
    }

    #[test]
    fn cutmix_rectangles_have_the_reported_weight() {
        let mut pasted_any = 0;
        for position in 0..40 {
            let mix = mixed(Mixing::CutMix { alpha: 1.0 }, position);
            for layout in [Layout::Nhwc, Layout::Nchw] {
                let (mut bytes, _) = numbers(Dtype::Uint8, 3);
                let before = bytes.clone();
                for (i, sample) in bytes.chunks_exact_mut(720).enumerate() {
                    sample.fill(i as u8);
                }
                mix.apply(&layout.into(), &[0, 1, 2], &mut bytes);
                assert_eq!(before.len(), bytes.len());
                for (i, sample) in bytes.chunks_exact(720).enumerate() {
                    let partner = [2, 0, 1][i];
                    let pasted = sample.iter().filter(|&&v| v == partner).count();
                    assert_eq!(
                        sample.iter().filter(|&&v| v == i as u8).count(),
                        720 - pasted
                    );
                    assert!((1.0 - pasted as f32 / 720.0 - mix.lam()).abs() < 1e-6);
                    pasted_any += pasted;
                }
            }
        }
        assert!(pasted_any > 0);
    }

    #[test]
    fn choices_are_drawn_by_weight() {
        let choices = vec![
            (Mixing::Mixup { alpha: 1.0 }, 1.0),
            (Mixing::Nothing, 0.0),
            (Mixing::CutMix { alpha: 1.0 }, 3.0),
        ];
        let transform = BatchTransform::new(choices).unwrap();
        let drawn = (0..4000).map(|position| transform.draw(1, 2, position, (8, 8)).drawn);
        let blends = drawn.filter(|d| matches!(d, Drawn::Blend(_))).count();
        assert!((900..1100).contains(&blends), "{blends}");
        assert_eq!(
            transform.draw(1, 2, 3, (8, 8)),
            transform.draw(1, 2, 3, (8, 8))
        );
    }

    #[test]
    fn invalid_choices_are_refused() {
        let refused = |mixing, weight| BatchTransform::new(vec![(mixing, weight)]).is_err();
        assert!(refused(Mixing::Mixup { alpha: 0.0 }, 1.0));
        assert!(refused(Mixing::CutMix { alpha: f64::NAN }, 1.0));
        assert!(refused(Mixing::Nothing, 0.0));
        assert!(refused(Mixing::Nothing, -1.0));
        assert!(refused(Mixing::Nothing, f64::NAN));
        assert!(BatchTransform::new(vec![(Mixing::Nothing, 1.0); 17]).is_err());
    }

    #[test]
    fn a_single_sample_is_not_mixed() {
        let mix = mixed(Mixing::Mixup { alpha: 1.0 }, 0);
        let (mut bytes, _) = numbers(Dtype::Uint8, 1);
        let before = bytes.clone();
        mix.apply(&Output::default(), &[0], &mut bytes);
        assert_eq!(bytes, before);
        assert_eq!(BatchMix::partners(&[4]).collect::<Vec<_>>(), [(4, 4)]);
        assert_eq!(
            BatchMix::partners(&[1, 4, 5]).collect::<Vec<_>>(),
            [(1, 5), (4, 1), (5, 4)]
        );
    }
}
