//! Round trips of files from libjpeg-turbo-rs's encoder, and damaged files.

use super::*;
use crate::{SeekDensity, SeekPointBuilder};
use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling};

/// Returns a picture with gradients, an edge and noise.
fn picture(width: usize, height: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = if (x / 16 + y / 16) % 3 == 0 {
                state >> 26
            } else {
                0
            };
            let edge = if (x + 2 * y) % 40 > 27 { 120 } else { 0 };
            for slope in [3, 5, 7] {
                let color = (slope * x + (8 - slope) * y) as u32 + edge + noise;
                pixels.push(color as u8);
            }
        }
    }
    pixels
}

fn progressive(
    width: usize,
    height: usize,
    quality: u8,
    sampling: Option<Subsampling>,
    restart: u16,
) -> Vec<u8> {
    let pixels = picture(width, height);
    let mut encoder = Encoder::new(&pixels, width, height, PixelFormat::Rgb)
        .quality(quality)
        .progressive(true);
    encoder = match sampling {
        Some(sampling) => encoder.subsampling(sampling),
        None => encoder.grayscale_from_color(true),
    };
    if restart > 0 {
        encoder = encoder.restart_blocks(restart);
    }
    encoder.encode().unwrap()
}

fn there_and_back(original: &[u8]) -> Transcoded {
    let limits = Limits::default();
    let new = progressive_to_baseline(original, &limits).unwrap();
    let header = probe(&new.jpeg, &limits).unwrap();
    assert!(!header.progressive);
    assert_eq!(
        restore_progressive(&new.jpeg, &new.recipe, &limits).unwrap(),
        original
    );
    let mut decoder = Decoder::new(limits);
    assert_eq!(decoder.decode(original), decoder.decode(&new.jpeg));
    new
}

#[test]
fn originals_are_restored_byte_for_byte() {
    use Subsampling::*;
    for sampling in [Some(S444), Some(S422), Some(S420), Some(S440), None] {
        for (width, height) in [(1, 1), (17, 33), (70, 50), (160, 120)] {
            for quality in [10, 75, 98] {
                for restart in [0, 3] {
                    let original = progressive(width, height, quality, sampling, restart);
                    let new = there_and_back(&original);
                    let few = new.recipe.len() < 1500;
                    assert!(few, "{} bytes of recipe", new.recipe.len());
                    if height > 32 {
                        // Transcoded files support regions and seek points.
                        let mut builder = SeekPointBuilder::default();
                        assert!(builder.build(&new.jpeg, SeekDensity::Rows).is_some());
                    }
                }
            }
        }
    }
}

#[test]
fn markers_and_trailing_bytes_are_kept_and_restored() {
    let mut original = progressive(60, 40, 80, Some(Subsampling::S420), 0);
    let exif = [&[0xff, 0xe1, 0, 12][..], b"Exif\0\0MM\0*"].concat();
    original.splice(2..2, exif.iter().copied());
    original.extend(b"something behind the end");
    let new = there_and_back(&original);
    assert_eq!(&new.jpeg[2..2 + exif.len()], exif);
}

#[test]
fn unsupported_files_are_not_transcoded() {
    let limits = Limits::default();
    let pixels = picture(40, 30);
    let encoder = || Encoder::new(&pixels, 40, 30, PixelFormat::Rgb);
    assert_eq!(
        progressive_to_baseline(&encoder().encode().unwrap(), &limits),
        None
    );
    let arithmetic = encoder()
        .progressive(true)
        .arithmetic(true)
        .encode()
        .unwrap();
    assert_eq!(progressive_to_baseline(&arithmetic, &limits), None);
    let original = progressive(40, 30, 80, Some(Subsampling::S420), 0);
    for cut in 0..original.len() {
        assert_eq!(
            progressive_to_baseline(&original[..cut], &limits),
            None,
            "{cut}"
        );
    }
    // The encoding differs from libjpeg's: the padding bits before the last marker are zeros.
    let mut padded = original.clone();
    let last = padded.len() - 3;
    let mut changed = 0;
    for bit in 0..3 {
        padded[last] = original[last] & !(1 << bit);
        if padded[last] != original[last] && padded[last - 1] != 0xff {
            if let Some(new) = progressive_to_baseline(&padded, &limits) {
                let restored = restore_progressive(&new.jpeg, &new.recipe, &limits).unwrap();
                assert_eq!(restored, padded);
            } else {
                changed += 1;
            }
        }
    }
    assert!(changed > 0);
}

#[test]
fn damage_gives_the_original_or_an_error() {
    let limits = Limits::default();
    let original = progressive(50, 40, 70, Some(Subsampling::S420), 0);
    let new = progressive_to_baseline(&original, &limits).unwrap();
    for at in 0..new.recipe.len() {
        assert!(restore_progressive(&new.jpeg, &new.recipe[..at], &limits).is_err());
        for flip in [1, 0x10, 0x80, 0xff] {
            let mut recipe = new.recipe.clone();
            recipe[at] ^= flip;
            if let Ok(restored) = restore_progressive(&new.jpeg, &recipe, &limits) {
                assert_eq!(restored, original);
            }
        }
    }
    for at in (0..new.jpeg.len()).step_by(3) {
        let mut jpeg = new.jpeg.clone();
        jpeg[at] ^= 0x11;
        if let Ok(restored) = restore_progressive(&jpeg, &new.recipe, &limits) {
            assert_eq!(restored, original);
        }
    }
    let other = progressive(50, 40, 71, Some(Subsampling::S420), 0);
    let other = progressive_to_baseline(&other, &limits).unwrap();
    assert!(restore_progressive(&other.jpeg, &new.recipe, &limits).is_err());
}
