//! Conversion of bytes to a model's input: data type, normalization, order of the axes.
//!
//! A channel of a pixel has 256 values, so every conversion is a table of 256 entries per channel,
//! computed once: all rounding happens there, every processor gives the same bits, and a value
//! costs one lookup.

pub use forebay_batch::{Dtype, Layout};
use serde::{Deserialize, Serialize, Serializer};

use crate::error::{Result, invalid};

/// `(value - mean) / std` for each channel (red, green, blue), where values are 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Normalize {
    /// Mean of each channel, which is subtracted.
    #[serde(serialize_with = "short")]
    pub mean: [f32; 3],
    /// Standard deviation of each channel, the divisor.
    #[serde(serialize_with = "short")]
    pub std: [f32; 3],
}

impl Default for Normalize {
    /// The mean and standard deviation of ImageNet.
    fn default() -> Self {
        Self {
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
        }
    }
}

/// Serializes binary32 numbers with no more digits than necessary.
pub(crate) fn short<S: Serializer>(
    numbers: &[f32; 3],
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    numbers.map(shortened).serialize(to)
}

/// The binary64 number with the fewest digits that rounds to `number`.
fn shortened(number: f32) -> f64 {
    match number.to_string().parse::<f64>() {
        Ok(short) if short as f32 == number => short,
        _ => number.into(),
    }
}

/// Layout, type and normalization of a sample in the batch.
///
/// In a floating-point type a byte `v` becomes `v * (1 / 255)`, or `(v * (1 / 255) - mean) / std`
/// if normalized. Each step is rounded to binary32, bit for bit as in torchvision's
/// `ToDtype(torch.float32, scale=True)` and `Normalize`. The two 16-bit types are this number,
/// rounded once to the nearest, ties to even.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Output {
    /// Order of the axes.
    pub layout: Layout,
    /// Data type.
    pub dtype: Dtype,
    /// Normalization; only for floating-point types.
    pub normalize: Option<Normalize>,
}

impl From<Layout> for Output {
    /// Bytes in this layout.
    fn from(layout: Layout) -> Self {
        Self {
            layout,
            ..Self::default()
        }
    }
}

impl Output {
    /// Validates the options.
    ///
    /// # Errors
    /// [`ImageError::Transform`](crate::ImageError::Transform) with the invalid value and the
    /// allowed ones.
    pub fn validate(&self) -> Result<()> {
        let Some(Normalize { mean, std }) = self.normalize else {
            return Ok(());
        };
        if self.dtype == Dtype::Uint8 {
            return Err(invalid(
                "normalized values do not fit into uint8: choose float32, float16 or bfloat16"
                    .into(),
            ));
        }
        if mean.iter().any(|m| !m.is_finite()) {
            return Err(invalid(format!(
                "mean is {mean:?}, expected finite numbers"
            )));
        }
        if std.iter().any(|s| !(s.is_normal() && *s > 0.0)) {
            return Err(invalid(format!("std is {std:?}, expected numbers above 0")));
        }
        Ok(())
    }

    /// Returns the number for byte `v` of a channel (0 to 2), before rounding to the type.
    pub(crate) fn value(&self, channel: usize, v: u8) -> f32 {
        if self.dtype == Dtype::Uint8 {
            return f32::from(v);
        }
        let scaled = f32::from(v) * (1.0 / 255.0);
        match self.normalize {
            None => scaled,
            Some(Normalize { mean, std }) => (scaled - mean[channel]) / std[channel],
        }
    }
}

/// Encodes a number in a floating-point type; the bytes past the type's size are zero.
pub(crate) fn encoded(dtype: Dtype, value: f32) -> [u8; 4] {
    let short = |bits: u16| {
        let [low, high] = bits.to_le_bytes();
        [low, high, 0, 0]
    };
    match dtype {
        // The cast saturates.
        Dtype::Uint8 => [value.round_ties_even() as u8, 0, 0, 0],
        Dtype::Float32 => value.to_le_bytes(),
        Dtype::Float16 => short(half::f16::from_f32(value).to_bits()),
        Dtype::Bfloat16 => short(half::bf16::from_f32(value).to_bits()),
    }
}

/// The tables of one [`Output`], reused from image to image.
#[derive(Debug, Default)]
pub(crate) struct Converter {
    made_for: Option<Output>,
    wide: Vec<[[u8; 4]; 256]>,
    short: Vec<[[u8; 2]; 256]>,
    /// Identity tables, for conversions that only change the layout.
    bytes: Vec<[[u8; 1]; 256]>,
}

