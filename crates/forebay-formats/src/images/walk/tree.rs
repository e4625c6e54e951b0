//! The kinds of trees in which files are listed.

use super::members::Members;

/// The tree in which files are listed.
#[derive(Debug)]
pub(crate) enum Tree {
    Directory,
    Members(Members),
    /// The objects of a store, arranged like the files of a directory.
    Listing(Members),
}
