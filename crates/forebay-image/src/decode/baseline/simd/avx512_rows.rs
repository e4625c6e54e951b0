//! Rows with AVX-512: upsampling and colour, as in [`avx2_rows`] with twice the samples a step.

use super::avx2_rows::{self, PIXELS, part, part_mut, steps, store_pixels};
use super::{color, upsample};
use std::arch::x86_64::*;

/// Chroma samples of a step when upsampling.
const SAMPLES: usize = 32;

#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn load(bytes: &[u8; 32]) -> __m512i {
    // SAFETY: reads the 32 bytes.
    _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
}

/// Stores the low bytes of `even` and `odd` in turns.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn store_in_turns(even: __m512i, odd: __m512i, out: &mut [u8; 2 * SAMPLES]) {
    let value = _mm512_or_si512(even, _mm512_slli_epi16::<8>(odd));
    // SAFETY: writes the 64 bytes.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), value) }
}

#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub(super) fn horizontal(row: &[u8], out: &mut [u8]) {
    let width = row.len();
    if width < SAMPLES + 2 {
        return avx2_rows::horizontal(row, out);
    }
    upsample::horizontal_in(row, 0..1, out);
    upsample::horizontal_in(row, width - 1..width, out);
    for at in steps(1, width - 1, SAMPLES) {
        let here = load(part(row, at));
        let near = _mm512_add_epi16(here, _mm512_add_epi16(here, here));
        let left = _mm512_add_epi16(load(part(row, at - 1)), _mm512_set1_epi16(1));
        let right = _mm512_add_epi16(load(part(row, at + 1)), _mm512_set1_epi16(2));
        let even = _mm512_srli_epi16::<2>(_mm512_add_epi16(near, left));
        let odd = _mm512_srli_epi16::<2>(_mm512_add_epi16(near, right));
        store_in_turns(even, odd, part_mut(out, 2 * at));
    }
}

#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub(super) fn both(near: &[u8], far: &[u8], out: &mut [u8]) {
    let width = near.len();
    if width < SAMPLES + 2 {
        return avx2_rows::both(near, far, out);
    }
    upsample::both_in(near, far, 0..1, out);
    upsample::both_in(near, far, width - 1..width, out);
    for at in steps(1, width - 1, SAMPLES) {
        let left = column(near, far, at - 1);
        let here = column(near, far, at);
        let right = column(near, far, at + 1);
        let here = _mm512_add_epi16(here, _mm512_add_epi16(here, here));
        let left = _mm512_add_epi16(left, _mm512_set1_epi16(8));
        let right = _mm512_add_epi16(right, _mm512_set1_epi16(7));
        let even = _mm512_srli_epi16::<4>(_mm512_add_epi16(here, left));
        let odd = _mm512_srli_epi16::<4>(_mm512_add_epi16(here, right));
        store_in_turns(even, odd, part_mut(out, 2 * at));
    }
}

/// Three times the nearer sample plus the farther one, for 32 columns.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn column(near: &[u8], far: &[u8], at: usize) -> __m512i {
    let near = load(part(near, at));
    let far = load(part(far, at));
    _mm512_add_epi16(_mm512_add_epi16(near, far), _mm512_add_epi16(near, near))
}

#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub(super) fn ycc(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    let width = y.len();
    if width < PIXELS {
        return avx2_rows::ycc(y, cb, cr, out);
    }
    for at in steps(0, width, PIXELS) {
        let channels = rgb(part(y, at), part(cb, at), part(cr, at));
        store_pixels(channels, part_mut(out, 3 * at));
    }
}

/// Red, green and blue of 32 pixels.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn rgb(y: &[u8; PIXELS], cb: &[u8; PIXELS], cr: &[u8; PIXELS]) -> [__m256i; 3] {
    let zero = _mm512_setzero_si512();
    let channels = mix(load(y), load(cb), load(cr));
    channels.map(|channel| _mm512_cvtusepi16_epi8(_mm512_max_epi16(channel, zero)))
}

/// Red, green and blue, not yet saturated, of samples in 16 bits; the arithmetic is that of `avx2_rows`.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn mix(y: __m512i, cb: __m512i, cr: __m512i) -> [__m512i; 3] {
    let middle = _mm512_set1_epi16(128);
    let cb = _mm512_sub_epi16(cb, middle);
    let cr = _mm512_sub_epi16(cr, middle);
    // (x * factor + 2^15) >> 16, by way of twice the product.
    let part = |twice: __m512i, factor: i16| {
        let high = _mm512_mulhi_epi16(twice, _mm512_set1_epi16(factor));
        _mm512_srai_epi16::<1>(_mm512_add_epi16(high, _mm512_set1_epi16(1)))
    };
    let twice_cb = _mm512_add_epi16(cb, cb);
    let twice_cr = _mm512_add_epi16(cr, cr);
    let red = _mm512_add_epi16(part(twice_cr, 26_345), _mm512_add_epi16(cr, y));
    let blue = _mm512_add_epi16(part(twice_cb, -14_942), _mm512_add_epi16(twice_cb, y));
    let factors = _mm512_set1_epi32(18_734 << 16 | i32::from(-22_554i16 as u16));
    let half = _mm512_set1_epi32(1 << 15);
    let low = _mm512_madd_epi16(_mm512_unpacklo_epi16(cb, cr), factors);
    let high = _mm512_madd_epi16(_mm512_unpackhi_epi16(cb, cr), factors);
    let mix = _mm512_packs_epi32(
        _mm512_srai_epi32::<16>(_mm512_add_epi32(low, half)),
        _mm512_srai_epi32::<16>(_mm512_add_epi32(high, half)),
    );
    let green = _mm512_add_epi16(mix, _mm512_sub_epi16(y, cr));
    [red, green, blue]
}

/// Pixels of a step to planes.
const PLANE: usize = 64;

#[target_feature(enable = "avx2,avx512f,avx512bw")]
pub(super) fn ycc_planes(y: &[u8], cb: &[u8], cr: &[u8], out: [&mut [u8]; 3]) {
    let width = y.len();
    if width < PLANE {
        return color::ycc_planes(y, cb, cr, out);
    }
    let [red, green, blue] = out;
    let zero = _mm512_setzero_si512();
    for at in steps(0, width, PLANE) {
        let (y, cb, cr) = (
            load_64(part(y, at)),
            load_64(part(cb, at)),
            load_64(part(cr, at)),
        );
        // Packing undoes the order that unpacking makes.
        let low = mix(
            _mm512_unpacklo_epi8(y, zero),
            _mm512_unpacklo_epi8(cb, zero),
            _mm512_unpacklo_epi8(cr, zero),
        );
        let high = mix(
            _mm512_unpackhi_epi8(y, zero),
            _mm512_unpackhi_epi8(cb, zero),
            _mm512_unpackhi_epi8(cr, zero),
        );
        let planes = [&mut *red, &mut *green, &mut *blue];
        for ((plane, low), high) in planes.into_iter().zip(low).zip(high) {
            let to: &mut [u8; PLANE] = part_mut(plane, at);
            // SAFETY: writes the 64 bytes.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_packus_epi16(low, high)) };
        }
    }
}

#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn load_64(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: reads the 64 bytes.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}