impl Converter {
    /// Converts bytes in the layout `from` into `out`.
    pub(crate) fn run(&mut self, output: &Output, (source, from): (&[u8], Layout), out: &mut [u8]) {
        if output.dtype == Dtype::Uint8 && from == output.layout {
            out.copy_from_slice(source);
            return;
        }
        self.prepare(output);
        let order = (from, output.layout);
        match output.dtype {
            Dtype::Uint8 => look_up(&self.bytes, order, source, out),
            Dtype::Float32 => look_up(&self.wide, order, source, out),
            Dtype::Float16 | Dtype::Bfloat16 => look_up(&self.short, order, source, out),
        }
    }

    fn prepare(&mut self, output: &Output) {
        if self.made_for == Some(*output) {
            return;
        }
        let entry = |channel, v: usize| encoded(output.dtype, output.value(channel, v as u8));
        fn table<const N: usize>(entry: impl Fn(usize) -> [u8; 4]) -> [[u8; N]; 256] {
            std::array::from_fn(|v| std::array::from_fn(|i| entry(v)[i]))
        }
        self.wide.clear();
        self.short.clear();
        self.bytes.clear();
        for channel in 0..3 {
            let entry = |v| entry(channel, v);
            match output.dtype {
                Dtype::Uint8 => self.bytes.push(table(entry)),
                Dtype::Float32 => self.wide.push(table(entry)),
                Dtype::Float16 | Dtype::Bfloat16 => self.short.push(table(entry)),
            }
        }
        self.made_for = Some(*output);
    }
}

