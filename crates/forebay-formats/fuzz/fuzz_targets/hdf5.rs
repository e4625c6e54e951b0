//! `tools/fuzz forebay-formats hdf5`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run hdf5` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::hdf5(bytes, scratch::dir()));
