//! `tools/fuzz forebay-shard mapped`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run mapped` in crates/forebay-shard.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::mapped(bytes));
