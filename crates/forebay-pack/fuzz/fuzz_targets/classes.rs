//! `tools/fuzz forebay-pack classes`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run classes` in crates/forebay-pack.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_pack::fuzzing::classes(bytes));
