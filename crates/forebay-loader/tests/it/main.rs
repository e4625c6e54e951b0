//! One binary for all tests of the public interface, because linking takes longer than compiling
//! here.

mod batches;
mod columns;
mod dataset;
mod far;
mod fast;
mod geometry;
mod learned_seek_points;
mod mix;
mod named_options;
mod raw;
mod requests;
mod schema;
mod seek_points;
