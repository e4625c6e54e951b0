//! One binary for all tests of the public interface, because linking costs more than compiling here.

mod slow_admin;
#[allow(dead_code)] // The tests of forebay-server use the rest.
#[path = "../../../forebay-server/tests/it/support/mod.rs"]
mod support;
mod watching;
