//! RandomErasing: overwrites a random rectangle of the finished sample.

use std::sync::OnceLock;

use super::bounds::check_range;
use super::parameters::{Bounds, Parameter, ParameterKind};
use super::{Definition, Sample, check_probability};
use crate::error::{Result, invalid};
use crate::output::{Dtype, Layout, Output, encoded};
use crate::random::{Draws, Purpose, SampleSeed, exp, ln};
use serde::{Deserialize, Serialize};

/// The fill of an erased rectangle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WrittenFill", into = "WrittenFill")]
pub enum Fill {
    /// A number for each channel, in the units of the output: 0 to 255 for bytes (others saturate),
    /// otherwise as after normalization.
    Value([f32; 3]),
    /// Noise: uniform bytes, or the standard normal distribution in a floating-point type.
    Random,
}

/// The JSON form of a fill.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, three numbers or \"random\"")]
enum WrittenFill {
    Number(f32),
    Channels(#[serde(serialize_with = "crate::output::short")] [f32; 3]),
    Name(String),
}

/// The name of noise in JSON.
const RANDOM: &str = "random";

impl TryFrom<WrittenFill> for Fill {
    type Error = String;

    fn try_from(written: WrittenFill) -> std::result::Result<Self, String> {
        match written {
            WrittenFill::Number(value) => Ok(Self::Value([value; 3])),
            WrittenFill::Channels(value) => Ok(Self::Value(value)),
            WrittenFill::Name(name) if name == RANDOM => Ok(Self::Random),
            WrittenFill::Name(name) => Err(format!(
                "{name:?}, expected a number, three numbers or {RANDOM:?}"
            )),
        }
    }
}

impl From<Fill> for WrittenFill {
    fn from(fill: Fill) -> Self {
        match fill {
            Fill::Value(value) => Self::Channels(value),
            Fill::Random => Self::Name(RANDOM.to_owned()),
        }
    }
}

/// Overwrites a random rectangle, in some of the samples.
///
/// The rectangle is chosen as in `torchvision.transforms.RandomErasing`, with ten attempts; if none
/// fits, the sample is unchanged. Zhong, Zheng, Kang, Li, Yang: "Random Erasing Data Augmentation",
/// 2017.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomErasing {
    /// Probability that a sample is changed.
    pub p: f64,
    /// Minimum and maximum area of the rectangle, as a fraction of the sample's area.
    pub scale: Bounds,
    /// Minimum and maximum height / width of the rectangle.
    pub ratio: Bounds,
    /// The fill.
    pub value: Fill,
}

/// A rectangle of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rectangle {
    x: usize,
    y: usize,
    width: usize,
    height: usize,
}

impl RandomErasing {
    /// torchvision's defaults: half of the samples, 0.02 to 1/3 of the area, filled with 0.
    pub const fn new() -> Self {
        Self {
            p: 0.5,
            scale: (0.02, 0.33),
            ratio: (0.3, 3.3),
            value: Fill::Value([0.0; 3]),
        }
    }

    fn rectangle(&self, width: usize, height: usize, draws: &mut Draws) -> Option<Rectangle> {
        if draws.unit() >= self.p {
            return None;
        }
        let area = (width * height) as f64;
        let (low, high) = (ln(self.ratio.0), ln(self.ratio.1));
        for _ in 0..10 {
            let erased = area * draws.uniform(self.scale.0, self.scale.1);
            let ratio = exp(draws.uniform(low, high));
            // The casts saturate.
            let h = (erased * ratio).sqrt().round_ties_even() as usize;
            let w = (erased / ratio).sqrt().round_ties_even() as usize;
            if h < height && w < width {
                let y = draws.below((height - h + 1) as u32) as usize;
                let x = draws.below((width - w + 1) as u32) as usize;
                return Some(Rectangle {
                    x,
                    y,
                    width: w,
                    height: h,
                });
            }
        }
        None
    }

