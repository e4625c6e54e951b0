//! Filter weights of one axis, computed in the order and with the rounding of Pillow.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // halves and digits are for AVX2 and AVX-512

use super::PRECISION_BITS;
use std::ops::Range;

/// Weights are stored in groups of this size, padded with zeros.
pub(super) const GROUP: usize = 4;
/// A weight is `high << LOW_BITS | low`, two halves that fit 16-bit multiplications.
pub(super) const LOW_BITS: u32 = 11;
/// Alternatively, it is three signed digits of this many bits, which fit 8-bit multiplications.
pub(super) const DIGIT_BITS: u32 = 8;

/// The resized part of an axis: `length` positions from `start`, out of `limit`. Filters may read
/// past the resized part, but not past `limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Source {
    pub(crate) start: f64,
    pub(crate) length: f64,
    pub(crate) limit: u32,
}

impl Source {
    /// The whole axis.
    pub(super) fn whole(length: u32) -> Self {
        Self {
            start: 0.0,
            length: length.into(),
            limit: length,
        }
    }
}

/// For each wanted output position: its input positions and their weights.
#[derive(Debug, Default)]
pub(super) struct Axis {
    /// First input (absolute) and number of inputs, for each output.
    taps: Vec<(u32, u32)>,
    /// `stride` weights for each output.
    weights: Vec<i32>,
    /// The halves of the weights, two neighbors per integer: the high ones, then the low ones, for
    /// each output.
    halves: Vec<i32>,
    /// The high and low halves of the weights by pair of inputs; see [`Axis::pairs`].
    pairs: Vec<[i32; 2]>,
    /// The digits of the weights by group of inputs; see [`Axis::digits`].
    digits: Vec<[i32; 3]>,
    /// For each output the first group or pair of its inputs, and where its own begin in `digits`
    /// or `pairs`; followed by the end of the last one's.
    groups: Vec<(u32, u32)>,
    stride: usize,
    span: Range<u32>,
    scratch: Vec<f64>,
}

impl Axis {
    /// Computes weights for the outputs in `window` when `input` becomes `output` positions; in
    /// reverse order if `reverse`.
    pub(super) fn fill(&mut self, input: Source, output: u32, window: Range<u32>, reverse: bool) {
        let scale = input.length / f64::from(output);
        let filter_scale = scale.max(1.0);
        let support = filter_scale; // the triangle reaches 1 at either side
        self.stride = (support.ceil() as usize * 2 + 1).next_multiple_of(GROUP);
        let count = window.len();
        self.taps.clear();
        self.weights.clear();
        self.weights.resize(count * self.stride, 0);
        self.scratch.resize(self.stride, 0.0);
        let (mut low, mut high) = (input.limit, 0);
        let one = f64::from(1u32 << PRECISION_BITS);
        let narrow = 1.0 / filter_scale;
        for i in 0..count {
            let x = if reverse {
                window.end - 1 - i as u32
            } else {
                window.start + i as u32
            };
            let center = input.start + (f64::from(x) + 0.5) * scale;
            // The casts truncate and saturate at 0, as Pillow's clamp does.
            let start = (center - support + 0.5) as u32;
            let end = ((center + support + 0.5) as u32).min(input.limit);
            let taps = (end - start) as usize;
            let mut sum = 0.0;
            for (j, weight) in self.scratch[..taps].iter_mut().enumerate() {
                let distance = ((j as f64 + f64::from(start) - center + 0.5) * narrow).abs();
                *weight = if distance < 1.0 { 1.0 - distance } else { 0.0 };
                sum += *weight;
            }
            let row = &mut self.weights[i * self.stride..][..taps];
            for (fixed, &weight) in row.iter_mut().zip(&self.scratch) {
                let weight = if sum != 0.0 { weight / sum } else { weight };
                *fixed = (0.5 + weight * one) as i32;
            }
            // Zero weights at the ends would require needless pixels.
            let zeros = row.iter().take_while(|&&w| w == 0).count().min(taps - 1);
            row.rotate_left(zeros);
            let tail = row[..taps - zeros]
                .iter()
                .rev()
                .take_while(|&&w| w == 0)
                .count();
            let (start, taps) = (start + zeros as u32, (taps - zeros - tail).max(1) as u32);
            self.taps.push((start, taps));
            low = low.min(start);
            high = high.max(start + taps);
        }
        self.span = low..high;
    }

