//! `tools/fuzz forebay-formats mat`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run mat` in crates/forebay-formats.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::mat(bytes));
