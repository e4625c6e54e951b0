//! `tools/fuzz forebay-shard example`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run example` in crates/forebay-shard.
#![no_main]

#[path = "../entries.rs"]
#[allow(dead_code)] // Each target is a crate that uses its own entry.
mod entries;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entries::example(bytes));
