//! The two passes with AVX2. A weight has 23 bits and `vpmaddwd` takes 16, so it is applied in two
//! halves; the sums are exact and the result equals that of the portable passes, bit for bit.
//!
//! `vpmaddwd` adds two neighbors. For the first pass these are two columns, so a strip of sixteen
//! rows is transposed, channel by channel, into [`Pair`]s of columns: each register holds the same
//! columns of eight rows, and one load of a weight serves sixteen rows of three channels.
#![expect(unsafe_code)] // intrinsics and unchecked loads; every bound is asserted in `resize`

use super::axis::{Axis, LOW_BITS};
use super::{HALF, Middle, PRECISION_BITS, STRIP};
use crate::output::Layout;
use std::arch::x86_64::*;

const CHANNELS: usize = 3;
/// Columns of the input that are transposed at once.
const BLOCK: usize = 16;
/// Columns of the output that are computed together.
const COLUMNS: usize = 4;
const _: () = assert!(STRIP == 16);

/// Two columns of a strip, by channel: both bytes of row 0, of row 1, and so on.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct Pair([[u8; 2 * STRIP]; CHANNELS]);

/// Bytes from one row of a channel to the next.
pub(super) fn row_stride(width: usize) -> usize {
    width.next_multiple_of(BLOCK)
}

/// First pass: a strip of rows of each channel, [`row_stride`] bytes apart, to intermediate rows.
/// The axis must have pairs. `pairs` is scratch memory.
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

/// Second pass: intermediate rows to row `y` of the output.
///
/// # Panics
/// If a buffer is too short for the plan, or the processor has no AVX2.
pub(super) fn vertical(axis: &Axis, y: usize, rows: &[u8], middle: Middle, out: &mut [u8]) {
    assert!(is_x86_feature_detected!("avx2"));
    assert!(rows.len() >= middle.ring * middle.stride);
    for (at, length, to) in middle.runs(y, axis.len()) {
        // SAFETY: AVX2 is available, and rows are inside of the ring.
        unsafe { run(axis, y, rows, at, middle, &mut out[to..to + length]) };
    }
}

