//! One binary for all tests of the public interface, because linking costs more than compiling
//! here.

mod columns;
mod dataset;
mod failover;
mod hostile;
mod jobs;
mod many_servers;
mod mix;
mod security;
mod streaming;
mod support;
