//! `tools/fuzz forebay-wire frames`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run frames` in `crates/forebay-wire`.
#![no_main]

mod check;

libfuzzer_sys::fuzz_target!(|data: &[u8]| check::frames(data));
