//! `tools/fuzz forebay-pack zip`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run zip` in crates/forebay-pack.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_pack::fuzzing::zip(bytes, scratch::dir()));
