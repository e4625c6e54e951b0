//! `tools/fuzz forebay-formats labels`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run labels` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::labels(bytes, scratch::dir()));
