//! The two passes with AVX-512 and its dot products of bytes (VNNI). A weight has 23 bits and the
//! products take 8, so it is applied in three digits; the sums are exact and the result equals that
//! of the portable passes, bit for bit.
//!
//! A dot product combines the four bytes of an integer, so both passes need four neighbors in one
//! integer: four columns of a row in the first pass, four rows of a column in the second. Rows are
//! therefore processed sixteen at a time, channel by channel, and transposed into [`Line`]s of four
//! columns by sixteen rows. The first pass produces sixteen rows of a column, which already are
//! integers of four rows. So both passes share [`mix`], and no input is loaded twice.
#![expect(unsafe_code)] // intrinsics; loads and stores are of whole arrays

use super::STRIP;
use super::axis::{Axis, DIGIT_BITS, GROUP, Source};
use super::{HALF, PRECISION_BITS};
use crate::output::Layout;
use forebay_jpeg::internals::may_use_avx512;
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns of the output per line.
const COLUMNS: usize = 16;
const CHANNELS: usize = 3;
/// Columns of the input that are transposed into lines at once.
const BLOCK: usize = GROUP * COLUMNS;
const _: () = assert!(STRIP == 4 * GROUP);

/// The content of a register: sixteen integers of four bytes, each a group of neighbors.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line([u8; 64]);

/// Buffers between rows of pixels and the output. Lines of the three channels are side by side.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Input of the first pass, by group of columns; each integer is a group in one of sixteen rows.
    source: Vec<Line>,
    /// Input of the second pass, by group of rows (a ring) and by sixteen output columns.
    between: Vec<Line>,
    /// Number of groups of rows in the ring.
    ring: usize,
}

/// Returns whether this processor has the required features.
pub(super) fn is_there() -> bool {
    may_use_avx512()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vnni")
}

/// [`Axis::fill`], compiled for AVX-512.
///
/// # Panics
/// If the processor lacks the features that [`is_there`] checks.
pub(super) fn fill(axis: &mut Axis, input: Source, output: u32, window: Range<u32>, reverse: bool) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn fill(axis: &mut Axis, input: Source, output: u32, window: Range<u32>, reverse: bool) {
        axis.fill(input, output, window, reverse);
    }
    assert!(is_there());
    // SAFETY: the processor has the features.
    unsafe { fill(axis, input, output, window, reverse) }
}

/// Computes the values of [`Axis::digits`].
///
/// # Panics
/// If the processor lacks the features that [`is_there`] checks.
pub(super) fn make_digits(axis: &mut Axis) {
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn make_digits(axis: &mut Axis) {
        axis.make_digits(|weights| digits_of(weights));
    }
    assert!(is_there());
    // SAFETY: the processor has the features.
    unsafe { make_digits(axis) }
}

/// Returns the digits of four weights. A weight is
/// `(((high << DIGIT_BITS) + middle) << DIGIT_BITS) + low`, where each digit is a signed byte.
/// Weights have up to 22 bits and are not negative, so the high digit is at most 65.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn digits_of(weights: &[i32; GROUP]) -> [i32; 3] {
    // Adding 128 to each digit makes all of them nonnegative, so they are the weight's bytes;
    // flipping the top bits subtracts the 128.
    let bias = _mm_set1_epi32(0x0080_8080);
    // SAFETY: reads the 16 bytes of the weights.
    let weights = unsafe { _mm_loadu_si128(weights.as_ptr().cast()) };
    let bytes = _mm_xor_si128(_mm_add_epi32(weights, bias), bias);
    let by_digit = _mm_setr_epi8(2, 6, 10, 14, 1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1);
    let digits = _mm_shuffle_epi8(bytes, by_digit);
    [
        _mm_cvtsi128_si32(digits),
        _mm_extract_epi32::<1>(digits),
        _mm_extract_epi32::<2>(digits),
    ]
}

/// Returns the distance of the rows of a channel, in bytes.
pub(super) fn row_stride(width: usize) -> usize {
    width.next_multiple_of(BLOCK)
}

