//! Replays kept inputs of a fuzz target, without a fuzzer: for the unit tests of each crate that has targets.

use std::path::Path;

/// Numbers that depend on nothing but where they start.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Changes bytes as fuzzers do: bits, interesting values, cuts, repeats.
fn change(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(bytes.len());
        match numbers.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << numbers.below(8),
            1 if at < bytes.len() => bytes[at] = b"\0\x01\x7f\x80\xff09/. "[numbers.below(10)],
            2 => {
                let value = [0, 1, 512, u64::MAX, 1 << 32, 1 << 63][numbers.below(6)];
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

/// Every kept input, cuts of it, and some changed ones.
pub(crate) fn replay(target: &str, entry: impl Fn(&[u8], &Path)) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 3, "{target}: {} inputs", inputs.len());
    // In memory where the system has that: it is thousands of small files.
    let memory = Path::new("/dev/shm");
    let scratch = match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for path in inputs {
        let seed = std::fs::read(&path).unwrap();
        entry(&seed, scratch.path());
        for len in (0..seed.len()).step_by(seed.len() / 100 + 1) {
            entry(&seed[..len], scratch.path());
        }
        for _ in 0..200 {
            let mut input = seed.clone();
            change(&mut input, &mut numbers);
            entry(&input, scratch.path());
        }
    }
}
