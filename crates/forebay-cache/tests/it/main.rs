//! One binary for all tests of the public interface, because linking takes longer than compiling here.

mod cached_dataset;
mod conformance;
mod packed;
mod read;
mod served;
mod web;
