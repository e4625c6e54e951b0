//! `tools/fuzz forebay-pack mat`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run mat` in crates/forebay-pack.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_pack::fuzzing::mat(bytes));
