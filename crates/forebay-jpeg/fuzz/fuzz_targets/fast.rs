//! Restores arbitrary bytes as if they were a fast image, and encodes them as if they were a JPEG:
//! an error or the original with its pixels, never a panic. Run `tools/fuzz forebay-jpeg fast`, or
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run fast` in crates/forebay-jpeg.
//!
//! The header's checksum is corrected, so that the fuzzer also reaches damage after the header.
#![no_main]

use forebay_jpeg::{Encoding, FastCoding, FastEncoder, JpegDecoder, Limits, restore_fast};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits {
        max_pixels: 1 << 20,
        max_decoded_bytes: 16 << 20,
        ..Limits::default()
    };
    let mut decoder = JpegDecoder::new(limits);
    let mut fast = bytes.to_vec();
    seal(&mut fast);
    if Encoding::detect(&fast) == Some(Encoding::Fast) {
        let decoded = decoder.decode(&fast);
        if let Ok(jpeg) = restore_fast(&fast, &limits) {
            assert!(decoded == decoder.decode(&jpeg));
        }
    }
    for coding in [FastCoding::Coded, FastCoding::Raw] {
        if let Some(fast) = FastEncoder::default().encode(bytes, coding, &limits) {
            assert!(restore_fast(&fast, &limits).as_deref() == Ok(bytes));
            assert!(decoder.decode(&fast) == decoder.decode(bytes));
        }
    }
});

/// Writes the checksum of the header, if the lengths in it are within the bytes.
fn seal(fast: &mut [u8]) -> Option<()> {
    let number = |at: usize| {
        let bytes = fast.get(at..at + 4)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes) as usize)
    };
    let tables = number(16)?
        .checked_add(number(20)?)?
        .checked_add(2 * number(24)?)?;
    let end = tables.checked_add(32)?;
    let covered = [fast.get(..28)?, fast.get(32..end)?].concat();
    let sum = crc32c(&covered);
    fast[28..32].copy_from_slice(&sum.to_le_bytes());
    Some(())
}

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
