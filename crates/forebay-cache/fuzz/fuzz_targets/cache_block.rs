//! Run it with `tools/fuzz forebay-cache cache_block`,
//! or with `RUSTC_BOOTSTRAP=1 cargo fuzz run cache_block` in crates/forebay-cache.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_cache::fuzz_block(bytes));
