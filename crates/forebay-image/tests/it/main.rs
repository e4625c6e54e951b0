//! One binary for all tests of the public interface, because linking costs more than compiling
//! here.

mod bad_input;
mod corpus;
mod encode;
mod formats;
mod golden;
mod tiff;
