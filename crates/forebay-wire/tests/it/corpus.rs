//! Reading the fuzzer's corpus does not panic.

#[path = "../../fuzz/fuzz_targets/check.rs"]
mod check;

#[test]
fn the_corpus_is_harmless() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/frames");
    let mut files = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        check::frames(&bytes);
        // Also every prefix, and each flipped bit.
        for i in 0..bytes.len().min(300) {
            check::frames(&bytes[..i]);
            let mut flipped = bytes.clone();
            flipped[i] ^= 1 << (i % 8);
            check::frames(&flipped);
        }
        files += 1;
    }
    assert!(files >= 8, "{files} files");
}
