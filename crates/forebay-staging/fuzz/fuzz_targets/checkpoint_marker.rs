//! Run it with `tools/fuzz forebay-staging checkpoint_marker`,
//! or with `RUSTC_BOOTSTRAP=1 cargo fuzz run checkpoint_marker` in crates/forebay-staging.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_staging::checkpoint::fuzz_marker(bytes));
