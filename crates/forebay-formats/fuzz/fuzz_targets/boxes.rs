//! `tools/fuzz forebay-formats boxes`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run boxes` in crates/forebay-formats.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::boxes(bytes));
