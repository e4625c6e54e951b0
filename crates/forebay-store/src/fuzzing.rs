//! What is asked of each parser of untrusted bytes, whatever the bytes: no panic, no endless loop, and what it accepts is
//! consistent. The fuzz targets call these, and so does the test below, which needs no fuzzer.

/// A block of the cache: any content, with a right checksum in its header.
pub fn cache_block(bytes: &[u8]) {
    crate::cache::fuzz_block(bytes);
}

/// The journal of a staging area.
pub fn stage_journal(bytes: &[u8]) {
    crate::stage::fuzz_journal(bytes);
}

/// The marker of a staged checkpoint.
pub fn checkpoint_marker(bytes: &[u8]) {
    crate::checkpoint::fuzz_marker(bytes);
}

/// The manifest of a checkpoint.
pub fn checkpoint_manifest(bytes: &[u8]) {
    crate::checkpoint::fuzz_manifest(bytes);
}

/// A list of open uploads, as a store answers.
#[cfg(feature = "cloud")]
pub fn uploads_page(bytes: &[u8]) {
    crate::store::fuzz_page(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Every kept input, cuts of it, and each with one byte changed here and there.
    fn replay(target: &str, entry: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fuzz/corpus")
            .join(target);
        let mut inputs: Vec<_> = std::fs::read_dir(corpus)
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{target}");
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

    #[test]
    fn the_corpus_passes() {
        replay("cache_block", super::cache_block);
        replay("stage_journal", super::stage_journal);
        replay("checkpoint_marker", super::checkpoint_marker);
        replay("checkpoint_manifest", super::checkpoint_manifest);
        #[cfg(feature = "cloud")]
        replay("uploads_page", super::uploads_page);
    }
}
