//! Checks of parsers of untrusted bytes: no panic, no endless loop, and what is accepted is consistent. The fuzz targets call
//! these, and so does a test without a fuzzer.

/// Parses a list of open uploads as a store answers it.
pub fn uploads_page(bytes: &[u8]) {
    crate::store::fuzz_page(bytes);
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_corpus_passes() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/uploads_page");
        forebay_rigs::replay_corpus(corpus.as_ref(), 1000, super::uploads_page);
    }
}
