//! Invariants of each parser of untrusted bytes: no panic, no endless loop, and accepted input is
//! consistent. The fuzz targets call these, and so does the test below, which needs no fuzzer. Parsers of files get a
//! directory to put the file into.

pub use crate::class_list::fuzzing::classes;
pub use crate::images::fuzzing::{boxes, labels, mat, tar, zip};

#[cfg(test)]
#[path = "../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

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
}
