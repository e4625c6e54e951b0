//! Replays the stored inputs of a fuzz target without a fuzzer. Crates that do not depend on this crate include this file.

use std::path::Path;

/// A deterministic sequence of pseudorandom numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Mutates bytes like a fuzzer: flips bits, inserts special values, truncates, repeats.
fn change(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(bytes.len());
        match numbers.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
            1 if at < bytes.len() => bytes[at] = b"\0\x01\x7f\x80\xff09/. \""[numbers.below(11)],
            2 => {
                let value = [0, 1, 16, 512, u64::MAX, 1 << 32, 1 << 63][numbers.below(7)];
                let end = bytes.len().min(at + 8);
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            3 => bytes.truncate(at),
            4 => {
                let end = (at + numbers.below(600)).min(bytes.len());
                bytes.extend_from_within(at..end);
            }
            _ => {
                let end = (at + numbers.below(20)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}

/// Passes to `entry` each input of a corpus directory, `count` mutations and `count / 2` prefixes of it (or all prefixes if it
/// is short).
///
/// # Panics
/// If the directory cannot be read or is empty, or `entry` panics.
pub fn replay_corpus(corpus: &Path, count: usize, entry: impl Fn(&[u8])) {
    let files = std::fs::read_dir(corpus).unwrap();
    let mut inputs: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{}", corpus.display());
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for path in inputs {
        let seed = std::fs::read(&path).unwrap();
        entry(&seed);
        for len in (0..seed.len()).step_by(2 * seed.len() / count + 1) {
            entry(&seed[..len]);
        }
        for _ in 0..count {
            let mut input = seed.clone();
            change(&mut input, &mut numbers);
            entry(&input);
        }
    }
}