    /// Computes the values of [`Axis::halves`].
    pub(super) fn make_halves(&mut self) {
        self.halves.clear();
        for row in self.weights.chunks_exact(self.stride) {
            let (pairs, _) = row.as_chunks::<2>();
            for half in 0..2 {
                self.halves
                    .extend(pairs.iter().map(|&pair| halves_of(pair)[half]));
            }
        }
    }

    /// Computes the values of [`Axis::pairs`].
    pub(super) fn make_pairs(&mut self) {
        self.pairs.clear();
        self.groups.clear();
        let rows = self.weights.chunks_exact(self.stride);
        for (&(start, taps), row) in self.taps.iter().zip(rows) {
            let start = start - self.span.start;
            self.groups.push((start / 2, self.pairs.len() as u32));
            // The first pair may begin before the first input.
            let mut weights = &row[..taps as usize];
            if let (1, Some((&first, rest))) = (start % 2, weights.split_first()) {
                self.pairs.push(halves_of([0, first]));
                weights = rest;
            }
            let (pairs, last) = weights.as_chunks::<2>();
            self.pairs.extend(pairs.iter().copied().map(halves_of));
            self.pairs.extend(last.iter().map(|&w| halves_of([w, 0])));
        }
        self.groups.push((0, self.pairs.len() as u32));
    }

    /// Computes the values of [`Axis::digits`].
    pub(super) fn make_digits(&mut self) {
        self.digits.clear();
        self.groups.clear();
        let rows = self.weights.chunks_exact(self.stride);
        for (&(start, taps), row) in self.taps.iter().zip(rows) {
            let start = (start - self.span.start) as usize;
            let weights = &row[..taps as usize];
            self.groups
                .push(((start / GROUP) as u32, self.digits.len() as u32));
            // The first group may begin before the first input.
            let (first, rest) = weights.split_at(weights.len().min(GROUP - start % GROUP));
            let mut group = [0; GROUP];
            group[start % GROUP..][..first.len()].copy_from_slice(first);
            self.digits.push(digits_of(group));
            let (whole, last) = rest.as_chunks::<GROUP>();
            self.digits.extend(whole.iter().copied().map(digits_of));
            if !last.is_empty() {
                let mut group = [0; GROUP];
                group[..last.len()].copy_from_slice(last);
                self.digits.push(digits_of(group));
            }
        }
        self.groups.push((0, self.digits.len() as u32));
    }

    /// Number of wanted outputs.
    pub(super) fn len(&self) -> usize {
        self.taps.len()
    }

    /// The required inputs, in absolute positions.
    pub(super) fn span(&self) -> Range<u32> {
        self.span.clone()
    }

