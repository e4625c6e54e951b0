//! `tools/fuzz forebay-formats zip`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run zip` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::zip(bytes, scratch::dir()));
