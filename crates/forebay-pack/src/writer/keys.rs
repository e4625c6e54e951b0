//! Detects repeated keys among the last samples: readers find samples by key, so a repeated key would hide a sample.

use std::collections::{HashSet, VecDeque};

/// Digests of the keys of the last samples of all splits, in bounded memory.
#[derive(Debug)]
pub(super) struct LastKeys {
    most: usize,
    digests: HashSet<u128>,
    /// The digests in the order of the samples.
    order: VecDeque<u128>,
}

impl LastKeys {
    /// Creates the set, which compares each key with those of up to `most` preceding samples.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            digests: HashSet::new(),
            order: VecDeque::new(),
        }
    }

    /// Adds the key of a sample. Returns whether the key is new among the last samples of its split.
    pub(super) fn add(&mut self, split: &str, key: &[u8]) -> bool {
        let mut hasher = blake3::Hasher::new();
        // Names of splits contain no NUL.
        hasher.update(split.as_bytes()).update(b"\0").update(key);
        let mut digest = [0; 16];
        hasher.finalize_xof().fill(&mut digest);
        let digest = u128::from_le_bytes(digest);
        if !self.digests.insert(digest) {
            return false;
        }
        self.order.push_back(digest);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.digests.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_with_the_last_samples_of_their_split() {
        let mut keys = LastKeys::new(3);
        assert!(keys.add("train", b"a"));
        assert!(keys.add("val", b"a"), "another split");
        assert!(!keys.add("train", b"a"));
        assert!(keys.add("train", b"b"));
        assert!(!keys.add("train", b"a"), "it is one of the last three");
        assert!(keys.add("train", b"c"));
        assert!(keys.add("train", b"a"), "three samples came after it");
        assert!(!keys.add("train", b"c"));
    }
}