    /// For each output: its first input relative to the span's start, and its weights.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &[i32])> {
        let low = self.span.start;
        let weights = self.weights.chunks_exact(self.stride);
        self.taps
            .iter()
            .zip(weights)
            .map(move |(&(start, taps), weights)| {
                ((start - low) as usize, &weights[..taps as usize])
            })
    }

    /// For one output: its first input relative to the span's start, and its weights in whole
    /// groups.
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    pub(super) fn whole_groups(&self, i: usize) -> (usize, &[[i32; GROUP]]) {
        let (start, taps) = self.taps[i];
        let (groups, _) = self.weights[i * self.stride..][..self.stride].as_chunks();
        let groups = &groups[..(taps as usize).div_ceil(GROUP)];
        ((start - self.span.start) as usize, groups)
    }

    /// For one output: its first input relative to the span's start, and the high and low halves of
    /// its weights, two neighbors per integer; an odd number is padded with a weight of 0.
    #[inline(always)]
    pub(super) fn halves(&self, i: usize) -> (usize, &[i32], &[i32]) {
        let (start, taps) = self.taps[i];
        let (high, low) = self.halves[i * self.stride..][..self.stride].split_at(self.stride / 2);
        let used = (taps as usize).div_ceil(2);
        (
            (start - self.span.start) as usize,
            &high[..used],
            &low[..used],
        )
    }

    /// For one output: the end of its inputs, relative to the span's start. It never decreases from
    /// output to output, unless the outputs are in reverse order.
    pub(super) fn end(&self, i: usize) -> usize {
        let (start, taps) = self.taps[i];
        (start + taps - self.span.start) as usize
    }

    /// The largest number of inputs of an output.
    pub(super) fn most_inputs(&self) -> usize {
        self.taps
            .iter()
            .map(|tap| tap.1 as usize)
            .max()
            .unwrap_or(0)
    }

    /// For one output: its first input relative to the span's start, and its weights.
    pub(super) fn weights(&self, i: usize) -> (usize, &[i32]) {
        let (start, taps) = self.taps[i];
        let weights = &self.weights[i * self.stride..][..taps as usize];
        ((start - self.span.start) as usize, weights)
    }

    /// For one output: the first pair of its inputs, counted from the span's start, and the high and
    /// low halves of its weights in each of its pairs, side by side in an integer. Inputs of a pair
    /// that do not belong to the output have weight 0.
    #[inline(always)]
    pub(super) fn pairs(&self, i: usize) -> (usize, &[[i32; 2]]) {
        let (first, from) = self.groups[i];
        let (_, to) = self.groups[i + 1];
        (first as usize, &self.pairs[from as usize..to as usize])
    }

    /// For one output: the first group of its inputs, counted from the span's start, and the digits
    /// of its weights in each of its groups. The digits of a group are the bytes of three integers,
    /// the highest digit first; inputs of a group that do not belong to the output have weight 0.
    #[inline(always)]
    pub(super) fn digits(&self, i: usize) -> (usize, &[[i32; 3]]) {
        let (first, from) = self.groups[i];
        let (_, to) = self.groups[i + 1];
        (first as usize, &self.digits[from as usize..to as usize])
    }
}

/// The high and the low halves of two weights, side by side.
fn halves_of(weights: [i32; 2]) -> [i32; 2] {
    let side_by_side = |[a, b]: [i32; 2]| (a & 0xffff) | b << 16;
    let low = weights.map(|w| w & ((1 << LOW_BITS) - 1));
    [
        side_by_side(weights.map(|w| w >> LOW_BITS)),
        side_by_side(low),
    ]
}

/// The digits of four weights. A weight is `(((high << DIGIT_BITS) + middle) << DIGIT_BITS) + low`,
/// each a signed byte. Weights have up to 22 bits and are not negative, so the high digit is at
/// most 65.
fn digits_of(weights: [i32; GROUP]) -> [i32; 3] {
    // Adding 128 to each digit makes all of them nonnegative, so they are the weight's bytes;
    // flipping the top bits subtracts the 128.
    const BIAS: i32 = 0x0080_8080;
    let [a, b, c, d] = weights.map(|weight| (weight.wrapping_add(BIAS) ^ BIAS) as u32);
    [16, 8, 0].map(|shift| {
        let digit = |weight: u32| weight >> shift & 255;
        (digit(a) | digit(b) << 8 | digit(c) << 16 | digit(d) << 24) as i32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_the_weight() {
        let most = 1 << PRECISION_BITS;
        for weight in (0..=most)
            .step_by(127)
            .chain([1, 127, 128, 255, 32_895, most])
        {
            let digits = digits_of([0, weight, most, weight]);
            let part = |i: usize| digits.map(|digit| i32::from(digit.to_le_bytes()[i] as i8));
            let sum = |i: usize| {
                part(i)
                    .into_iter()
                    .fold(0, |sum, digit| (sum << DIGIT_BITS) + digit)
            };
            assert_eq!([0, 1, 2, 3].map(sum), [0, weight, most, weight]);
        }
    }
}
