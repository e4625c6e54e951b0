//! `tools/fuzz forebay-shard text_index`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run text_index` in crates/forebay-shard.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::text_index(bytes));
