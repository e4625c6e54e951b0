//! Upsampling and color conversion of rows with AVX-512, as in [`avx2_rows`] with twice the samples
//! per step.

use super::avx2_rows::{self, PIXELS, part, part_mut, steps, store_pixels};
use super::x86::rows;
use super::{color, upsample};
use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm512_add_epi16 as add_epi16, _mm512_mulhrs_epi16 as mulhrs_epi16,
    _mm512_packs_epi32 as packs_epi32, _mm512_set1_epi16 as set1_epi16,
    _mm512_set1_epi32 as set1_epi32, _mm512_srai_epi32 as srai_epi32,
    _mm512_srli_epi16 as srli_epi16, _mm512_sub_epi16 as sub_epi16,
    _mm512_unpackhi_epi16 as unpackhi_epi16, _mm512_unpacklo_epi16 as unpacklo_epi16,
};

rows!("avx2,avx512f,avx512bw", __m512i, 32, avx2_rows);

#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn load(bytes: &[u8; SAMPLES]) -> __m512i {
    // SAFETY: reads the 32 bytes.
    _mm512_cvtepu8_epi16(unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn add_dot(sum: __m512i, pairs: __m512i, factors: __m512i) -> __m512i {
    _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, factors))
}

/// Interleaves the low bytes of `even` and `odd`.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn store_in_turns(even: __m512i, odd: __m512i, out: &mut [u8; 2 * SAMPLES]) {
    let value = _mm512_or_si512(even, _mm512_slli_epi16::<8>(odd));
    // SAFETY: writes the 64 bytes.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), value) }
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

/// Returns red, green and blue of 32 pixels.
#[target_feature(enable = "avx2,avx512f,avx512bw")]
#[inline]
fn rgb(y: &[u8; PIXELS], cb: &[u8; PIXELS], cr: &[u8; PIXELS]) -> [__m256i; 3] {
    let zero = _mm512_setzero_si512();
    let channels = mix(load(y), load(cb), load(cr));
    channels.map(|channel| _mm512_cvtusepi16_epi8(_mm512_max_epi16(channel, zero)))
}

/// Pixels per step of the conversion to planes.
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
        // Packing restores the order that unpacking changes.
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
