//! One binary for all tests of the public interface: linking costs more than compiling here.

mod bad_input;
mod cache;
mod checkpoint;
mod cluster;
mod convert;
mod copy;
mod deploy;
mod doctor;
mod foreign;
mod foreign_features;
mod frame;
mod interruption;
mod journey;
mod killed_servers;
mod price;
mod quickstart;
mod rm;
mod serve;
mod sources;
mod special_files;
mod stores;
mod support;
mod terminal;
mod view;
