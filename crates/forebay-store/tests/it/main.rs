//! One binary for all tests of the public interface, because linking takes longer than compiling here.

mod conformance;
mod faults;
mod listings;
mod odd_names;
mod permanent;
mod redirects;
mod stores;
mod webhdfs;
