//! Run it with `tools/fuzz forebay-staging checkpoint_manifest`,
//! or with `RUSTC_BOOTSTRAP=1 cargo fuzz run checkpoint_manifest` in crates/forebay-staging.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_staging::checkpoint::fuzz_manifest(bytes));
