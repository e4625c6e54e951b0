//! Run it with `tools/fuzz forebay-store checkpoint_manifest`,
//! or with `RUSTC_BOOTSTRAP=1 cargo fuzz run checkpoint_manifest` in crates/forebay-store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_checkpoint::fuzz_manifest(bytes));
