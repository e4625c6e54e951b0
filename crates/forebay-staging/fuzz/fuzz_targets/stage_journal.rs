//! Run it with `tools/fuzz forebay-staging stage_journal`,
//! or with `RUSTC_BOOTSTRAP=1 cargo fuzz run stage_journal` in crates/forebay-staging.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_staging::fuzz_journal(bytes));
