//! `tools/fuzz forebay-pack journal`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run journal` in crates/forebay-pack.
#![no_main]

#[path = "../../../forebay-formats/fuzz/scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_pack::fuzzing::journal(bytes, scratch::dir()));
