//! Invariants of each parser of untrusted bytes: no panic, no endless loop, and accepted input is
//! consistent. The fuzz targets call these, and so does the test below, which needs no fuzzer. Parsers of files get a
//! directory to put the file into.

pub use crate::class_list::fuzzing::classes;
pub use crate::destination::fuzzing::{journal, plan};
pub use crate::input::fuzzing::{boxes, labels, mat, tar, zip};

#[cfg(test)]
mod tests {
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
    fn replay(target: &str, entry: impl Fn(&[u8], &Path)) {
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

    #[test]
    fn tars() {
        replay("tar", super::tar);
    }

    #[test]
    fn zips() {
        replay("zip", super::zip);
    }

    #[test]
    fn matlab_files() {
        replay("mat", |bytes, _| super::mat(bytes));
    }

    #[test]
    fn files_of_labels() {
        replay("labels", super::labels);
    }

    #[test]
    fn annotations() {
        replay("boxes", |bytes, _| super::boxes(bytes));
    }

    #[test]
    fn lists_of_classes() {
        replay("classes", |bytes, _| super::classes(bytes));
    }

    #[test]
    fn journals() {
        replay("journal", super::journal);
    }

    #[test]
    fn plans() {
        replay("plan", super::plan);
    }
}
