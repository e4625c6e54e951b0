//! `tools/fuzz forebay-pack labels`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run labels` in crates/forebay-pack.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_pack::fuzzing::labels(bytes, scratch::dir()));
