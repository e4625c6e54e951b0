//! One binary for all tests of the public interface: linking costs more than compiling here.

mod stage;
