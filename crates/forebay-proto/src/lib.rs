//! Protobuf types of Forebay, and nothing else.
//!
//! - [`tensorflow`]: `tensorflow.Example` and its parts, wire-compatible with
//!   TensorFlow's own (source: `proto/example.proto`).
//! - [`wire`]: what a client and a server say to each other (source:
//!   `proto/wire.proto`).
//!
//! The code in `src/generated` is made from the `.proto` files by a compiler
//! written in Rust, and kept in the repository: so building needs no `protoc`,
//! and nobody pays for a protobuf compiler in their build. The test `generated`
//! makes it anew and compares; `FOREBAY_REGENERATE=1 cargo test -p forebay-proto`
//! writes it.
//!
//! ```
//! use forebay_proto::prost::Message;
//! use forebay_proto::tensorflow::{Example, Feature, Features, Int64List, feature::Kind};
//!
//! let label = Feature { kind: Some(Kind::Int64List(Int64List { value: vec![7] })) };
//! let example = Example {
//!     features: Some(Features { feature: [("image/class/label".to_owned(), label)].into() }),
//! };
//! let bytes = example.encode_to_vec();
//! assert_eq!(Example::decode(bytes.as_slice())?, example);
//! # Ok::<(), prost::DecodeError>(())
//! ```

pub use prost;

/// `tensorflow.Example` and its parts.
#[allow(missing_docs, clippy::all)] // Written by prost.
pub mod tensorflow {
    include!("generated/tensorflow.rs");
}

/// Messages between client and server, version 1.
#[allow(missing_docs, clippy::all)] // Written by prost.
pub mod wire {
    include!("generated/forebay.wire.v1.rs");
}
