//! Test servers. Only tests depend on this crate.
//!
//! | rig | server | what it verifies or provides |
//! | --- | --- | --- |
//! | [`S3Server`] | s3s-fs in this process, also behind a [`Link`] | signatures, payload hashes, conditions |
//! | [`Moto`] | `moto_server`, if installed | conditions, open uploads, sizes of parts |
//! | [`Azurite`] | Azurite, if installed | signatures, blocks, conditions |
//! | [`Gcs`] | our own fake | generations, open uploads; it reports checksums |
//! | [`WebHdfs`] | our own fake | redirects, standby nodes, conditions; Hadoop's client is tested against it too |
//! | [`Hadoop`] | Hadoop's own client, if installed | that [`WebHdfs`] is what Hadoop takes for HDFS |
//! | [`Web`] | our own static file server | ranges |
//! | [`Scripted`] | responses that a test defines | the content of requests |
//! | [`FaultProxy`] | a proxy in front of any of them | tolerance of faults |
//!
//! Starting a rig that is not installed returns `None` and prints "skipped: ..." to stderr. All
//! rigs listen on loopback and stop when dropped.

mod azurite;
mod child;
mod corpus;
mod gcs;
mod hadoop;
mod http;
mod link;
mod moto;
mod proxy;
mod s3;
mod scripted;
mod web;
mod webhdfs;

pub use azurite::Azurite;
pub use corpus::replay_corpus;
pub use gcs::Gcs;
pub use hadoop::Hadoop;
pub use link::Link;
pub use moto::Moto;
pub use proxy::{Denied, Fault, FaultProxy, Plan};
pub use s3::S3Server;
pub use scripted::{Reply, Scripted};
pub use web::Web;
pub use webhdfs::{Form, WebHdfs};

/// Whether whole series of tests run, as in `tools/test full`, and not a part of each.
pub fn is_full_test() -> bool {
    std::env::var_os("FOREBAY_TEST_FULL").is_some()
}

/// The bucket or container that each rig creates.
pub const BUCKET: &str = "bucket";
