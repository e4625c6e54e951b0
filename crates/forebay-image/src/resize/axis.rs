//! Filter weights of one axis, computed in the order and with the rounding of Pillow.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // neighbors and pairs are for AVX2, digits for AVX-512

use super::PRECISION_BITS;
use std::ops::Range;

/// Weights are stored in groups of this size, padded with zeros.
pub(super) const GROUP: usize = 4;
/// A weight is `high << LOW_BITS | low`, for multiplications of 8 bits (high) and of 16 bits (low).
pub(super) const LOW_BITS: u32 = 15;
/// Alternatively, a weight is three signed digits of this many bits, for 8-bit multiplications.
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

/// Input positions and weights for each wanted output position.
#[derive(Debug, Default)]
pub(super) struct Axis {
    /// First input (absolute) and number of inputs, for each output.
    taps: Vec<(u32, u32)>,
    /// [`GROUP`] zeros, and `stride` weights for each output, which end with [`GROUP`] - 1 zeros.
    weights: Vec<i32>,
    /// The weights in pairs, `stride / 2` pairs for each output; see [`Axis::neighbors`].
    neighbors: Vec<[i32; 2]>,
    /// The weights by aligned pair of inputs; see [`Axis::pairs`].
    pairs: Vec<[i32; 2]>,
    /// The digits of the weights by aligned group of inputs; see [`Axis::digits`].
    digits: Vec<[i32; 3]>,
    /// For each output the first group or pair of its inputs, and the index of its first entry in
    /// `digits` or `pairs`; a last element holds the end of those entries.
    groups: Vec<(u32, u32)>,
    stride: usize,
    span: Range<u32>,
    /// Weights of [`LANES`] outputs: before normalization (`scratch`), and as integers (`fixed`).
    scratch: Vec<[f64; LANES]>,
    fixed: Vec<[i32; LANES]>,
}

/// Number of outputs whose weights are computed together.
const LANES: usize = 8;

impl Axis {
    /// Computes weights for the outputs in `window` of a resize from `input` to `output` positions;
    /// in reverse order if `reverse`.
    #[inline(always)]
    pub(super) fn fill(&mut self, input: Source, output: u32, window: Range<u32>, reverse: bool) {
        let scale = input.length / f64::from(output);
        let filter_scale = scale.max(1.0);
        let support = filter_scale; // the triangle reaches 1 at either side
        self.stride = (support.ceil() as usize * 2 + GROUP).next_multiple_of(GROUP);
        let count = window.len();
        self.taps.clear();
        self.weights.clear();
        self.weights.resize(GROUP + count * self.stride, 0);
        let one = f64::from(1u32 << PRECISION_BITS);
        let narrow = 1.0 / filter_scale;
        self.span = input.limit..0;
        for first in (0..count).step_by(LANES) {
            let mut centers = [0.0; LANES];
            let mut starts = [0; LANES];
            let mut ends = [0; LANES];
            for lane in 0..LANES {
                // Past the last output, the last one is computed again.
                let i = (first + lane).min(count - 1) as u32;
                let x = if reverse {
                    window.end - 1 - i
                } else {
                    window.start + i
                };
                let center = input.start + (f64::from(x) + 0.5) * scale;
                centers[lane] = center;
                // The casts truncate and saturate at 0, as Pillow's clamp does.
                starts[lane] = (center - support + 0.5) as u32;
                ends[lane] = ((center + support + 0.5) as u32).min(input.limit);
            }
            let taps: [u32; LANES] = std::array::from_fn(|lane| ends[lane] - starts[lane]);
            let (from, inputs) = (starts.map(f64::from), taps.map(f64::from));
            let mut sums = [0.0; LANES];
            self.scratch.clear();
            for j in 0..taps.into_iter().max().unwrap_or(0) {
                let j = f64::from(j);
                let mut weights = [0.0; LANES];
                for lane in 0..LANES {
                    let distance = ((j + from[lane] - centers[lane] + 0.5) * narrow).abs();
                    let weight = if distance < 1.0 { 1.0 - distance } else { 0.0 };
                    weights[lane] = if j < inputs[lane] { weight } else { 0.0 };
                    sums[lane] += weights[lane];
                }
                self.scratch.push(weights);
            }
            let sums = sums.map(|sum| if sum != 0.0 { sum } else { 1.0 });
            self.fixed.clear();
            for weights in &self.scratch {
                let mut fixed = [0; LANES];
                for lane in 0..LANES {
                    fixed[lane] = truncate(0.5 + weights[lane] / sums[lane] * one);
                }
                self.fixed.push(fixed);
            }
            for lane in 0..LANES.min(count - first) {
                self.add(starts[lane], taps[lane] as usize, lane);
            }
        }
    }