    /// Erases a rectangle of a finished sample of `width` by `height` pixels. The first generator
    /// chooses the rectangle, the second one its content.
    fn erase(
        &self,
        output: &Output,
        (width, height): (usize, usize),
        (draws, noise): (&mut Draws, &mut Draws),
        out: &mut [u8],
    ) {
        let Some(rectangle) = self.rectangle(width, height, draws) else {
            return;
        };
        let n = output.dtype.bytes();
        let fixed = match self.value {
            Fill::Value(value) => Some(value.map(|v| encoded(output.dtype, v))),
            Fill::Random => None,
        };
        let mut noise = Noise {
            draws: noise,
            left: 0,
            bits: 0,
        };
        let mut number = |channel: usize| match &fixed {
            Some(value) => value[channel],
            None => noise.number(output.dtype),
        };
        for y in rectangle.y..rectangle.y + rectangle.height {
            let columns = rectangle.x..rectangle.x + rectangle.width;
            match output.layout {
                Layout::Nhwc => {
                    let row = &mut out[y * width * 3 * n..][..width * 3 * n];
                    let row = &mut row[columns.start * 3 * n..columns.end * 3 * n];
                    for (i, to) in row.chunks_exact_mut(n).enumerate() {
                        to.copy_from_slice(&number(i % 3)[..n]);
                    }
                }
                Layout::Nchw => {
                    for channel in 0..3 {
                        let row = &mut out[(channel * height + y) * width * n..][..width * n];
                        let row = &mut row[columns.start * n..columns.end * n];
                        for to in row.chunks_exact_mut(n) {
                            to.copy_from_slice(&number(channel)[..n]);
                        }
                    }
                }
            }
        }
    }
}

impl Default for RandomErasing {
    fn default() -> Self {
        Self::new()
    }
}

impl Definition for RandomErasing {
    const DOC: &'static str = "Writes over a random rectangle, with probability `p`.";
    const DETAILS: &'static str = "The last transform of a list.";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::new("p", ParameterKind::Number, "Probability."),
        Parameter::new(
            "scale",
            ParameterKind::Range,
            "Bounds of the rectangle's area, relative to the output's.",
        ),
        Parameter::new(
            "ratio",
            ParameterKind::Range,
            "Bounds of the rectangle's height / width.",
        ),
        Parameter::new(
            "value",
            ParameterKind::Fill,
            "What is written, in the units of the output, after `Normalize`; three numbers are for red, green and blue. \"random\" is noise of the standard normal distribution, or any byte for uint8.",
        ),
    ];

    fn check(&self) -> Result<()> {
        check_probability("p of RandomErasing", self.p)?;
        check_range(
            "scale of RandomErasing",
            self.scale,
            (f64::MIN_POSITIVE, 1.0),
        )?;
        check_range("ratio of RandomErasing", self.ratio, (1e-3, 1e3))?;
        match self.value {
            Fill::Value(value) if value.iter().any(|v| !v.is_finite()) => Err(invalid(format!(
                "value of RandomErasing is {value:?}, expected finite numbers"
            ))),
            _ => Ok(()),
        }
    }
}

impl Sample for RandomErasing {
    fn apply(&self, output: &Output, size: (usize, usize), seed: SampleSeed, out: &mut [u8]) {
        let mut draws = Draws::new(seed, Purpose::ERASE);
        let mut noise = Draws::new(seed, Purpose::NOISE);
        self.erase(output, size, (&mut draws, &mut noise), out);
    }
}

/// log2 of the number of equally probable values that noise is drawn from.
const QUANTILE_BITS: u32 = 12;

/// The numbers that fill a rectangle, twelve random bits each.
struct Noise<'a> {
    draws: &'a mut Draws,
    bits: u64,
    left: u32,
}

impl Noise<'_> {
    fn number(&mut self, dtype: Dtype) -> [u8; 4] {
        if self.left < QUANTILE_BITS {
            (self.bits, self.left) = (self.draws.next_u64(), 64);
        }
        let index = (self.bits & ((1 << QUANTILE_BITS) - 1)) as usize;
        self.bits >>= QUANTILE_BITS;
        self.left -= QUANTILE_BITS;
        match dtype {
            Dtype::Uint8 => [(index >> (QUANTILE_BITS - 8)) as u8, 0, 0, 0],
            float => encoded(float, quantiles()[index]),
        }
    }
}

/// The quantiles (i + 1/2) / 4096 of the standard normal distribution: a uniform draw from them is
/// a normal variate to three places, for the cost of a lookup, and with the same bits on every
/// platform.
fn quantiles() -> &'static [f32] {
    static TABLE: OnceLock<Vec<f32>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let count = 1usize << QUANTILE_BITS;
        let mut table = vec![0.0; count];
        let mut x = 0.0;
        for i in 0..count / 2 {
            // The values are computed from the middle outwards, so that Newton's method starts near the root.
            let p = 0.5 + (i as f64 + 0.5) / count as f64;
            for _ in 0..8 {
                x -= (normal_cdf(x) - p) / normal_density(x);
            }
            table[count / 2 + i] = x as f32;
            table[count / 2 - 1 - i] = -x as f32;
        }
        table
    })
}

