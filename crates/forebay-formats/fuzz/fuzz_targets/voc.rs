//! `tools/fuzz forebay-formats voc`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run voc` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::voc(bytes, scratch::dir()));
