//! Upsampling and color conversion of rows with AVX2.
//!
//! Vectors cover a row from its start; the last one is moved back so that it ends with the row, and
//! computes some samples twice. Rows shorter than a vector use the portable code.

pub(super) use super::parts::{part, part_mut, steps};
use super::x86::rows;
use super::{color, upsample};
use std::arch::x86_64::*;
use std::arch::x86_64::{
    _mm256_add_epi16 as add_epi16, _mm256_mulhrs_epi16 as mulhrs_epi16,
    _mm256_packs_epi32 as packs_epi32, _mm256_set1_epi16 as set1_epi16,
    _mm256_set1_epi32 as set1_epi32, _mm256_srai_epi32 as srai_epi32,
    _mm256_srli_epi16 as srli_epi16, _mm256_sub_epi16 as sub_epi16,
    _mm256_unpackhi_epi16 as unpackhi_epi16, _mm256_unpacklo_epi16 as unpacklo_epi16,
};

/// Pixels per step of the color conversion.
pub(super) const PIXELS: usize = 32;

rows!("avx2", __m256i, 16, upsample);

#[target_feature(enable = "avx2")]
#[inline]
fn load(bytes: &[u8; SAMPLES]) -> __m256i {
    // SAFETY: reads the 16 bytes.
    _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: reads the 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store_32(bytes: &mut [u8; 32], value: __m256i) {
    // SAFETY: writes the 32 bytes.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), value) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn add_dot(sum: __m256i, pairs: __m256i, factors: __m256i) -> __m256i {
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, factors))
}

/// Interleaves the low bytes of `even` and `odd`.
#[target_feature(enable = "avx2")]
#[inline]
fn store_in_turns(even: __m256i, odd: __m256i, out: &mut [u8; 2 * SAMPLES]) {
    store_32(out, _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd)));
}

/// The portable loop, vectorized by the compiler for AVX2.
#[target_feature(enable = "avx2")]
pub(super) fn vertical(near: &[u8], far: &[u8], bias: u16, out: &mut [u8]) {
    upsample::vertical(near, far, bias, out);
}

#[target_feature(enable = "avx2")]
pub(super) fn ycc(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    let width = y.len();
    if width < PIXELS {
        return color::ycc(y, cb, cr, out);
    }
    for at in steps(0, width, PIXELS) {
        let channels = rgb_32(part(y, at), part(cb, at), part(cr, at));
        store_pixels(channels, part_mut(out, 3 * at));
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn ycc_planes(y: &[u8], cb: &[u8], cr: &[u8], out: [&mut [u8]; 3]) {
    let width = y.len();
    if width < PIXELS {
        return color::ycc_planes(y, cb, cr, out);
    }
    let [red, green, blue] = out;
    for at in steps(0, width, PIXELS) {
        let channels = rgb_32(part(y, at), part(cb, at), part(cr, at));
        let planes = [&mut *red, &mut *green, &mut *blue];
        for (plane, channel) in planes.into_iter().zip(channels) {
            store_32(part_mut(plane, at), channel);
        }
    }
}

/// Returns red, green and blue of 32 pixels.
#[target_feature(enable = "avx2")]
#[inline]
fn rgb_32(y: &[u8; 32], cb: &[u8; 32], cr: &[u8; 32]) -> [__m256i; 3] {
    let zero = _mm256_setzero_si256();
    let all = [load_32(y), load_32(cb), load_32(cr)];
    // Packing restores the order that unpacking changes.
    let [y, cb, cr] = all.map(|bytes| _mm256_unpacklo_epi8(bytes, zero));
    let low = mix(y, cb, cr);
    let [y, cb, cr] = all.map(|bytes| _mm256_unpackhi_epi8(bytes, zero));
    let high = mix(y, cb, cr);
    [0, 1, 2].map(|i| _mm256_packus_epi16(low[i], high[i]))
}

#[target_feature(enable = "avx2")]
pub(super) fn interleave(rows: [&[u8]; 3], out: &mut [u8]) {
    let width = rows[0].len();
    if width < PIXELS {
        return color::interleave(rows, out);
    }
    for at in steps(0, width, PIXELS) {
        let channels = [
            load_32(part(rows[0], at)),
            load_32(part(rows[1], at)),
            load_32(part(rows[2], at)),
        ];
        store_pixels(channels, part_mut(out, 3 * at));
    }
}

/// Returns the source byte of a channel for each of 16 output bytes; -1 for bytes of other channels.
const fn places(piece: usize, channel: usize) -> [i8; 16] {
    let mut places = [-1; 16];
    let mut i = 0;
    while i < 16 {
        let byte = piece * 16 + i;
        if byte % 3 == channel {
            places[i] = (byte / 3) as i8;
        }
        i += 1;
    }
    places
}

/// [`places`] for three pieces and three channels.
const PLACES: [[[i8; 16]; 3]; 3] = {
    let mut all = [[[0; 16]; 3]; 3];
    let mut piece = 0;
    while piece < 3 {
        let mut channel = 0;
        while channel < 3 {
            all[piece][channel] = places(piece, channel);
            channel += 1;
        }
        piece += 1;
    }
    all
};

/// Interleaves 32 bytes of each channel to 32 pixels.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_pixels(channels: [__m256i; 3], out: &mut [u8; 3 * PIXELS]) {
    // Each piece holds 16 bytes of the first 16 pixels, and 16 bytes of the last 16 pixels.
    let mut pieces = [_mm256_setzero_si256(); 3];
    for (piece, places) in pieces.iter_mut().zip(&PLACES) {
        for (channel, places) in channels.iter().zip(places) {
            // SAFETY: reads the 16 bytes of the constant.
            let places = unsafe { _mm_loadu_si128(places.as_ptr().cast()) };
            let bytes = _mm256_shuffle_epi8(*channel, _mm256_broadcastsi128_si256(places));
            *piece = _mm256_or_si256(*piece, bytes);
        }
    }
    let [a, b, c] = pieces;
    let (rows, _) = out.as_chunks_mut::<32>();
    store_32(&mut rows[0], _mm256_permute2x128_si256::<0x20>(a, b));
    store_32(&mut rows[1], _mm256_permute2x128_si256::<0x30>(c, a));
    store_32(&mut rows[2], _mm256_permute2x128_si256::<0x31>(b, c));
}
