//! `tools/fuzz forebay-formats mds`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run mds` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::mds(bytes, scratch::dir()));
