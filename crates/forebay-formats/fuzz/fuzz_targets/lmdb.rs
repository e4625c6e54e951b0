//! `tools/fuzz forebay-formats lmdb`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run lmdb` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::lmdb(bytes, scratch::dir()));
