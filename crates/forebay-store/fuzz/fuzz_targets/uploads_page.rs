//! Run it with `tools/fuzz forebay-store uploads_page`,
//! or with `RUSTC_BOOTSTRAP=1 cargo fuzz run uploads_page` in crates/forebay-store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_store::fuzzing::uploads_page(bytes));
