//! Source of a loader's batches: a dataset in this process, or a server.

mod local;
mod remote;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{ServerUse, StreamStats};
use forebay_loader::plan::Batches;
use forebay_loader::{Bottleneck, DeviceCopy, Options};
use forebay_shard::{find_split, some_of};
use forebay_wire::wire;
use pyo3::prelude::*;

use super::arguments::LoaderArgs;
use super::ranks::Ranks;
use crate::failure::{Failure, Kind, unexpected};
use crate::pump::Source;
use crate::storage;

/// An open stream of batches, and its properties.
pub(super) struct Opened {
    pub(super) fingerprint: String,
    /// The identity of the samples' keys, labels and order, if it is known.
    pub(super) sample_fingerprint: Option<String>,
    pub(super) split: String,
    pub(super) records: u64,
    /// Samples per epoch, of all ranks together and without padding.
    pub(super) samples: u64,
    /// The batches of an epoch.
    pub(super) batches: Batches,
    /// The options, including all defaults that affect the order of samples.
    pub(super) options: Options,
    /// The label of the first class in batches; `None` where it differs from dataset to dataset.
    pub(super) label_base: Option<i64>,
    /// The names of classes in the order of labels; empty if they are unknown.
    pub(super) classes: Arc<[String]>,
    /// The number of the first record of each dataset of a mix.
    pub(super) starts: Option<Vec<u64>>,
    pub(super) handle: Arc<dyn Handle>,
}

/// An open dataset or a connected server, which opens streams.
pub(super) trait Opener: Send + Sync {
    /// Returns the world size of the server's job, if it has one.
    fn job_world(&self) -> Option<u64> {
        None
    }
    /// Opens the stream of one rank. Blocks.
    fn open(&self, ranks: &Ranks) -> Result<(Opened, Box<dyn Source>), Failure>;
}

/// Times of the loops over batches, which the thread that takes batches from the source does not know.
pub(super) struct LoopTimes {
    /// How long they waited for batches.
    pub(super) waited: Duration,
    /// How long handing batches to Python took.
    pub(super) handover: Duration,
    /// The times of copying batches to a device.
    pub(super) device: Option<DeviceCopy>,
}

/// Controls a source from other threads.
pub(super) trait Handle: Send + Sync {
    /// Makes a blocked call of the source return soon.
    fn interrupt(&self);
    /// Interrupts this source and everything else that its [`Opener`] opened.
    fn cancel(&self);
    /// Returns the failure to report while the server is lost and no other one has replaced it.
    fn away(&self) -> Option<Failure> {
        None
    }
    /// Returns the times and waits of each stage.
    fn counters(&self, loops: LoopTimes) -> Counters;
    /// Takes note of how long loops have waited for batches so far.
    fn waited(&self, _: Duration) {}
    /// Returns the transport that is in use, if batches are from a server.
    fn transport(&self) -> Option<&'static str> {
        None
    }
    /// Returns the servers of the stream, if batches are from servers.
    fn servers(&self) -> Option<Servers> {
        None
    }
}

/// The servers of a stream, and the counters of the stream.
pub(super) struct Servers {
    /// The server that sends batches at present.
    pub(super) now: String,
    pub(super) used: Vec<ServerUse>,
    pub(super) stats: StreamStats,
}

/// Times and waits of each stage of a source.
pub(super) struct Counters {
    pub(super) wire: wire::Stats,
    /// The bottleneck, if it is known.
    pub(super) bottleneck: Option<Bottleneck>,
}

/// The source of samples, as given.
pub(super) enum Origin {
    One(OsString),
    Several(GivenMix),
}

/// A `forebay.Mix`, by its attributes.
#[derive(FromPyObject)]
pub(super) struct GivenMix {
    sources: Vec<PathBuf>,
    weights: Option<GivenWeights>,
    labels: GivenLabels,
}

#[derive(FromPyObject)]
enum GivenWeights {
    Constant(Vec<f64>),
    ByEpoch(Vec<Vec<f64>>),
}

#[derive(FromPyObject)]
enum GivenLabels {
    Named(String),
    Added(Vec<i64>),
}

impl GivenMix {
    /// Returns the weights of the datasets in each epoch.
    fn weights(&self) -> &[Vec<f64>] {
        match &self.weights {
            None => &[],
            Some(GivenWeights::Constant(weights)) => std::slice::from_ref(weights),
            Some(GivenWeights::ByEpoch(epochs)) => epochs,
        }
    }
}

