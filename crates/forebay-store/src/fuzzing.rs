//! Checks of parsers of untrusted bytes: no panic, no endless loop, and consistent results. The fuzz targets call these
//! functions; a test calls them with the stored corpus.

/// Parses a store's response that lists open multipart uploads.
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
