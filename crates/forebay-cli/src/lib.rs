//! The command line of Forebay.

use std::ffi::OsString;

/// Runs the command line with the program name first in `args`; returns the exit code.
pub fn main_from(args: impl IntoIterator<Item = OsString>) -> i32 {
    let _ = args.into_iter();
    2
}
