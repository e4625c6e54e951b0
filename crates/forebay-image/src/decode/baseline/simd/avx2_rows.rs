//! Rows with AVX2: upsampling and colour.
//!
//! Vectors cover a row from its start; the last one is moved back so that it ends with the row, and does some
//! samples twice. Rows that are shorter than a vector take the portable way.

pub(super) use super::parts::{part, part_mut, steps};
use super::{color, upsample};
use std::arch::x86_64::*;

/// Chroma samples of a step when upsampling.
const SAMPLES: usize = 16;
/// Pixels of a step of the colour conversion.
pub(super) const PIXELS: usize = 32;

#[target_feature(enable = "avx2")]
#[inline]
fn load_16(bytes: &[u8; 16]) -> __m256i {
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

/// Low bytes of `even` and `odd` in turns.
#[target_feature(enable = "avx2")]
#[inline]
fn in_turns(even: __m256i, odd: __m256i) -> __m256i {
    _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd))
}

#[target_feature(enable = "avx2")]
pub(super) fn horizontal(row: &[u8], out: &mut [u8]) {
    let width = row.len();
    if width < SAMPLES + 2 {
        return upsample::horizontal(row, out);
    }
    upsample::horizontal_in(row, 0..1, out);
    upsample::horizontal_in(row, width - 1..width, out);
    for at in steps(1, width - 1, SAMPLES) {
        let here = load_16(part(row, at));
        let near = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
        let left = _mm256_add_epi16(load_16(part(row, at - 1)), _mm256_set1_epi16(1));
        let right = _mm256_add_epi16(load_16(part(row, at + 1)), _mm256_set1_epi16(2));
        let even = _mm256_srli_epi16::<2>(_mm256_add_epi16(near, left));
        let odd = _mm256_srli_epi16::<2>(_mm256_add_epi16(near, right));
        store_32(part_mut(out, 2 * at), in_turns(even, odd));
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn both(near: &[u8], far: &[u8], out: &mut [u8]) {
    let width = near.len();
    if width < SAMPLES + 2 {
        return upsample::both(near, far, out);
    }
    upsample::both_in(near, far, 0..1, out);
    upsample::both_in(near, far, width - 1..width, out);
    for at in steps(1, width - 1, SAMPLES) {
        let left = column(near, far, at - 1);
        let here = column(near, far, at);
        let right = column(near, far, at + 1);
        let here = _mm256_add_epi16(here, _mm256_add_epi16(here, here));
        let left = _mm256_add_epi16(left, _mm256_set1_epi16(8));
        let right = _mm256_add_epi16(right, _mm256_set1_epi16(7));
        let even = _mm256_srli_epi16::<4>(_mm256_add_epi16(here, left));
        let odd = _mm256_srli_epi16::<4>(_mm256_add_epi16(here, right));
        store_32(part_mut(out, 2 * at), in_turns(even, odd));
    }
}

/// Three times the nearer sample plus the farther one, for 16 columns.
#[target_feature(enable = "avx2")]
#[inline]
fn column(near: &[u8], far: &[u8], at: usize) -> __m256i {
    let near = load_16(part(near, at));
    let far = load_16(part(far, at));
    _mm256_add_epi16(_mm256_add_epi16(near, far), _mm256_add_epi16(near, near))
}

/// The portable loop, which the compiler turns into vectors.
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
        let low = rgb_16(part(y, at), part(cb, at), part(cr, at));
        let next = at + PIXELS / 2;
        let high = rgb_16(part(y, next), part(cb, next), part(cr, next));
        let mut channels = [_mm256_setzero_si256(); 3];
        for i in 0..3 {
            let mixed = _mm256_packus_epi16(low[i], high[i]);
            channels[i] = _mm256_permute4x64_epi64::<0b11_01_10_00>(mixed);
        }
        store_pixels(channels, part_mut(out, 3 * at));
    }
}

/// The portable loop, which the compiler turns into vectors.
#[target_feature(enable = "avx2")]
pub(super) fn ycc_planes(y: &[u8], cb: &[u8], cr: &[u8], out: [&mut [u8]; 3]) {
    color::ycc_planes(y, cb, cr, out);
}

/// Red, green and blue of 16 pixels, not yet saturated.
///
/// The factors of `color` less their whole parts (1, 2 and -1), so that they fit in 16 bits; products are
/// rounded exactly as there.
#[target_feature(enable = "avx2")]
#[inline]
fn rgb_16(y: &[u8; 16], cb: &[u8; 16], cr: &[u8; 16]) -> [__m256i; 3] {
    let middle = _mm256_set1_epi16(128);
    let y = load_16(y);
    let cb = _mm256_sub_epi16(load_16(cb), middle);
    let cr = _mm256_sub_epi16(load_16(cr), middle);
    // (x * factor + 2^15) >> 16, by way of twice the product.
    let part = |twice: __m256i, factor: i16| {
        let high = _mm256_mulhi_epi16(twice, _mm256_set1_epi16(factor));
        _mm256_srai_epi16::<1>(_mm256_add_epi16(high, _mm256_set1_epi16(1)))
    };
    let twice_cb = _mm256_add_epi16(cb, cb);
    let twice_cr = _mm256_add_epi16(cr, cr);
    let red = _mm256_add_epi16(part(twice_cr, 26_345), _mm256_add_epi16(cr, y));
    let blue = _mm256_add_epi16(part(twice_cb, -14_942), _mm256_add_epi16(twice_cb, y));
    let factors = _mm256_set1_epi32(18_734 << 16 | i32::from(-22_554i16 as u16));
    let half = _mm256_set1_epi32(1 << 15);
    let low = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors);
    let high = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors);
    let mix = _mm256_packs_epi32(
        _mm256_srai_epi32::<16>(_mm256_add_epi32(low, half)),
        _mm256_srai_epi32::<16>(_mm256_add_epi32(high, half)),
    );
    let green = _mm256_add_epi16(mix, _mm256_sub_epi16(y, cr));
    [red, green, blue]
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

/// Which byte of a channel goes to each of 16 output bytes; -1 where another channel's goes.
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

/// 32 bytes of each channel to 32 pixels.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_pixels(channels: [__m256i; 3], out: &mut [u8; 3 * PIXELS]) {
    // Each piece: 16 bytes of the first 16 pixels, and the same of the last 16.
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
