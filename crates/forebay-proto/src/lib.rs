//! Protobuf types of Forebay.
//!
//! - [`tensorflow`]: `tensorflow.Example` and its parts, wire-compatible with TensorFlow's own
//!   (source: `proto/example.proto`).
//! - [`wire`]: the messages between client and server (source: `proto/wire.proto`).
//!
//! A compiler written in Rust generates the code in `src/generated` from the `.proto` files. The
//! code is kept in the repository, so building needs no `protoc`, and dependents do not compile a
//! protobuf compiler. The test `generated` compares it; with `FOREBAY_REGENERATE=1 cargo test -p
//! forebay-proto --features generate` it writes it.
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

/// Messages between client and server, version 2.
#[allow(missing_docs, clippy::all)] // Written by prost.
pub mod wire {
    include!("generated/forebay.wire.v2.rs");

    impl std::fmt::Debug for Hello {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Hello")
                .field("version_min", &self.version_min)
                .field("version_max", &self.version_max)
                .field("client", &self.client)
                .field("dataset", &self.dataset)
                .field("token", if self.token.is_empty() { &"" } else { &"***" })
                .finish()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::wire;

    #[test]
    fn a_token_is_not_printed() {
        let hello = wire::Hello {
            token: "marked-secret".to_owned(),
            ..wire::Hello::default()
        };
        let shown = format!("{hello:?} {hello:#?}");
        assert!(!shown.contains("marked"), "{shown}");
    }
}
