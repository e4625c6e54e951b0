//! The two passes with AVX2. A weight has 22 bits, so it is applied in two halves: the upper 7 bits
//! times bytes (`vpmaddubsw`), the lower 15 times words (`vpmaddwd`). The sums are exact and the
//! result equals that of the portable passes, bit for bit: the weights of an output sum to about
//! one, so the sum of the upper halves fits into 16 bits, and the lower halves only add a carry.
//! The rounding term is a multiple of the upper halves' unit.
//!
//! Both instructions add two neighbors. In the first pass these are two columns, so a strip of
//! sixteen rows is transposed, channel by channel, into [`Pair`]s of columns: each register holds
//! the same columns of sixteen rows, and one load of a weight serves all three channels.
#![expect(unsafe_code)] // intrinsics and unchecked loads; every bound is asserted in `resize`

use super::axis::{Axis, LOW_BITS, Source};
use super::{HALF, Middle, PRECISION_BITS, STRIP};
use crate::output::Layout;
use std::arch::x86_64::*;
use std::ops::Range;

const CHANNELS: usize = 3;
/// Columns of the input that are transposed at once.
const BLOCK: usize = 16;
/// Columns of the output that are computed together.
const COLUMNS: usize = 4;
const _: () = assert!(STRIP == 16);
/// Stands for a number of pairs of weights that is not known at compile time.
const ANY: usize = 0;
/// The rounding term, in units of the upper halves of weights.
const ROUND: i16 = (HALF >> LOW_BITS) as i16;
const _: () = assert!((ROUND as i32) << LOW_BITS == HALF);

/// Two adjacent columns of a strip, by channel: both bytes of row 0, of row 1, and so on.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Pair([[u8; 2 * STRIP]; CHANNELS]);

/// [`Axis::fill`], compiled for AVX2.
///
/// # Panics
/// If the processor has no AVX2.
pub(super) fn fill(axis: &mut Axis, input: Source, output: u32, window: Range<u32>, reverse: bool) {
    #[target_feature(enable = "avx2")]
    fn fill(axis: &mut Axis, input: Source, output: u32, window: Range<u32>, reverse: bool) {
        axis.fill(input, output, window, reverse);
    }
    assert!(is_x86_feature_detected!("avx2"));
    // SAFETY: AVX2 is available.
    unsafe { fill(axis, input, output, window, reverse) }
}

/// Returns the distance of the rows of a channel, in bytes.
pub(super) fn row_stride(width: usize) -> usize {
    width.next_multiple_of(BLOCK)
}

/// First pass: computes intermediate rows from a strip of rows of each channel, [`row_stride`]
/// bytes apart. The axis must have pairs. `pairs` is scratch memory.
///
/// # Panics
/// If a buffer is too short for the plan, or the processor has no AVX2.
pub(super) fn horizontal(
    columns: &Axis,
    source: &[u8],
    middle: Middle,
    pairs: &mut Vec<Pair>,
    rows: &mut [u8],
) {
    assert!(is_x86_feature_detected!("avx2"));
    let stride = row_stride(columns.span().len());
    assert_eq!(source.len(), CHANNELS * STRIP * stride);
    assert!(rows.len() >= STRIP * middle.stride);
    if pairs.len() < stride / 2 {
        pairs.resize(stride / 2, Pair([[0; 2 * STRIP]; CHANNELS]));
    }
    let pairs = &mut pairs[..stride / 2];
    // SAFETY: AVX2 is available.
    unsafe {
        turn(source, stride, pairs);
        across(columns, pairs, middle, rows);
    }
}

