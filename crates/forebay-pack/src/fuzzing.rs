//! Invariants of each parser of untrusted bytes: it does not panic or loop forever, and accepted input is
//! consistent. The fuzz targets call these functions; the test below does so without a fuzzer. Parsers of files get a
//! directory for the file.

pub use crate::publish::destination::fuzzing::{journal, plan};

#[cfg(test)]
mod tests {
    use std::path::Path;

    fn replay(target: &str, entry: fn(&[u8], &Path)) {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus");
        let scratch = tempfile::tempdir().unwrap();
        forebay_rigs::replay_corpus(&Path::new(corpus).join(target), 200, |bytes| {
            entry(bytes, scratch.path());
        });
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
