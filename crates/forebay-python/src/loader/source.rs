//! Where the batches of a loader come from: a dataset in this process, or a server.

mod local;
mod remote;

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_loader::Options;
use forebay_proto::wire;

use super::arguments::Wish;
use crate::failure::{Failure, Kind};
use crate::pump::Source;

/// What a URL of a server begins with.
const SCHEME: &str = "forebay://";

/// An open stream of batches, and what it turned out to be.
pub(super) struct Opened {
    pub(super) fingerprint: String,
    pub(super) split: String,
    pub(super) records: u64,
    /// Of an epoch, all ranks together and padding not counted.
    pub(super) samples: u64,
    pub(super) batches_per_epoch: u64,
    /// With every default that shapes the order filled in.
    pub(super) options: Options,
    /// The label of the first class, as stored.
    pub(super) label_base: i64,
    pub(super) handle: Arc<dyn Handle>,
}

/// A hold on a source from other threads.
pub(super) trait Handle: Send + Sync {
    /// Makes a source that blocks return soon.
    fn cancel(&self);
    /// Where the time went.
    fn counters(&self) -> Counters;
}

/// Where the time of a source went.
pub(super) struct Counters {
    pub(super) wire: wire::Stats,
    /// What holds the trainer back, in a sentence.
    pub(super) verdict: Option<String>,
}

/// Opens what `source` names. Blocks.
pub(super) fn open(source: &OsStr, wish: Wish) -> Result<(Opened, Box<dyn Source>), Failure> {
    match source.to_str() {
        Some(url) if url.starts_with(SCHEME) => remote::open(url, wish),
        Some(url) if url.contains("://") => {
            let message = format!(
                "cannot read from {url:?}: expected the directory of a dataset, or {SCHEME}HOST:PORT/NAME"
            );
            Err(Failure::new(Kind::Option, message))
        }
        _ => local::open(source.as_ref(), wish),
    }
}

/// The split that was asked for, or the only one.
fn choose<'a>(
    wanted: Option<&str>,
    names: impl Iterator<Item = &'a str>,
    of: &dyn std::fmt::Display,
) -> Result<String, Failure> {
    let names: Vec<&str> = names.collect();
    let problem = match (wanted, names.as_slice()) {
        (None, [only]) => return Ok((*only).to_owned()),
        (Some(wanted), names) if names.contains(&wanted) => return Ok(wanted.to_owned()),
        (Some(wanted), _) => format!("{of} has no split {wanted:?}"),
        (None, _) => format!("{of} has several splits, and split= does not say which"),
    };
    let message = format!("{problem}: there are {}", names.join(", "));
    Err(Failure::new(Kind::Option, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_must_be_clear() {
        let of = "the dataset";
        let choose = |wanted, names: &[&'static str]| choose(wanted, names.iter().copied(), &of);
        assert_eq!(choose(None, &["train"]).unwrap(), "train");
        assert_eq!(choose(Some("b"), &["a", "b"]).unwrap(), "b");
        assert!(choose(None, &["a", "b"]).is_err());
        assert!(choose(None, &[]).is_err());
        assert!(choose(Some("c"), &["a", "b"]).is_err());
    }
}
