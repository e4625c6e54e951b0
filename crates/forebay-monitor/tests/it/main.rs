//! One binary for all tests of the public interface, because linking costs more than compiling here.

mod browser;
mod request;
mod slow_admin;
#[path = "../../../forebay-server/tests/it/support/mod.rs"]
mod support;
mod viewing;
mod watching;
