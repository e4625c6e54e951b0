//! `tools/fuzz forebay-formats webdataset`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run webdataset` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::webdataset(
    bytes,
    scratch::dir()
));
