//! Probes arbitrary bytes: no panic, and a prefix never gives another result than the whole file.
//! Run `tools/fuzz forebay-image probe`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run probe` in
//! crates/forebay-image.
#![no_main]

use forebay_image::{DecodeError, ImageError, Limits, probe, trailing_bytes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = probe(bytes, &Limits::default());
    let _ = trailing_bytes(bytes);
    match probe(&bytes[..bytes.len() / 2], &Limits::default()) {
        Err(ImageError::Image(DecodeError::Incomplete { needed, found, .. })) => {
            assert!(needed > found)
        }
        half => assert!(half.is_err() || half == whole),
    }
});
