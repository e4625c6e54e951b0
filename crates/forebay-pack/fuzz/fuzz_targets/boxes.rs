//! `tools/fuzz forebay-pack boxes`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run boxes` in crates/forebay-pack.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_pack::fuzzing::boxes(bytes));