impl Lines {
    /// Allocates the buffers of a resize, with a ring of `ring` intermediate rows.
    pub(super) fn set(&mut self, columns: &Axis, ring: usize) {
        let groups = row_stride(columns.span().len()) / GROUP;
        let grow = |lines: &mut Vec<Line>, count: usize| {
            if lines.len() < count {
                lines.resize(count, Line([0; 64]));
            }
        };
        grow(&mut self.source, groups * CHANNELS);
        self.ring = ring / GROUP;
        grow(&mut self.between, self.ring * lines_in_group(columns));
    }

    /// Applies the first pass to a strip of rows that begins with `row`: [`STRIP`] rows of each
    /// channel, one channel after the other. The axis must have digits.
    ///
    /// # Panics
    /// If a buffer is too short for the plan, or the processor lacks the features that [`is_there`]
    /// checks.
    pub(super) fn horizontal(&mut self, columns: &Axis, rows: &[u8], row: usize) {
        assert!(is_there() && row.is_multiple_of(STRIP));
        let stride = row_stride(columns.span().len());
        // SAFETY: the processor has the features.
        unsafe { turn(rows, stride, &mut self.source) };
        let in_group = lines_in_group(columns);
        let first = row / GROUP % self.ring * in_group;
        let between = &mut self.between[first..][..STRIP / GROUP * in_group];
        // SAFETY: the processor has the features.
        unsafe { across(columns, &self.source, between, in_group) };
    }

    /// Applies the second pass for row `y` of the output. The axis must have digits.
    ///
    /// # Panics
    /// If a buffer is too short for the plan, or the processor lacks the features that [`is_there`]
    /// checks.
    pub(super) fn vertical(
        &self,
        rows: &Axis,
        y: usize,
        columns: &Axis,
        layout: Layout,
        out: &mut [u8],
    ) {
        assert!(is_there());
        let width = columns.len();
        let in_group = lines_in_group(columns);
        let (first, digits) = rows.digits(y);
        let place = first % self.ring;
        let lines = |group: usize| {
            let group = place + group;
            let group = if group < self.ring {
                group
            } else {
                group - self.ring
            };
            &self.between[group * in_group..][..in_group]
        };
        match layout {
            Layout::Nhwc => {
                let out = &mut out[y * width * CHANNELS..][..width * CHANNELS];
                // SAFETY: the processor has the features.
                unsafe { down(digits, lines, Pixels(out)) };
            }
            Layout::Nchw => {
                let plane = width * rows.len();
                let (red, rest) = out.split_at_mut(plane);
                let (green, blue) = rest.split_at_mut(plane);
                let out = [red, green, blue].map(|plane| &mut plane[y * width..][..width]);
                // SAFETY: the processor has the features.
                unsafe { down(digits, lines, Planes(out)) };
            }
        }
    }
}

/// Returns the number of intermediate lines per group of rows.
fn lines_in_group(columns: &Axis) -> usize {
    columns.len().div_ceil(COLUMNS) * CHANNELS
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: reads the 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// A sum for each of a weight's digits.
#[derive(Clone, Copy)]
struct Sums([__m512i; 3]);

impl Sums {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        let zero = _mm512_setzero_si512();
        Self([zero, zero, _mm512_set1_epi32(HALF)])
    }

    /// Adds groups of four bytes, each multiplied by its weight.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn add(&mut self, bytes: __m512i, digits: [__m512i; 3]) {
        for (sum, digit) in self.0.iter_mut().zip(digits) {
            *sum = _mm512_dpbusd_epi32(*sum, bytes, digit);
        }
    }

    /// Combines the sums of all digits, rounded to integers.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn join(self) -> __m512i {
        let [high, middle, low] = self.0;
        let sum = _mm512_add_epi32(_mm512_slli_epi32::<DIGIT_BITS>(high), middle);
        let sum = _mm512_add_epi32(_mm512_slli_epi32::<DIGIT_BITS>(sum), low);
        _mm512_srai_epi32::<PRECISION_BITS>(sum)
    }
}

