//! One binary for all tests of the public interface, because linking takes longer than compiling here.

mod against;
mod convert;
mod destination;
mod dirty;
mod fast;
mod formats;
mod full_disk;
mod hostile_archives;
mod jpeg_kinds;
mod killed;
mod labels;
mod layout;
mod layouts;
mod mapped;
mod pack;
mod parts;
mod remake;
mod repair;
mod seek_points;
mod sources;
mod staged;
mod staged_s3;
mod support;
mod synset_tars;
mod writer;
mod writer_formats;
