//! `tools/fuzz forebay-formats npz`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run npz` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::npz(bytes, scratch::dir()));
