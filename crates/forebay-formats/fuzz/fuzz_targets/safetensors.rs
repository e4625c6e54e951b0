//! `tools/fuzz forebay-formats safetensors`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run safetensors` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::safetensors(
    bytes,
    scratch::dir()
));
