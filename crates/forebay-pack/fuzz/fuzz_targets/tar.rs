//! `tools/fuzz forebay-pack tar`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run tar` in crates/forebay-pack.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_pack::fuzzing::tar(bytes, scratch::dir()));
