//! The arguments of `Loader`, checked and turned into options.

use std::path::PathBuf;
use std::time::Duration;

use forebay_client::{ClientTls, Credential, Token, Transport};
use forebay_image::{Dtype, Layout, Limits, Normalize, Profile, TrainTransform, Transform};
use forebay_loader::plan::Shuffle;
use forebay_loader::{OnError, Options, PageCache};
use forebay_store::Cancel;
use pyo3::prelude::*;

use crate::failure::{Failure, Kind};
use crate::storage::Reading;
use crate::transform::AnyTransform;
use given::ShuffleWish;
pub(crate) use given::{_bytes, Count};
pub(crate) use keywords::Keywords;

mod given;
mod keywords;
mod sampling;
mod wish;

/// Side of the default transform's output: what models for ImageNet take.
const DEFAULT_SIDE: u32 = 224;

/// What a server is shown, and how it is trusted.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(crate) credential: Option<Credential>,
    pub(crate) tls: ClientTls,
}

/// What is given for servers; what is not comes from the environment.
pub(crate) fn access(
    token: Option<&str>,
    token_file: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
) -> Result<Access, Failure> {
    let credential = match (token, token_file) {
        (Some(_), Some(_)) => {
            let message = "options token and token_file: expected one of the two";
            return Err(Failure::new(Kind::Option, message));
        }
        (Some(token), None) => {
            // Not what it is: it may be a secret with a mistake in it.
            let token = Token::new(token, "option token")
                .map_err(|error| Failure::new(Kind::Option, error))?;
            Some(Credential::Token(token))
        }
        (None, file) => file.map(Credential::File),
    };
    let identity = match (tls_cert, tls_key) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some((cert, key)),
        _ => {
            let message = "options tls_cert and tls_key: expected both or none";
            return Err(Failure::new(Kind::Option, message));
        }
    };
    let tls = ClientTls {
        ca: tls_ca,
        identity,
    };
    Ok(Access { credential, tls })
}

/// Everything about the stream; where it comes from is apart.
pub(crate) struct Wish {
    pub(crate) options: Options,
    pub(crate) split: Option<String>,
    pub(crate) timeout: Option<Duration>,
    /// How batches come from a server, if anything was said.
    pub(crate) transport: Option<Transport>,
    /// Over how many connections each batch comes from a server.
    pub(crate) connections: usize,
    /// From how many servers at once.
    pub(crate) spread: usize,
    /// How datasets are read.
    pub(crate) read: Reading,
    /// Ends whatever waits for the stores that they are in.
    pub(crate) cancel: Cancel,
    /// Options that were named, as fields of a spec: a job's may not differ.
    pub(crate) given: Vec<&'static str>,
    /// The ranks that the options name.
    pub(crate) rank: Option<u64>,
    pub(crate) world_size: Option<u64>,
    /// For servers.
    pub(crate) access: Access,
}

impl Wish {
    /// The same wish of a loader without a server, if it can be one.
    pub(crate) fn in_process(self) -> Result<Wish, Failure> {
        if self.spread != 1 {
            let expected = "1: batches are made in this process";
            return Err(refused("spread", self.spread, expected));
        }
        match self.transport {
            None | Some(Transport::Auto) => Ok(self),
            Some(other) => {
                let expected = "nothing: batches are made in this process";
                Err(refused(
                    "transport",
                    format!("{:?}", other.to_string()),
                    expected,
                ))
            }
        }
    }
}

/// An option that cannot be.
fn refused(name: &str, found: impl std::fmt::Display, expected: &str) -> Failure {
    let message = format!("option {name} is {found}: expected {expected}");
    Failure::new(Kind::Option, message)
}

/// The transform, and the normalisation that a list may have.
pub(crate) fn transform(
    given: Option<AnyTransform<'_>>,
) -> PyResult<(Transform, Option<Normalize>)> {
    given.map_or_else(
        || Ok((Transform::Train(TrainTransform::new(DEFAULT_SIDE)), None)),
        AnyTransform::compile,
    )
}

/// The values of `shuffle`, for errors.
fn shuffles() -> String {
    let names: Vec<String> = Shuffle::names().map(|name| format!("'{name}'")).collect();
    format!("True, False or one of {}", names.join(", "))
}

pub(crate) fn shuffle(
    wish: ShuffleWish,
    block_records: Option<u64>,
    window_blocks: Option<u64>,
) -> Result<Shuffle, Failure> {
    let name = match &wish {
        ShuffleWish::Whether(true) => "blocks",
        ShuffleWish::Whether(false) => "none",
        ShuffleWish::Named(name) => name,
    };
    let Some(mut shuffle) = Shuffle::named(name) else {
        return Err(refused("shuffle", format!("{name:?}"), &shuffles()));
    };
    shuffle.block_records = block_records.unwrap_or(0);
    shuffle.window_blocks = window_blocks.unwrap_or(0);
    if !shuffle.has_blocks() {
        for (name, value) in [
            ("block_records", block_records),
            ("window_blocks", window_blocks),
        ] {
            if let Some(value) = value {
                let expected = format!("nothing: shuffle='{}' has no blocks", shuffle.name());
                return Err(refused(name, value, &expected));
            }
        }
    }
    Ok(shuffle)
}