fn normal_density(x: f64) -> f64 {
    exp(-x * x / 2.0) * 0.398_942_280_401_432_7
}

/// The normal CDF by its series at 0, for 0 <= x < 4.
fn normal_cdf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    let mut n = 3.0;
    while n < 160.0 {
        term *= x * x / n;
        sum += term;
        n += 2.0;
    }
    0.5 + sum * normal_density(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sample: u64, purpose: Purpose) -> Draws {
        let seed = SampleSeed {
            seed: 1,
            epoch: 0,
            sample,
            occurrence: 0,
        };
        Draws::new(seed, purpose)
    }

    #[test]
    fn quantiles_equal_those_of_the_normal_distribution() {
        let table = quantiles();
        assert!(table.windows(2).all(|pair| pair[0] < pair[1]));
        // Known quantiles: 0.5 + 0.5/4096; the tabulated 0.975 lies between two adjacent entries.
        assert!((f64::from(table[2048]) - 0.000_305_985).abs() < 1e-8);
        let near = 0.975 * 4096.0;
        let (below, above) = (table[near as usize - 1], table[near as usize + 1]);
        assert!(f64::from(below) < 1.959_964 && 1.959_964 < f64::from(above));
        let variance: f64 = table.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 4096.0;
        assert!((variance - 1.0).abs() < 1e-3, "{variance}");
    }

    #[test]
    fn only_the_rectangle_is_erased_in_both_layouts() {
        let (width, height) = (31, 17);
        let erasing = RandomErasing {
            p: 1.0,
            value: Fill::Value([1.0, 2.0, 3.0]),
            ..RandomErasing::new()
        };
        let mut erased = 0;
        for sample in 0..50 {
            let where_ = || draws(sample, Purpose::ERASE);
            let area = erasing.rectangle(width, height, &mut where_());
            for layout in [Layout::Nhwc, Layout::Nchw] {
                let mut out = vec![9; width * height * 3];
                let mut noise = draws(sample, Purpose::NOISE);
                let (size, output) = ((width, height), layout.into());
                erasing.erase(&output, size, (&mut where_(), &mut noise), &mut out);
                for i in 0..width * height {
                    let inside = area.is_some_and(|r| {
                        (r.x..r.x + r.width).contains(&(i % width))
                            && (r.y..r.y + r.height).contains(&(i / width))
                    });
                    for channel in 0..3 {
                        let at = match layout {
                            Layout::Nhwc => i * 3 + channel,
                            Layout::Nchw => channel * width * height + i,
                        };
                        let expected = if inside { channel as u8 + 1 } else { 9 };
                        assert_eq!(out[at], expected);
                    }
                }
            }
            erased += u32::from(area.is_some());
        }
        assert!(erased > 45);
    }

    #[test]
    fn noise_has_the_distribution_of_the_data_type() {
        let erasing = RandomErasing {
            p: 1.0,
            scale: (0.5, 0.5),
            ratio: (1.0, 1.0),
            value: Fill::Random,
        };
        let run = |dtype: Dtype| {
            let output = Output {
                dtype,
                ..Output::default()
            };
            let mut out = vec![0; 64 * 64 * 3 * dtype.bytes()];
            let (mut a, mut b) = (draws(3, Purpose::ERASE), draws(3, Purpose::NOISE));
            erasing.erase(&output, (64, 64), (&mut a, &mut b), &mut out);
            out
        };
        let wide: Vec<f64> = run(Dtype::Float32)
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .filter(|&v| v != 0.0)
            .collect();
        let count = wide.len() as f64;
        assert_eq!(wide.len(), 45 * 45 * 3);
        let mean = wide.iter().sum::<f64>() / count;
        let variance = wide.iter().map(|v| v * v).sum::<f64>() / count;
        assert!(
            mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
        let bytes = run(Dtype::Uint8);
        assert!(bytes.iter().any(|&b| b > 250) && bytes.iter().any(|&b| b > 0 && b < 5));
    }
}