/// Transposes rows of channels to pairs of columns.
#[target_feature(enable = "avx2")]
fn turn(rows: &[u8], stride: usize, pairs: &mut [Pair]) {
    for (channel, rows) in rows.chunks_exact(STRIP * stride).enumerate() {
        let (blocks, _) = pairs.as_chunks_mut::<{ BLOCK / 2 }>();
        for (i, pairs) in blocks.iter_mut().enumerate() {
            // Two rows in each register, eight apart.
            let mut r = [_mm256_setzero_si256(); 8];
            for (y, row) in r.iter_mut().enumerate() {
                let [low, high] = [y, y + 8].map(|y| {
                    let bytes = &rows[y * stride + i * BLOCK..][..BLOCK];
                    // SAFETY: reads the 16 bytes of the slice.
                    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
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

/// Pairs of columns to sixteen intermediate rows.
#[target_feature(enable = "avx2")]
fn across(columns: &Axis, source: &[Pair], middle: Middle, rows: &mut [u8]) {
    let width = columns.len();
    for x in (0..width).step_by(COLUMNS) {
        // Columns past the last one repeat it.
        let mut four = [[_mm256_setzero_si256(); CHANNELS]; COLUMNS];
        for (j, column) in four.iter_mut().enumerate() {
            let (first, weights) = columns.pairs((x + j).min(width - 1));
            *column = mix(&source[first..][..weights.len()], weights);
        }
        let [a, b, c, d] = four;
        // In each half of a register: eight rows of the left column, and of the right one.
        let (left, right) = (pack(a, b), pack(c, d));
        match middle.layout {
            Layout::Nhwc => put_pixels(left, right, middle.stride, &mut rows[x * CHANNELS..]),
            Layout::Nchw => {
                for channel in 0..CHANNELS {
                    let at = channel * middle.run_stride + x;
                    put_plane(
                        left[channel],
                        right[channel],
                        middle.stride,
                        &mut rows[at..],
                    );
                }
            }
        }
    }
}

/// Weighted sums of pairs of columns: by channel, a column of sixteen rows.
#[target_feature(enable = "avx2")]
#[inline]
fn mix(source: &[Pair], weights: &[[i32; 2]]) -> [__m256i; CHANNELS] {
    let zero = _mm256_setzero_si256();
    // Rows 0 to 3 and 8 to 11, then the others: all sums together do not fit into the registers.
    let even = mix_rows(source, weights, |bytes| _mm256_unpacklo_epi8(bytes, zero));
    let odd = mix_rows(source, weights, |bytes| _mm256_unpackhi_epi8(bytes, zero));
    let mut all = [zero; CHANNELS];
    for (all, (even, odd)) in all.iter_mut().zip(even.into_iter().zip(odd)) {
        *all = _mm256_packs_epi32(even, odd);
    }
    all
}

/// The bytes of two columns, by channel.
#[target_feature(enable = "avx2")]
#[inline]
fn pack(left: [__m256i; CHANNELS], right: [__m256i; CHANNELS]) -> [__m256i; CHANNELS] {
    let mut both = left;
    for (both, right) in both.iter_mut().zip(right) {
        *both = _mm256_packus_epi16(*both, right);
    }
    both
}

/// As [`mix`], in the rows that `rows` selects.
#[target_feature(enable = "avx2")]
#[inline]
fn mix_rows(
    source: &[Pair],
    weights: &[[i32; 2]],
    rows: impl Fn(__m256i) -> __m256i + Copy,
) -> [__m256i; CHANNELS] {
    let mut pairs = source.iter().zip(weights);
    // There is at least one.
    let mut sums = match pairs.next() {
        Some(pair) => products(pair, rows),
        None => return [_mm256_setzero_si256(); CHANNELS],
    };
    for pair in pairs {
        for (sums, products) in sums.iter_mut().zip(products(pair, rows)) {
            for (sum, product) in sums.iter_mut().zip(products) {
                *sum = _mm256_add_epi32(*sum, product);
            }
        }
    }
    let half = _mm256_set1_epi32(HALF);
    let mut rounded = [half; CHANNELS];
    for (rounded, [high, low]) in rounded.iter_mut().zip(sums) {
        *rounded = join(high, _mm256_add_epi32(low, half));
    }
    rounded
}

/// By channel: a pair of columns times the high and the low halves of its weights, in the rows that
/// `rows` selects.
#[target_feature(enable = "avx2")]
#[inline]
fn products(
    (pair, &[high, low]): (&Pair, &[i32; 2]),
    rows: impl Fn(__m256i) -> __m256i,
) -> [[__m256i; 2]; CHANNELS] {
    let weights = [_mm256_set1_epi32(high), _mm256_set1_epi32(low)];
    let mut products = [[_mm256_setzero_si256(); 2]; CHANNELS];
    for (products, bytes) in products.iter_mut().zip(&pair.0) {
        // SAFETY: reads the 32 bytes of the array.
        let rows = rows(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) });
        for (product, weight) in products.iter_mut().zip(weights) {
            *product = _mm256_madd_epi16(rows, weight);
        }
    }
    products
}

/// Writes four pixels to each of sixteen rows, and four bytes after them.
#[target_feature(enable = "avx2")]
#[inline]
fn put_pixels(
    [ab_red, ab_green, ab_blue]: [__m256i; CHANNELS],
    [cd_red, cd_green, cd_blue]: [__m256i; CHANNELS],
    stride: usize,
    out: &mut [u8],
) {
    // Two bytes of each of eight rows, in their order.
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
    // Of four rows each.
    let low = [(b01, b23), (b45, b67), (b89, b1011)].map(|(a, b)| _mm256_unpacklo_epi16(a, b));
    let high = [(b01, b23), (b45, b67), (b89, b1011)].map(|(a, b)| _mm256_unpackhi_epi16(a, b));
    for (four, [b0, b4, b8]) in [low, high].into_iter().enumerate() {
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
        for (i, rows) in rows.into_iter().enumerate() {
            let row = four * 4 + i;
            store(_mm256_castsi256_si128(rows), &mut out[row * stride..]);
            let rows = _mm256_extracti128_si256::<1>(rows);
            store(rows, &mut out[(row + 8) * stride..]);
        }
    }
}

/// Writes four bytes to each of sixteen rows.
#[target_feature(enable = "avx2")]
#[inline]
fn put_plane(left: __m256i, right: __m256i, stride: usize, out: &mut [u8]) {
    let ab = _mm256_unpacklo_epi8(left, _mm256_bsrli_epi128::<8>(left));
    let cd = _mm256_unpacklo_epi8(right, _mm256_bsrli_epi128::<8>(right));
    // Rows 0 to 3 and 8 to 11, and the others.
    for (four, rows) in [_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd)]
        .into_iter()
        .enumerate()
    {
        let mut bytes = [0; 32];
        // SAFETY: writes the 32 bytes of the array.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), rows) };
        for (i, bytes) in bytes.as_chunks::<4>().0.iter().enumerate() {
            let row = four * 4 + i % 4 + i / 4 * 8;
            out[row * stride..][..4].copy_from_slice(bytes);
        }
    }
}

/// Splits pixels into channels, as many as `out` has room for.
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
    /// The bytes of a channel in each third of 16 pixels, by position; -1 for those of others.
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

/// One run of one output row: the one that begins `at` bytes into each intermediate row.
///
/// SAFETY: `rows` must hold the whole ring.
#[target_feature(enable = "avx2")]
unsafe fn run(axis: &Axis, y: usize, rows: &[u8], at: usize, middle: Middle, out: &mut [u8]) {
    let half = _mm256_set1_epi32(HALF);
    let zero = _mm256_setzero_si256();
    let (start, high, low) = axis.halves(y);
    let (first, end) = (
        middle.row(start % middle.ring, 0),
        middle.ring * middle.stride,
    );
    // A run is followed by at least 32 bytes of its own row.
    assert!(at + out.len().next_multiple_of(32) <= middle.stride);
    let source = rows[at..].as_ptr();
    for (chunk, out) in out.chunks_mut(32).enumerate() {
        let mut sums_high = [zero; 4];
        let mut sums_low = [half; 4];
        let mut row = first;
        for (&high, &low) in high.iter().zip(low) {
            // Past the last input row, other rows are read with weights of 0.
            let [a, b] = [(); 2].map(|()| {
                // SAFETY: rows begin inside of the ring, and the assertion bounds the bytes read of
                // one.
                let bytes = unsafe { _mm256_loadu_si256(source.add(row + chunk * 32).cast()) };
                row += middle.stride;
                if row == end {
                    row = 0;
                }
                bytes
            });
            let (h, l) = (_mm256_set1_epi32(high), _mm256_set1_epi32(low));
            let (even, odd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
            let quarters = [
                _mm256_unpacklo_epi8(even, zero),
                _mm256_unpackhi_epi8(even, zero),
                _mm256_unpacklo_epi8(odd, zero),
                _mm256_unpackhi_epi8(odd, zero),
            ];
            for (i, v) in quarters.into_iter().enumerate() {
                sums_high[i] = _mm256_add_epi32(sums_high[i], _mm256_madd_epi16(v, h));
                sums_low[i] = _mm256_add_epi32(sums_low[i], _mm256_madd_epi16(v, l));
            }
        }
        let d: [__m256i; 4] = std::array::from_fn(|i| join(sums_high[i], sums_low[i]));
        let bytes = _mm256_packus_epi16(
            _mm256_packs_epi32(d[0], d[1]),
            _mm256_packs_epi32(d[2], d[3]),
        );
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

/// The sum of both halves, rounded to an integer.
#[inline]
#[target_feature(enable = "avx2")]
fn join(high: __m256i, low: __m256i) -> __m256i {
    let sum = _mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS as i32), low);
    _mm256_srai_epi32(sum, PRECISION_BITS as i32)
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: __m128i, out: &mut [u8]) {
    let out = &mut out[..16];
    // SAFETY: writes the 16 bytes of the slice.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) }
}
