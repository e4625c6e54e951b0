//! `tools/fuzz forebay-formats zarr`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run zarr` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::zarr(bytes, scratch::dir()));
