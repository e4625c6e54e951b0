//! One binary for all tests of the program.

mod characterize;
mod served;
mod support;