impl Origin {
    pub(super) fn of(source: &Bound<'_, PyAny>) -> PyResult<Origin> {
        if let Ok(mix) = source.extract() {
            return Ok(Origin::Several(mix));
        }
        let path = source.extract::<PathBuf>().map_err(|_| {
            let expected =
                "the path or address of a dataset, or a forebay.Mix of several, as source";
            unexpected(source, expected)
        })?;
        Ok(Origin::One(path.into_os_string()))
    }

    /// Returns whether any of it is in a store.
    pub(super) fn is_far(&self) -> bool {
        match self {
            Origin::One(source) => storage::is_far(source),
            Origin::Several(mix) => mix.sources.iter().any(storage::is_far),
        }
    }
}

impl Origin {
    /// Returns whether a server makes the batches.
    pub(super) fn is_served(&self) -> bool {
        match self {
            Origin::One(source) => source.to_str().is_some_and(forebay_client::Url::is_one),
            Origin::Several(_) => false,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mix = match self {
            Origin::One(source) => return write!(f, "{}", source.to_string_lossy()),
            Origin::Several(mix) => mix,
        };
        for (i, source) in mix.sources.iter().enumerate() {
            let plus = if i == 0 { "" } else { " + " };
            match mix.weights().first().and_then(|weights| weights.get(i)) {
                None => write!(f, "{plus}{}", source.display())?,
                Some(weight) => write!(f, "{plus}{weight}*{}", source.display())?,
            }
        }
        Ok(())
    }
}

/// Opens the datasets that `origin` names, or connects to its server. Blocks.
pub(super) fn reach(origin: &Origin, args: LoaderArgs) -> Result<Box<dyn Opener>, Failure> {
    let source = match origin {
        Origin::One(source) => source,
        Origin::Several(mix) => return local::reach_mix(mix, &args.in_process()?),
    };
    match source.to_str() {
        Some(url) if forebay_client::Url::is_one(url) => remote::reach(url, args),
        Some(url) if is_web(url) => local::reach(source, &args.in_process()?).map_err(|failure| {
            let hint = "batches of forebay serve come from forebay://HOST:PORT/NAME";
            failure.hint(Some(hint.to_owned()))
        }),
        _ => local::reach(source, &args.in_process()?),
    }
}

/// Returns whether a URL is that of a web server. It may hold shards, or may be meant for a server of batches.
fn is_web(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

/// Returns the requested split, or the only one.
fn choose<'a>(
    wanted: Option<&str>,
    names: impl Iterator<Item = &'a str>,
    of: &dyn std::fmt::Display,
) -> Result<String, Failure> {
    let names: Vec<&str> = names.collect();
    let problem = match (wanted, names.as_slice()) {
        (None, [only]) => return Ok((*only).to_owned()),
        (Some(wanted), names) => match find_split(wanted, names.iter().copied()) {
            Some(found) => return Ok(found.to_owned()),
            None => format!("{of} has no split {wanted:?}"),
        },
        (None, _) => format!("{of} has several splits, and split= does not say which"),
    };
    let message = format!("{problem}: there are {}", some_of(names));
    Err(Failure::new(Kind::Option, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_servers_are_known_by_their_scheme() {
        for (url, is) in [
            ("http://a:7070/x", true),
            ("HTTPS://a/x", true),
            ("forebay://a/x", false),
            ("/http/x", false),
            ("s3://http/x", false),
        ] {
            assert_eq!(is_web(url), is, "{url}");
        }
    }

    #[test]
    fn an_ambiguous_split_is_refused() {
        let of = "the dataset";
        let choose = |wanted, names: &[&'static str]| choose(wanted, names.iter().copied(), &of);
        assert_eq!(choose(None, &["train"]).unwrap(), "train");
        assert_eq!(choose(Some("b"), &["a", "b"]).unwrap(), "b");
        assert!(choose(None, &["a", "b"]).is_err());
        assert!(choose(None, &[]).is_err());
        assert!(choose(Some("c"), &["a", "b"]).is_err());
        assert_eq!(
            choose(Some("val"), &["a", "validation"]).unwrap(),
            "validation"
        );
        let error = format!("{:?}", choose(Some("val"), &["dev", "valid"]).unwrap_err());
        assert!(error.contains("there are dev, valid"), "{error}");
    }
}
