//! One binary for all tests of the public interface, because linking takes longer than compiling
//! here.

mod corpus;
mod damage;
mod format_document;
mod golden;
mod refusals;
mod round_trip;
mod salvage;
mod verify_stop;