/// Returns weighted sums of the lines of the three channels: each group times its digits.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn mix<'a>(groups: impl Iterator<Item = (&'a [Line; CHANNELS], &'a [i32; 3])>) -> [__m512i; 3] {
    let mut sums = [Sums::new(); CHANNELS];
    for (lines, digits) in groups {
        let &[high, middle, low] = digits;
        let digits = [
            _mm512_set1_epi32(high),
            _mm512_set1_epi32(middle),
            _mm512_set1_epi32(low),
        ];
        for (sums, line) in sums.iter_mut().zip(lines) {
            sums.add(load(&line.0), digits);
        }
    }
    let [red, green, blue] = sums;
    [red.join(), green.join(), blue.join()]
}

/// Transposes quarters of four registers: quarter `i` of register `j` becomes quarter `j` of
/// register `i`.
#[inline]
#[target_feature(enable = "avx512f")]
fn turn_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let ab_low = _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b);
    let ab_high = _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b);
    let cd_low = _mm512_shuffle_i32x4::<0b01_00_01_00>(c, d);
    let cd_high = _mm512_shuffle_i32x4::<0b11_10_11_10>(c, d);
    [
        _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_high, cd_high),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_high, cd_high),
    ]
}

/// Transposes the integers within each quarter, like [`turn_quarters`].
#[inline]
#[target_feature(enable = "avx512f")]
fn turn_integers([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let ab_low = _mm512_unpacklo_epi32(a, b);
    let ab_high = _mm512_unpackhi_epi32(a, b);
    let cd_low = _mm512_unpacklo_epi32(c, d);
    let cd_high = _mm512_unpackhi_epi32(c, d);
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// Transposes rows of channels to lines; the elements are integers of four columns.
#[target_feature(enable = "avx512f")]
fn turn(rows: &[u8], stride: usize, lines: &mut [Line]) {
    let (lines, _) = lines.as_chunks_mut::<CHANNELS>();
    for (channel, rows) in rows.chunks_exact(STRIP * stride).take(CHANNELS).enumerate() {
        let blocks = lines.as_chunks_mut::<COLUMNS>().0.iter_mut();
        for (block, lines) in blocks.take(stride / BLOCK).enumerate() {
            // Quarter i of register j holds integer 4 i + j of four rows.
            let mut quads = [[_mm512_setzero_si512(); 4]; 4];
            for (quad, turned) in quads.iter_mut().enumerate() {
                let mut four = [_mm512_setzero_si512(); 4];
                for (row, to) in four.iter_mut().enumerate() {
                    let bytes = &rows[(4 * quad + row) * stride + block * BLOCK..][..BLOCK];
                    *to = load(bytes.first_chunk().expect("a slice of a block"));
                }
                *turned = turn_integers(four);
            }
            let [first, second, third, fourth] = quads;
            for j in 0..4 {
                let four = turn_quarters([first[j], second[j], third[j], fourth[j]]);
                for (i, line) in four.into_iter().enumerate() {
                    let to = &mut lines[4 * i + j][channel].0;
                    // SAFETY: writes the 64 bytes.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), line) };
                }
            }
        }
    }
}

/// Computes intermediate lines, `in_group` for each group of rows, from source lines.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn across(columns: &Axis, source: &[Line], between: &mut [Line], in_group: usize) {
    let (source, _) = source.as_chunks::<CHANNELS>();
    let width = columns.len();
    for x in (0..width).step_by(4) {
        let mut four = [[_mm512_setzero_si512(); CHANNELS]; 4];
        for (j, column) in four.iter_mut().enumerate() {
            // Past the last column, the last one is computed again.
            let (first, digits) = columns.digits((x + j).min(width - 1));
            *column = mix(source[first..][..digits.len()].iter().zip(digits));
        }
        let [a, b, c, d] = four;
        for channel in 0..CHANNELS {
            // Each quarter holds four columns of a group of rows.
            let left = _mm512_packs_epi32(a[channel], b[channel]);
            let right = _mm512_packs_epi32(c[channel], d[channel]);
            let bytes = _mm512_packus_epi16(left, right);
            let quarters = [
                _mm512_castsi512_si128(bytes),
                _mm512_extracti32x4_epi32::<1>(bytes),
                _mm512_extracti32x4_epi32::<2>(bytes),
                _mm512_extracti32x4_epi32::<3>(bytes),
            ];
            let at = x / COLUMNS * CHANNELS + channel;
            for (group, quarter) in quarters.into_iter().enumerate() {
                let line = &mut between[group * in_group + at].0;
                let to = &mut line.as_chunks_mut::<16>().0[x % COLUMNS / 4];
                // SAFETY: writes the 16 bytes.
                unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), quarter) };
            }
        }
    }
}

