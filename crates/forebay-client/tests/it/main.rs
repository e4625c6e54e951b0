//! The client against servers that follow a script. One binary for all tests of the public
//! interface, because linking costs more than compiling here.

mod handshake;
#[cfg(target_os = "linux")]
mod shared_memory;
mod stream;
mod support;
