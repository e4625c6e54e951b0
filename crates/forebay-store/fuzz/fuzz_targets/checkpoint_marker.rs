//! Run it with `tools/fuzz forebay-store checkpoint_marker`,
//! or with `RUSTC_BOOTSTRAP=1 cargo fuzz run checkpoint_marker` in crates/forebay-store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_checkpoint::fuzz_marker(bytes));
