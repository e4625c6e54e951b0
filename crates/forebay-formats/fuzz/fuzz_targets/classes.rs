//! `tools/fuzz forebay-formats classes`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run classes` in crates/forebay-formats.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::classes(bytes));
