//! Servers to test with. Only tests depend on this crate.
//!
//! | rig | what it is | what it checks |
//! | --- | --- | --- |
//! | [`S3Server`] | s3s-fs in this process | signatures, payload hashes, conditions |
//! | [`Moto`] | `moto_server`, if it is installed | conditions, open uploads, sizes of parts |
//! | [`Azurite`] | Azurite, if it is installed | signatures, blocks, conditions |
//! | [`Gcs`] | a fake of our own | generations, open uploads; it reports checksums |
//! | [`Web`] | a static file server of our own | ranges |
//! | [`Scripted`] | answers that a test chooses | what requests look like |
//! | [`FaultProxy`] | what stands between a client and any of them | how much a client bears |
//!
//! Rigs that are missing are `None`, and say "skipped: ..." on stderr. Everything listens on loopback and ends with its value.

mod azurite;
mod child;
mod corpus;
mod gcs;
mod http;
mod moto;
mod proxy;
mod s3;
mod scripted;
mod web;

pub use azurite::Azurite;
pub use corpus::replay_corpus;
pub use gcs::Gcs;
pub use moto::Moto;
pub use proxy::{Fault, FaultProxy, Plan};
pub use s3::S3Server;
pub use scripted::{Reply, Scripted};
pub use web::Web;

/// The bucket or container that each rig has from the start.
pub const BUCKET: &str = "bucket";
