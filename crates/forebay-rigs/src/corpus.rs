//! Replays the stored inputs of a fuzz target without a fuzzer.

use std::path::Path;

/// Passes to `entry` every input of a corpus directory, prefixes of each, and each with single
/// bytes changed.
///
/// # Panics
/// If the directory cannot be read or is empty, or `entry` panics.
pub fn replay_corpus(corpus: &Path, entry: fn(&[u8])) {
    let mut inputs: Vec<_> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{}", corpus.display());
    for path in inputs {
        let bytes = std::fs::read(&path).unwrap();
        entry(&bytes);
        let step = (bytes.len() / 200).max(1);
        for at in (0..bytes.len()).step_by(step) {
            entry(&bytes[..at]);
            let mut other = bytes.clone();
            for value in [0, 0xff, b'"', b'/', b'9'] {
                other[at] = value;
                entry(&other);
            }
        }
    }
}