/// Second pass: computes row `y` of the output from intermediate rows.
///
/// # Panics
/// If a buffer is too short for the plan, or the processor has no AVX2.
pub(super) fn vertical(axis: &Axis, y: usize, rows: &[u8], middle: Middle, out: &mut [u8]) {
    assert!(is_x86_feature_detected!("avx2"));
    assert!(rows.len() >= middle.ring * middle.stride);
    let (start, weights) = axis.neighbors(y);
    let place = start % middle.ring;
    for (at, length, to) in middle.runs(y, axis.len()) {
        let out = &mut out[to..to + length];
        // SAFETY: AVX2 is available, and rows are inside of the ring.
        unsafe {
            match weights.len() {
                1 => run::<1>(place, weights, rows, at, middle, out),
                2 => run::<2>(place, weights, rows, at, middle, out),
                3 => run::<3>(place, weights, rows, at, middle, out),
                _ => run::<ANY>(place, weights, rows, at, middle, out),
            }
        }
    }
}

/// Transposes rows of channels to pairs of columns.
#[target_feature(enable = "avx2")]
fn turn(rows: &[u8], stride: usize, pairs: &mut [Pair]) {
    let (blocks, _) = pairs.as_chunks_mut::<{ BLOCK / 2 }>();
    assert!(rows.len() == CHANNELS * STRIP * stride && blocks.len() * BLOCK <= stride);
    for channel in 0..CHANNELS {
        let rows = rows[channel * STRIP * stride..].as_ptr();
        for (i, pairs) in blocks.iter_mut().enumerate() {
            // Each register holds two rows, eight apart.
            let mut r = [_mm256_setzero_si256(); 8];
            for (y, row) in r.iter_mut().enumerate() {
                let [low, high] = [y, y + 8].map(|y| {
                    // SAFETY: reads 16 bytes of a row, which has room for all blocks.
                    unsafe { _mm_loadu_si128(rows.add(y * stride + i * BLOCK).cast()) }
                });
                *row = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
            }
            let low16 = |i: usize| _mm256_unpacklo_epi16(r[i], r[i + 1]);
            let high16 = |i: usize| _mm256_unpackhi_epi16(r[i], r[i + 1]);
            let a = [low16(0), low16(2), low16(4), low16(6)];
            let b = [high16(0), high16(2), high16(4), high16(6)];
            for (half, [r01, r23, r45, r67]) in [a, b].into_iter().enumerate() {
                let low = _mm256_unpacklo_epi32(r01, r23);
                let next = _mm256_unpackhi_epi32(r01, r23);
                let low_rest = _mm256_unpacklo_epi32(r45, r67);
                let next_rest = _mm256_unpackhi_epi32(r45, r67);
                let four = [
                    _mm256_unpacklo_epi64(low, low_rest),
                    _mm256_unpackhi_epi64(low, low_rest),
                    _mm256_unpacklo_epi64(next, next_rest),
                    _mm256_unpackhi_epi64(next, next_rest),
                ];
                for (pair, bytes) in pairs[4 * half..].iter_mut().zip(four) {
                    let to = &mut pair.0[channel];
                    // SAFETY: writes the 32 bytes of the array.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes) };
                }
            }
        }
    }
}

/// Computes sixteen intermediate rows from pairs of columns.
#[target_feature(enable = "avx2")]
fn across(columns: &Axis, source: &[Pair], middle: Middle, rows: &mut [u8]) {
    let width = columns.len();
    let stride = middle.stride;
    let runs = match middle.layout {
        Layout::Nhwc => 1,
        Layout::Nchw => CHANNELS,
    };
    assert!(stride == runs * middle.run_stride && rows.len() >= STRIP * stride);
    assert!(middle.run_stride >= width * (CHANNELS / runs) + 16);
    let rows = rows.as_mut_ptr();
    for x in (0..width).step_by(COLUMNS) {
        // Past the last column, the last one is computed again.
        let mut four = [[_mm256_setzero_si256(); CHANNELS]; COLUMNS];
        for (j, column) in four.iter_mut().enumerate() {
            let (first, weights) = columns.pairs((x + j).min(width - 1));
            *column = mix(&source[first..], weights);
        }
        let [a, b, c, d] = four;
        // Each half of a register holds eight rows of the left column, then of the right one.
        let (left, right) = (pack(a, b), pack(c, d));
        // SAFETY: sixteen rows are at the pointer. Less than 16 bytes are written after the last
        // column, for which the second assertion leaves room.
        unsafe {
            match middle.layout {
                Layout::Nhwc => put_pixels(left, right, stride, rows.add(x * CHANNELS)),
                Layout::Nchw => {
                    for channel in 0..CHANNELS {
                        let to = rows.add(channel * middle.run_stride + x);
                        put_plane(left[channel], right[channel], stride, to);
                    }
                }
            }
        }
    }
}

