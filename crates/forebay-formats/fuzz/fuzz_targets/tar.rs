//! `tools/fuzz forebay-formats tar`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run tar` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::tar(bytes, scratch::dir()));
