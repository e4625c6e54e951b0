//! One binary for all tests of the public interface, because linking costs more than compiling
//! here.

mod corpus;
mod format_document;
mod jpeg_kinds;