/// Whether the last, short batch is filled up: two words for it.
pub(crate) fn keep_last(drop_last: Option<bool>, pad_last: Option<bool>) -> Result<bool, Failure> {
    match (drop_last, pad_last) {
        (None, None) => Ok(false),
        (Some(drop), None) => Ok(!drop),
        (None, Some(pad)) => Ok(pad),
        (Some(drop), Some(pad)) if drop != pad => Ok(pad),
        (Some(drop), Some(_)) => {
            let found = format!("{drop} as well as drop_last");
            Err(refused(
                "pad_last",
                found,
                "one of the two, as it is the other's opposite",
            ))
        }
    }
}

pub(crate) fn page_cache(name: &str) -> Result<PageCache, Failure> {
    match name {
        "keep" => Ok(PageCache::Keep),
        "drop" => Ok(PageCache::Drop),
        _ => Err(refused(
            "page_cache",
            format!("{name:?}"),
            "'keep' or 'drop'",
        )),
    }
}

pub(crate) fn on_error(name: &str) -> Result<OnError, Failure> {
    match name {
        "raise" => Ok(OnError::Raise),
        "skip" => Ok(OnError::Skip),
        "zero" => Ok(OnError::Zero),
        _ => Err(refused(
            "on_error",
            format!("{name:?}"),
            "'raise', 'skip' or 'zero'",
        )),
    }
}

pub(crate) fn layout(name: &str) -> Result<Layout, Failure> {
    match name.to_ascii_lowercase().as_str() {
        "nhwc" => Ok(Layout::Nhwc),
        "nchw" => Ok(Layout::Nchw),
        _ => Err(refused("layout", format!("{name:?}"), "'nhwc' or 'nchw'")),
    }
}

pub(crate) fn dtype(name: &str) -> Result<Dtype, Failure> {
    let all = [
        Dtype::Uint8,
        Dtype::Float32,
        Dtype::Float16,
        Dtype::Bfloat16,
    ];
    all.into_iter()
        .find(|dtype| dtype.name() == name)
        .ok_or_else(|| {
            let expected = "'uint8', 'float32', 'float16' or 'bfloat16'";
            refused("dtype", format!("{name:?}"), expected)
        })
}

pub(crate) fn profile(name: &str) -> Result<Profile, Failure> {
    name.parse().map_err(|_| {
        let expected = "'pillow', 'opencv' or 'tensorflow'";
        refused("profile", format!("{name:?}"), expected)
    })
}

pub(crate) fn limits(
    limits: &mut Limits,
    max_pixels: Option<u64>,
    max_image_bytes: Option<u64>,
) -> Result<(), Failure> {
    for (name, given, limit) in [
        ("max_pixels", max_pixels, &mut limits.max_pixels),
        (
            "max_image_bytes",
            max_image_bytes,
            &mut limits.max_decoded_bytes,
        ),
    ] {
        match given {
            Some(0) => return Err(refused(name, 0, "1 or more")),
            Some(given) => *limit = given,
            None => {}
        }
    }
    Ok(())
}

/// How batches come from a server.
pub(crate) fn transport(given: Option<&str>) -> Result<Option<Transport>, Failure> {
    let transport = given.map(str::parse).transpose()?;
    Ok(transport)
}

/// As above, or as the environment says.
pub(crate) fn transport_from_environment(given: Option<Transport>) -> Result<Transport, Failure> {
    const VARIABLE: &str = "FOREBAY_TRANSPORT";
    match (given, std::env::var(VARIABLE)) {
        (Some(given), _) => Ok(given),
        (None, Ok(text)) if !text.is_empty() => text.parse().map_err(|_| {
            let found = format!("{text:?} (from the environment variable {VARIABLE})");
            refused("transport", found, "'auto', 'shm' or 'tcp'")
        }),
        _ => Ok(Transport::Auto),
    }
}

pub(crate) fn timeout(seconds: Option<f64>) -> Result<Option<Duration>, Failure> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
        _ => Err(refused("timeout", seconds, "seconds, more than 0, or None")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_shuffle() {
        let named = |name: &str| shuffle(ShuffleWish::Named(name.into()), None, None);
        let blocks = Shuffle::blocks;
        assert_eq!(named("blocks").unwrap(), blocks(0, 0));
        assert_eq!(named("full").unwrap(), Shuffle::FULL);
        assert!(named("sometimes").is_err());
        let yes = ShuffleWish::Whether(true);
        assert_eq!(shuffle(yes, Some(4), Some(2)).unwrap(), blocks(4, 2));
        let no = || ShuffleWish::Whether(false);
        assert_eq!(shuffle(no(), None, None).unwrap(), Shuffle::NONE);
        assert!(shuffle(no(), Some(4), None).is_err());
    }

    #[test]
    fn the_last_batch_is_dropped_or_padded() {
        assert!(!keep_last(None, None).unwrap());
        assert!(!keep_last(Some(true), None).unwrap());
        assert!(keep_last(Some(false), None).unwrap());
        assert!(keep_last(None, Some(true)).unwrap());
        assert!(keep_last(Some(false), Some(true)).unwrap());
        assert!(keep_last(Some(true), Some(true)).is_err());
        assert_eq!(on_error("zero").unwrap(), OnError::Zero);
        assert!(on_error("ignore").is_err());
    }

    #[test]
    fn times_are_positive() {
        assert_eq!(timeout(None).unwrap(), None);
        assert_eq!(
            timeout(Some(0.5)).unwrap(),
            Some(Duration::from_millis(500))
        );
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(timeout(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
