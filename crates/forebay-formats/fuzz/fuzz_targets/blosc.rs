//! `tools/fuzz forebay-formats blosc`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run blosc` in crates/forebay-formats.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::blosc(bytes));