    /// Adds an output, given its first input, the number of its inputs and its lane in the weights.
    #[inline(always)]
    fn add(&mut self, start: u32, taps: usize, lane: usize) {
        let row = &mut self.weights[GROUP + self.taps.len() * self.stride..][..taps];
        for (weight, weights) in row.iter_mut().zip(&self.fixed) {
            *weight = weights[lane];
        }
        // Zero weights at the ends are removed, because they would require needless pixels.
        let zeros = row.iter().take_while(|&&w| w == 0).count().min(taps - 1);
        if zeros > 0 {
            row.rotate_left(zeros);
        }
        let used = row[..taps - zeros].iter().rev();
        let tail = used.take_while(|&&w| w == 0).count();
        let (start, taps) = (start + zeros as u32, (taps - zeros - tail).max(1) as u32);
        self.taps.push((start, taps));
        self.span.start = self.span.start.min(start);
        self.span.end = self.span.end.max(start + taps);
    }

    /// Computes the values of [`Axis::neighbors`].
    pub(super) fn make_neighbors(&mut self) {
        let (pairs, _) = self.weights[GROUP..].as_chunks::<2>();
        self.neighbors.clear();
        self.neighbors.extend(pairs.iter().copied().map(halves_of));
    }

    /// Computes the values of [`Axis::pairs`].
    pub(super) fn make_pairs(&mut self) {
        self.pairs.clear();
        self.groups.clear();
        let rows = self.weights[GROUP..].chunks_exact(self.stride);
        for (&(start, taps), row) in self.taps.iter().zip(rows) {
            let start = start - self.span.start;
            self.groups.push((start / 2, self.pairs.len() as u32));
            // The first pair may begin before the first input.
            let before = start as usize % 2;
            let weight = |i: usize| row.get(i.wrapping_sub(before)).copied().unwrap_or(0);
            for i in (0..before + taps as usize).step_by(2) {
                self.pairs.push(halves_of([weight(i), weight(i + 1)]));
            }
        }
        self.groups.push((0, self.pairs.len() as u32));
    }

    /// Computes the values of [`Axis::digits`]; `digits_of` computes the digits of a group.
    #[inline(always)]
    pub(super) fn make_digits(&mut self, digits_of: impl Fn(&[i32; GROUP]) -> [i32; 3]) {
        self.digits.clear();
        self.groups.clear();
        let rows = (GROUP..).step_by(self.stride);
        for (&(start, taps), row) in self.taps.iter().zip(rows) {
            let start = (start - self.span.start) as usize;
            self.groups
                .push(((start / GROUP) as u32, self.digits.len() as u32));
            // The first group may begin before the first input, and the last group may end after
            // the last input: the weights there are zeros.
            let before = start % GROUP;
            let groups = (before + taps as usize).div_ceil(GROUP);
            let (groups, _) = self.weights[row - before..][..groups * GROUP].as_chunks();
            self.digits.extend(groups.iter().map(&digits_of));
        }
        self.groups.push((0, self.digits.len() as u32));
    }

    /// Returns the number of wanted outputs.
    pub(super) fn len(&self) -> usize {
        self.taps.len()
    }

    /// Returns the required inputs, in absolute positions.
    pub(super) fn span(&self) -> Range<u32> {
        self.span.clone()
    }

