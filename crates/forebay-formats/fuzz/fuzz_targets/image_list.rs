//! `tools/fuzz forebay-formats image_list`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run image_list` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::image_list(
    bytes,
    scratch::dir()
));
