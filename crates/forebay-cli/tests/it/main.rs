//! One binary for all tests of the public interface: linking costs more than compiling here.

mod bad_input;
#[allow(dead_code)] // forebay-monitor's tests use the rest.
#[path = "../../../forebay-monitor/tests/it/browser.rs"]
mod browser;
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
mod overview;
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
