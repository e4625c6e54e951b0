//! One binary for all tests of the public interface, because linking takes longer than compiling here.

mod checkpoint;
mod stage;
