//! `tools/fuzz forebay-formats coco`, or `RUSTC_BOOTSTRAP=1 cargo fuzz run coco` in crates/forebay-formats.
#![no_main]

#[path = "../scratch.rs"]
mod scratch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| forebay_formats::fuzzing::coco(bytes, scratch::dir()));