/// Weighted sums of sixteen bytes, for both halves of the weights.
#[derive(Clone, Copy)]
struct Sums {
    high: __m256i,
    low: [__m256i; 2],
}

impl Sums {
    /// Multiplies pairs of neighbors by their weights.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn of(pairs: __m256i, [high, low]: [__m256i; 2]) -> Self {
        let zero = _mm256_setzero_si256();
        Self {
            high: _mm256_add_epi16(_mm256_set1_epi16(ROUND), _mm256_maddubs_epi16(pairs, high)),
            low: [
                _mm256_madd_epi16(_mm256_unpacklo_epi8(pairs, zero), low),
                _mm256_madd_epi16(_mm256_unpackhi_epi8(pairs, zero), low),
            ],
        }
    }

    /// Adds pairs of neighbors, multiplied by their weights.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn add(&mut self, pairs: __m256i, [high, low]: [__m256i; 2]) {
        let zero = _mm256_setzero_si256();
        self.high = _mm256_add_epi16(self.high, _mm256_maddubs_epi16(pairs, high));
        let words = [
            _mm256_unpacklo_epi8(pairs, zero),
            _mm256_unpackhi_epi8(pairs, zero),
        ];
        for (sum, words) in self.low.iter_mut().zip(words) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(words, low));
        }
    }

    /// Adds the sums of both halves and rounds them to integers of 16 bits.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn join(self) -> __m256i {
        const LOW: i32 = LOW_BITS as i32;
        let [first, second] = self.low;
        let carry = _mm256_packus_epi32(
            _mm256_srli_epi32::<LOW>(first),
            _mm256_srli_epi32::<LOW>(second),
        );
        _mm256_srli_epi16::<{ PRECISION_BITS as i32 - LOW }>(_mm256_add_epi16(self.high, carry))
    }
}

/// Repeats the weights of one pair of neighbors over a register.
#[target_feature(enable = "avx2")]
#[inline]
fn spread([high, low]: [i32; 2]) -> [__m256i; 2] {
    [_mm256_set1_epi32(high), _mm256_set1_epi32(low)]
}

