//! JPEG: a fast decoder for the common case ([`baseline`]), and one for all other files
//! ([`general`]). Fast images ([`fast`]) are JPEGs in another encoding.

pub(crate) mod baseline;
pub(crate) mod decoder;
pub(crate) mod encoding;
pub(crate) mod error;
pub(crate) mod fast;
pub(crate) mod general;
pub(crate) mod header;
pub(crate) mod limits;
pub(crate) mod markers;
pub(crate) mod region;
pub(crate) mod rows;
pub(crate) mod varint;
pub(crate) mod writer;
