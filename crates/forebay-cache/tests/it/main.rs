//! One binary for all tests of the public interface: linking costs more than compiling here.

mod cached_dataset;
mod conformance;
mod packed;
mod read;
mod served;
mod web;
