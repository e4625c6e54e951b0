//! `tools/fuzz forebay-shard shard`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run shard` in crates/forebay-shard.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)]
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::shard(bytes));