    /// Returns for each output its first input relative to the span's start, and its weights.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (usize, &[i32])> {
        let low = self.span.start;
        let weights = self.weights[GROUP..].chunks_exact(self.stride);
        self.taps
            .iter()
            .zip(weights)
            .map(move |(&(start, taps), weights)| {
                ((start - low) as usize, &weights[..taps as usize])
            })
    }

    /// Returns for one output its first input relative to the span's start, and its weights in
    /// whole groups.
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    pub(super) fn whole_groups(&self, i: usize) -> (usize, &[[i32; GROUP]]) {
        let (start, taps) = self.taps[i];
        let (groups, _) = self.weights[GROUP + i * self.stride..][..self.stride].as_chunks();
        let groups = &groups[..(taps as usize).div_ceil(GROUP)];
        ((start - self.span.start) as usize, groups)
    }

    /// Returns for one output its first input relative to the span's start, and its weights in
    /// pairs of neighbors; see [`halves_of`]. An odd number is padded with a weight of 0.
    #[inline(always)]
    pub(super) fn neighbors(&self, i: usize) -> (usize, &[[i32; 2]]) {
        let (start, taps) = self.taps[i];
        let pairs = &self.neighbors[i * self.stride / 2..][..(taps as usize).div_ceil(2)];
        ((start - self.span.start) as usize, pairs)
    }

    /// Returns for one output the end of its inputs, relative to the span's start. The end never
    /// decreases from output to output, unless the outputs are in reverse order.
    pub(super) fn end(&self, i: usize) -> usize {
        let (start, taps) = self.taps[i];
        (start + taps - self.span.start) as usize
    }

    /// Returns the largest number of inputs of an output.
    pub(super) fn most_inputs(&self) -> usize {
        self.taps
            .iter()
            .map(|tap| tap.1 as usize)
            .max()
            .unwrap_or(0)
    }

    /// Returns for one output its first input relative to the span's start, and its weights.
    pub(super) fn weights(&self, i: usize) -> (usize, &[i32]) {
        let (start, taps) = self.taps[i];
        let weights = &self.weights[GROUP + i * self.stride..][..taps as usize];
        ((start - self.span.start) as usize, weights)
    }

    /// Returns for one output the first pair of its inputs, counted from the span's start, and its
    /// weights in each of its pairs; see [`halves_of`]. Inputs of a pair that do not belong to the
    /// output have weight 0.
    #[inline(always)]
    pub(super) fn pairs(&self, i: usize) -> (usize, &[[i32; 2]]) {
        let (first, from) = self.groups[i];
        let (_, to) = self.groups[i + 1];
        (first as usize, &self.pairs[from as usize..to as usize])
    }

    /// Returns for one output the first group of its inputs, counted from the span's start, and the digits of its
    /// weights in each of its groups. The digits of a group are the bytes of three integers, the highest digit
    /// first; inputs of a group that do not belong to the output have weight 0.
    #[inline(always)]
    pub(super) fn digits(&self, i: usize) -> (usize, &[[i32; 3]]) {
        let (first, from) = self.groups[i];
        let (_, to) = self.groups[i + 1];
        (first as usize, &self.digits[from as usize..to as usize])
    }
}

/// `value as i32` for values from 0 to below 2^31. The compiler vectorizes this code, but not the
/// cast.
#[inline(always)]
fn truncate(value: f64) -> i32 {
    /// The unit of numbers of this size is 1.
    const LARGE: f64 = (1u64 << 52) as f64;
    let nearest = value + LARGE;
    let above = if nearest - LARGE > value { 1 } else { 0 };
    (nearest.to_bits() as i32).wrapping_sub(above)
}

/// Packs two weights: their high halves as bytes a, b, a, b, and their low halves as two words.
///
/// A weight of one is lowered by a unit, so that its high half is a signed byte. The result is the same: all other
/// weights of that output are 0, and a pixel times the difference is far below the rounding term.
fn halves_of(weights: [i32; 2]) -> [i32; 2] {
    let [a, b] = weights.map(|w| w.min((1 << PRECISION_BITS) - 1));
    let high = (a >> LOW_BITS) | (b >> LOW_BITS) << 8;
    let low = |w: i32| w & ((1 << LOW_BITS) - 1);
    [high | high << 16, low(a) | low(b) << 16]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_equals_the_cast() {
        for whole in [0, 1, 2, 3, 127, 4_194_303, 4_194_304, 1 << 30] {
            for part in [
                0.0,
                1e-9,
                0.25,
                0.499_999_999,
                0.5,
                0.500_000_001,
                0.999_999_9,
            ] {
                let value = f64::from(whole) + part;
                assert_eq!(truncate(value), value as i32, "{value}");
            }
        }
    }

    #[test]
    fn halves_add_up_to_the_weight() {
        let most = 1 << PRECISION_BITS;
        for weight in (0..most).step_by(127).chain([1, 32_767, 32_768, most - 1]) {
            let rest = most - 1 - weight;
            let [high, low] = halves_of([weight, rest]).map(i32::to_le_bytes);
            assert_eq!(high[..2], high[2..]);
            let join = |i: usize| {
                let low = i16::from_le_bytes([low[2 * i], low[2 * i + 1]]);
                i32::from(high[i] as i8) << LOW_BITS | i32::from(low)
            };
            assert_eq!([0, 1].map(join), [weight, rest]);
        }
        assert_eq!(halves_of([most, 0]), halves_of([most - 1, 0]));
    }
}
