//! `tools/fuzz forebay-formats litdata`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run litdata` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::litdata(
    bytes,
    scratch::dir()
));
