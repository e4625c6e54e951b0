//! Replays the fuzz corpus without a fuzzer.

#[path = "../../fuzz/fuzz_targets/check.rs"]
mod check;
#[allow(unreachable_pub)] // `pub` is reachable in the crate that the file belongs to
#[path = "../../../forebay-rigs/src/corpus.rs"]
mod replaying;

#[test]
fn frames() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/frames");
    replaying::replay_corpus(corpus.as_ref(), 1200, check::frames);
}
