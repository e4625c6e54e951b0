//! Transcodes arbitrary JPEGs to baseline and back, and applies arbitrary recipes to arbitrary
//! JPEGs: the result is the original or an error, never a panic. Run
//! `tools/fuzz forebay-image transcode`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run transcode` in
//! crates/forebay-image.
//!
//! The input is a length (two bytes, big-endian), that many bytes of a recipe, and the JPEG.
#![no_main]

#[path = "../../../forebay-jpeg/fuzz/quiet.rs"]
mod quiet;

use forebay_image::{Limits, progressive_to_baseline, restore_progressive};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    quiet::init();
    let Some((recipe, jpeg)) = input
        .split_first_chunk::<2>()
        .and_then(|(length, rest)| rest.split_at_checked(usize::from(u16::from_be_bytes(*length))))
    else {
        return;
    };
    let limits = Limits {
        max_pixels: 1 << 20,
        max_decoded_bytes: 16 << 20,
        ..Limits::default()
    };
    let _ = restore_progressive(jpeg, recipe, &limits);
    if let Some(new) = progressive_to_baseline(jpeg, &limits) {
        let restored = restore_progressive(&new.jpeg, &new.recipe, &limits);
        assert!(restored.as_deref() == Ok(jpeg));
        // The recipe of another file.
        if let Ok(other) = restore_progressive(&new.jpeg, recipe, &limits) {
            assert!(recipe.ends_with(&crc32c(&other).to_le_bytes()));
        }
    }
});

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| {
        if crc & 1 == 1 {
            crc >> 1 ^ 0x82f6_3b78
        } else {
            crc >> 1
        }
    };
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc))
    })
}
