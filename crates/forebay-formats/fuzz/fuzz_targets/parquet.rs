//! `tools/fuzz forebay-formats parquet`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run parquet` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::parquet(
    bytes,
    scratch::dir()
));
