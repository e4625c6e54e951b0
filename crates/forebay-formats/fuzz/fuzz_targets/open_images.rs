//! `tools/fuzz forebay-formats open_images`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run open_images` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::open_images(
    bytes,
    scratch::dir()
));
