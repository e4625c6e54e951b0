//! Invariants of each parser of untrusted bytes: no panic, no endless loop, and accepted input is
//! consistent. The fuzz targets call these, and so does the test below, which needs no fuzzer. Parsers of files get a
//! directory to put the file into.

pub use crate::destination::fuzzing::{journal, plan};

#[cfg(test)]
#[path = "../../forebay-formats/fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn journals() {
        replay("journal", super::journal);
    }

    #[test]
    fn plans() {
        replay("plan", super::plan);
    }
}