/// Receives the columns of an output row.
trait Sink {
    /// Stores sixteen columns from `x` on, or as many as remain: values of red, green and blue.
    ///
    /// SAFETY: the processor must have AVX-512 F and BW.
    unsafe fn put(&mut self, x: usize, values: [__m512i; CHANNELS]);
}

/// Computes an output row from intermediate lines.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
fn down<'a>(digits: &[[i32; 3]], lines: impl Fn(usize) -> &'a [Line], mut out: impl Sink) {
    let count = lines(0).len() / CHANNELS;
    for chunk in 0..count {
        let part = |group: usize| {
            let lines = &lines(group)[chunk * CHANNELS..][..CHANNELS];
            lines.first_chunk().expect("a slice of three lines")
        };
        let values = mix((0..digits.len()).map(part).zip(digits));
        // SAFETY: the caller has checked these features of the processor.
        unsafe { out.put(chunk * COLUMNS, values) };
    }
}

/// Stores an output row as pixels (NHWC).
struct Pixels<'a>(&'a mut [u8]);

impl Sink for Pixels<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put(&mut self, x: usize, values: [__m512i; CHANNELS]) {
        let most = _mm512_set1_epi32(255);
        let [red, green, blue] = values;
        let red = _mm512_min_epi32(red, most);
        let green = _mm512_slli_epi32::<8>(_mm512_min_epi32(green, most));
        let blue = _mm512_slli_epi32::<16>(_mm512_min_epi32(blue, most));
        let pixels = _mm512_or_si512(_mm512_or_si512(red, green), blue);
        // Packs four bytes per pixel to three: first in each quarter, then across quarters.
        let order = _mm512_broadcast_i32x4(_mm_setr_epi8(
            0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1,
        ));
        let quarters = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
        let bytes = _mm512_permutexvar_epi32(quarters, _mm512_shuffle_epi8(pixels, order));
        let (low, high) = (
            _mm512_castsi512_si256(bytes),
            _mm512_extracti32x4_epi32::<2>(bytes),
        );
        let out = &mut self.0[x * CHANNELS..];
        let mut last = [0; COLUMNS * CHANNELS];
        let (whole, part) = match out.first_chunk_mut() {
            Some(whole) => (whole, None),
            None => (&mut last, Some(out)),
        };
        // SAFETY: writes the 48 bytes.
        unsafe {
            _mm256_storeu_si256(whole.as_mut_ptr().cast(), low);
            _mm_storeu_si128(whole[32..].as_mut_ptr().cast(), high);
        }
        if let Some(part) = part {
            part.copy_from_slice(&last[..part.len()]);
        }
    }
}

/// Stores an output row as a row of each channel (NCHW).
struct Planes<'a>([&'a mut [u8]; CHANNELS]);

impl Sink for Planes<'_> {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn put(&mut self, x: usize, values: [__m512i; CHANNELS]) {
        for (out, values) in self.0.iter_mut().zip(values) {
            let bytes = _mm512_cvtusepi32_epi8(values);
            let out = &mut out[x..];
            let mut last = [0; COLUMNS];
            let (whole, part) = match out.first_chunk_mut() {
                Some(whole) => (whole, None),
                None => (&mut last, Some(out)),
            };
            // SAFETY: writes the 16 bytes.
            unsafe { _mm_storeu_si128(whole.as_mut_ptr().cast(), bytes) };
            if let Some(part) = part {
                part.copy_from_slice(&last[..part.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_add_up_to_the_weight() {
        if !is_there() {
            return;
        }
        let most = 1 << PRECISION_BITS;
        for weight in (0..=most)
            .step_by(127)
            .chain([1, 127, 128, 255, 32_895, most])
        {
            // SAFETY: the processor has the features.
            let digits = unsafe { digits_of(&[0, weight, most, weight]) };
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
