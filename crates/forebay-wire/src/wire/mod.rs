//! Messages between client and server, version 2 (source: `proto/wire.proto`).
//!
//! They follow the protocol, not the versions of this crate. A compiler written in Rust generates them from the `.proto`
//! files. The code is kept in the repository, so building needs no `protoc`, and dependents do not compile a protobuf
//! compiler. The test `generated` compares it; with `FOREBAY_REGENERATE=1 cargo test -p forebay-wire --features generate
//! generated` it writes it.
#![allow(missing_docs, clippy::all)] // Written by prost.

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

#[cfg(test)]
mod tests {
    #[test]
    fn a_token_is_not_printed() {
        let hello = super::Hello {
            token: "marked-secret".to_owned(),
            ..super::Hello::default()
        };
        let shown = format!("{hello:?} {hello:#?}");
        assert!(!shown.contains("marked"), "{shown}");
    }
}