/// Returns weighted sums of pairs of columns: by channel, a column of sixteen rows.
#[target_feature(enable = "avx2")]
#[inline]
fn mix(source: &[Pair], weights: &[[i32; 2]]) -> [__m256i; CHANNELS] {
    let load = |bytes: &[u8; 2 * STRIP]| {
        // SAFETY: reads the 32 bytes of the array.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    };
    let source = &source[..weights.len()];
    let (Some(first), Some(&weight)) = (source.first(), weights.first()) else {
        return [_mm256_setzero_si256(); CHANNELS];
    };
    let weight = spread(weight);
    let [red, green, blue] = &first.0;
    let mut sums = [
        Sums::of(load(red), weight),
        Sums::of(load(green), weight),
        Sums::of(load(blue), weight),
    ];
    for i in 1..weights.len() {
        let weights = spread(weights[i]);
        for (sums, bytes) in sums.iter_mut().zip(&source[i].0) {
            sums.add(load(bytes), weights);
        }
    }
    let [red, green, blue] = sums;
    [red.join(), green.join(), blue.join()]
}

/// Narrows two columns to bytes, by channel.
#[target_feature(enable = "avx2")]
#[inline]
fn pack(left: [__m256i; CHANNELS], right: [__m256i; CHANNELS]) -> [__m256i; CHANNELS] {
    let mut both = left;
    for (both, right) in both.iter_mut().zip(right) {
        *both = _mm256_packus_epi16(*both, right);
    }
    both
}

/// Writes four pixels to each of sixteen rows, and four bytes after them.
///
/// SAFETY: the rows, which are `stride` bytes apart, must have room for these sixteen bytes.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn put_pixels(
    [ab_red, ab_green, ab_blue]: [__m256i; CHANNELS],
    [cd_red, cd_green, cd_blue]: [__m256i; CHANNELS],
    stride: usize,
    out: *mut u8,
) {
    // Interleaves two bytes of each of eight rows, in their order in the output.
    let two = |red: __m256i, green: __m256i, blue: __m256i| {
        let next_red = _mm256_bsrli_epi128::<8>(red);
        [
            _mm256_unpacklo_epi8(red, green),
            _mm256_unpacklo_epi8(blue, next_red),
            _mm256_unpackhi_epi8(green, blue),
        ]
    };
    let [b01, b23, b45] = two(ab_red, ab_green, ab_blue);
    let [b67, b89, b1011] = two(cd_red, cd_green, cd_blue);
    let zero = _mm256_setzero_si256();
    // Each register holds four rows of each half.
    let low = [(b01, b23), (b45, b67), (b89, b1011)].map(|(a, b)| _mm256_unpacklo_epi16(a, b));
    let high = [(b01, b23), (b45, b67), (b89, b1011)].map(|(a, b)| _mm256_unpackhi_epi16(a, b));
    // `upper` runs over rows 0 to 7, `lower` over rows 8 to 15.
    let (mut upper, mut lower) = (out, out.wrapping_add(8 * stride));
    for [b0, b4, b8] in [low, high] {
        let first = (
            _mm256_unpacklo_epi32(b0, b4),
            _mm256_unpacklo_epi32(b8, zero),
        );
        let last = (
            _mm256_unpackhi_epi32(b0, b4),
            _mm256_unpackhi_epi32(b8, zero),
        );
        let rows = [
            _mm256_unpacklo_epi64(first.0, first.1),
            _mm256_unpackhi_epi64(first.0, first.1),
            _mm256_unpacklo_epi64(last.0, last.1),
            _mm256_unpackhi_epi64(last.0, last.1),
        ];
        for rows in rows {
            // SAFETY: rows have room for the 16 bytes.
            unsafe {
                _mm_storeu_si128(upper.cast(), _mm256_castsi256_si128(rows));
                _mm_storeu_si128(lower.cast(), _mm256_extracti128_si256::<1>(rows));
            }
            (upper, lower) = (upper.wrapping_add(stride), lower.wrapping_add(stride));
        }
    }
}

/// Writes four bytes to each of sixteen rows.
///
/// SAFETY: as [`put_pixels`].
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn put_plane(left: __m256i, right: __m256i, stride: usize, out: *mut u8) {
    let ab = _mm256_unpacklo_epi8(left, _mm256_bsrli_epi128::<8>(left));
    let cd = _mm256_unpacklo_epi8(right, _mm256_bsrli_epi128::<8>(right));
    // The first register holds rows 0 to 3 and 8 to 11, the second one the others.
    for (four, rows) in [_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd)]
        .into_iter()
        .enumerate()
    {
        let mut bytes = [0; 32];
        // SAFETY: writes the 32 bytes of the array.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), rows) };
        for (i, bytes) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let row = four * 4 + i % 4 + i / 4 * 8;
            // SAFETY: rows have room for the 4 bytes.
            unsafe { out.add(row * stride).cast::<[u8; 4]>().write(*bytes) };
        }
    }
}

/// Splits as many pixels into channels as `out` has room for.
///
/// # Panics
/// If `pixels` is too short, the channels are not of one length, or the processor has no AVX2.
pub(super) fn split(pixels: &[u8], out: [&mut [u8]; CHANNELS]) {
    assert!(is_x86_feature_detected!("avx2"));
    // SAFETY: just checked.
    unsafe { split_rows(pixels, out) }
}

