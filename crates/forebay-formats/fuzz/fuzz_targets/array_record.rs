//! `tools/fuzz forebay-formats array_record`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run array_record` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::array_record(
    bytes,
    scratch::dir()
));