fn look_up<const N: usize>(
    tables: &[[[u8; N]; 256]],
    order: (Layout, Layout),
    source: &[u8],
    out: &mut [u8],
) {
    let [red, green, blue] = tables else { return };
    let plane = (source.len() / 3).max(1);
    let (pixels, _) = source.as_chunks::<3>();
    match order {
        (Layout::Nhwc, Layout::Nhwc) => {
            for (pixel, out) in pixels.iter().zip(out.chunks_exact_mut(3 * N)) {
                out[..N].copy_from_slice(&red[usize::from(pixel[0])]);
                out[N..2 * N].copy_from_slice(&green[usize::from(pixel[1])]);
                out[2 * N..].copy_from_slice(&blue[usize::from(pixel[2])]);
            }
        }
        (Layout::Nhwc, Layout::Nchw) => {
            let planes = out.chunks_exact_mut(plane * N).enumerate();
            for ((channel, out), table) in planes.zip([red, green, blue]) {
                let (out, _) = out.as_chunks_mut::<N>();
                for (out, pixel) in out.iter_mut().zip(pixels) {
                    *out = table[usize::from(pixel[channel])];
                }
            }
        }
        (Layout::Nchw, Layout::Nchw) => {
            let planes = source
                .chunks_exact(plane)
                .zip(out.chunks_exact_mut(plane * N));
            for ((source, out), table) in planes.zip([red, green, blue]) {
                let (out, _) = out.as_chunks_mut::<N>();
                for (out, &v) in out.iter_mut().zip(source) {
                    *out = table[usize::from(v)];
                }
            }
        }
        (Layout::Nchw, Layout::Nhwc) => {
            let (out, _) = out.as_chunks_mut::<N>();
            for (i, out) in out.iter_mut().enumerate() {
                *out = tables[i % 3][usize::from(source[i % 3 * plane + i / 3])];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGENET: Normalize = Normalize {
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
    };

    fn converted(output: &Output, source: &[u8]) -> Vec<u8> {
        let mut out = vec![0xaa; source.len() * output.dtype.bytes()];
        Converter::default().run(output, (source, output.layout), &mut out);
        out
    }

    /// Rounds to a 16-bit type, defined by its number of bits alone: to the nearer of the two
    /// neighbors, to the even one in a tie.
    fn rounded(value: f32, mantissa_bits: u32, least_exponent: i32) -> f64 {
        let value = f64::from(value);
        if value == 0.0 {
            return 0.0;
        }
        let exponent = (value.abs().log2().floor() as i32).max(least_exponent);
        let unit = 2f64.powi(exponent - mantissa_bits as i32);
        (value / unit).round_ties_even() * unit
    }

    #[test]
    fn every_byte_of_every_type() {
        let source: Vec<u8> = (0..=255).flat_map(|v| [v, v, v]).collect();
        for normalize in [None, Some(IMAGENET)] {
            let output = |dtype| Output {
                layout: Layout::Nhwc,
                dtype,
                normalize,
            };
            let wide = converted(&output(Dtype::Float32), &source);
            let half = converted(&output(Dtype::Float16), &source);
            let brain = converted(&output(Dtype::Bfloat16), &source);
            for (i, &v) in source.iter().enumerate() {
                let mut expected = f32::from(v) * (1.0f32 / 255.0);
                if normalize.is_some() {
                    expected = (expected - IMAGENET.mean[i % 3]) / IMAGENET.std[i % 3];
                }
                let got = f32::from_le_bytes(wide[i * 4..][..4].try_into().unwrap());
                assert_eq!(got.to_bits(), expected.to_bits(), "{i}");
                let bits = |bytes: &[u8]| u16::from_le_bytes([bytes[i * 2], bytes[i * 2 + 1]]);
                let got = half::f16::from_bits(bits(&half)).to_f64();
                assert_eq!(got, rounded(expected, 10, -14), "{i}");
                let got = f64::from(f32::from_bits(u32::from(bits(&brain)) << 16));
                assert_eq!(got, rounded(expected, 7, -126), "{i}");
            }
        }
    }

    #[test]
    fn both_layouts_hold_the_same_numbers() {
        let pixels: Vec<u8> = (0..60u8).map(|i| i.wrapping_mul(37)).collect();
        let planes: Vec<u8> = (0..60).map(|i| pixels[i % 20 * 3 + i / 20]).collect();
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            let output = |layout| Output {
                layout,
                dtype,
                normalize: Some(IMAGENET),
            };
            let (a, b) = (
                converted(&output(Layout::Nhwc), &pixels),
                converted(&output(Layout::Nchw), &planes),
            );
            let n = dtype.bytes();
            for i in 0..60 {
                assert_eq!(a[(i % 20 * 3 + i / 20) * n..][..n], b[i * n..][..n]);
            }
        }
    }

    #[test]
    fn conversion_can_change_the_layout() {
        let pixels: Vec<u8> = (0..60u8).map(|i| i.wrapping_mul(37)).collect();
        for dtype in [Dtype::Uint8, Dtype::Float32, Dtype::Bfloat16] {
            let output = |layout| Output {
                layout,
                dtype,
                normalize: None,
            };
            for layout in [Layout::Nhwc, Layout::Nchw] {
                let mut there = vec![0; 60];
                let planar = layout.into();
                Converter::default().run(&planar, (&pixels, Layout::Nhwc), &mut there);
                for to in [Layout::Nhwc, Layout::Nchw] {
                    let mut a = vec![0; 60 * dtype.bytes()];
                    let mut b = a.clone();
                    Converter::default().run(&output(to), (&pixels, Layout::Nhwc), &mut a);
                    Converter::default().run(&output(to), (&there, layout), &mut b);
                    assert_eq!(a, b);
                }
            }
        }
    }

    #[test]
    fn tables_follow_the_options() {
        let mut converter = Converter::default();
        let mut out = [0; 12];
        let mut output = Output {
            dtype: Dtype::Float32,
            ..Output::default()
        };
        converter.run(&output, (&[255; 3], Layout::Nhwc), &mut out);
        assert_eq!(out[..4], 1f32.to_le_bytes());
        output.normalize = Some(Normalize {
            mean: [0.5; 3],
            std: [0.5; 3],
        });
        converter.run(&output, (&[0; 3], Layout::Nhwc), &mut out);
        assert_eq!(out[8..], (-1f32).to_le_bytes());
    }

    #[test]
    fn invalid_options_are_refused() {
        let check = |dtype, mean, std| {
            let normalize = Some(Normalize {
                mean: [0.5, mean, 0.5],
                std: [0.5, 0.5, std],
            });
            Output {
                dtype,
                normalize,
                ..Output::default()
            }
            .validate()
            .is_ok()
        };
        assert!(check(Dtype::Float16, -1.0, 2.0));
        assert!(!check(Dtype::Uint8, 0.5, 0.5));
        for wrong in [f32::NAN, f32::INFINITY] {
            assert!(!check(Dtype::Float32, wrong, 0.5));
            assert!(!check(Dtype::Float32, 0.5, wrong));
        }
        for wrong in [0.0, -1.0, f32::MIN_POSITIVE / 2.0] {
            assert!(!check(Dtype::Float32, 0.5, wrong));
        }
    }
}