#[target_feature(enable = "avx2")]
fn split_rows(pixels: &[u8], out: [&mut [u8]; CHANNELS]) {
    /// For each third of 16 pixels, by output position, the index of the channel's byte; -1 for bytes in other thirds.
    const PLACES: [[[i8; 16]; 3]; CHANNELS] = {
        let mut places = [[[-1; 16]; 3]; CHANNELS];
        let mut byte = 0;
        while byte < 48 {
            places[byte % 3][byte / 16][byte / 3] = (byte % 16) as i8;
            byte += 1;
        }
        places
    };
    let [red, green, blue] = out;
    let width = red.len();
    assert!(green.len() == width && blue.len() == width && pixels.len() >= 3 * width);
    let mut x = 0;
    while x + 16 <= width {
        let thirds = [0, 16, 32].map(|at| {
            let bytes = &pixels[3 * x + at..][..16];
            // SAFETY: reads the 16 bytes of the slice.
            unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
        });
        for (plane, places) in [&mut *red, &mut *green, &mut *blue]
            .into_iter()
            .zip(&PLACES)
        {
            let mut channel = _mm_setzero_si128();
            for (third, places) in thirds.iter().zip(places) {
                // SAFETY: reads the 16 bytes of the array.
                let places = unsafe { _mm_loadu_si128(places.as_ptr().cast()) };
                channel = _mm_or_si128(channel, _mm_shuffle_epi8(*third, places));
            }
            store(channel, &mut plane[x..]);
        }
        x += 16;
    }
    for (x, pixel) in (x..width).zip(pixels[3 * x..].chunks_exact(3)) {
        (red[x], green[x], blue[x]) = (pixel[0], pixel[1], pixel[2]);
    }
}

/// Computes one run of an output row, which begins `at` bytes into each intermediate row. `place` is the position
/// of the first intermediate row in the ring, `PAIRS` the number of pairs of weights or [`ANY`].
///
/// SAFETY: `rows` must hold the whole ring.
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop)] // two slices are read
unsafe fn run<const PAIRS: usize>(
    place: usize,
    weights: &[[i32; 2]],
    rows: &[u8],
    at: usize,
    middle: Middle,
    out: &mut [u8],
) {
    // A run is followed by at least 32 bytes of its own row.
    assert!(at + out.len().next_multiple_of(32) <= middle.stride);
    let source = rows[at..].as_ptr();
    // Past the last input row, another row is read with a weight of 0.
    let offset = |t: usize| middle.row(place, if t < middle.ring { t } else { 0 });
    let offsets: [[usize; 2]; PAIRS] = std::array::from_fn(|i| [offset(2 * i), offset(2 * i + 1)]);
    let count = if PAIRS == ANY { weights.len() } else { PAIRS };
    let weights = &weights[..count];
    for (chunk, out) in out.chunks_mut(32).enumerate() {
        let load = |[a, b]: [usize; 2]| {
            let [a, b] = [a, b].map(|row| {
                // SAFETY: rows begin inside of the ring, and the assertion bounds the bytes that
                // are read from a row.
                unsafe { _mm256_loadu_si256(source.add(row + chunk * 32).cast()) }
            });
            [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)]
        };
        let [even, odd] = load(offsets.first().copied().unwrap_or([offset(0), offset(1)]));
        let weight = spread(weights[0]);
        let mut sums = [Sums::of(even, weight), Sums::of(odd, weight)];
        for i in 1..count {
            let offsets = match offsets.get(i) {
                Some(offsets) => *offsets,
                None => [offset(2 * i), offset(2 * i + 1)],
            };
            let [even, odd] = load(offsets);
            let weight = spread(weights[i]);
            sums[0].add(even, weight);
            sums[1].add(odd, weight);
        }
        let bytes = _mm256_packus_epi16(sums[0].join(), sums[1].join());
        let mut last = [0u8; 32];
        let full = out.len() == 32;
        let to = if full {
            out.as_mut_ptr()
        } else {
            last.as_mut_ptr()
        };
        // SAFETY: both destinations have 32 bytes.
        unsafe { _mm256_storeu_si256(to.cast(), bytes) };
        if !full {
            out.copy_from_slice(&last[..out.len()]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: __m128i, out: &mut [u8]) {
    let out = &mut out[..16];
    // SAFETY: writes the 16 bytes of the slice.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) }
}
