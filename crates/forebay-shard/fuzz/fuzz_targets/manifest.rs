//! `tools/fuzz forebay-shard manifest`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run manifest` in crates/forebay-shard.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)] // Each target is a crate that uses its own entry.
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::manifest(bytes));
