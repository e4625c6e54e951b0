//! `tools/fuzz forebay-shard frames`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run frames` in crates/forebay-shard.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)] // Each target is a crate that uses its own entry.
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::frames(bytes));
