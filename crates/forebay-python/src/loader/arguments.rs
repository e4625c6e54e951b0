//! The arguments of `Loader`, checked and turned into options.

use std::path::PathBuf;
use std::time::Duration;

use forebay_client::{ClientTls, Credential, Token, Transport};
use forebay_loader::{Options, PageCache};
use forebay_options::{LoaderOptions, foreign, misspelled};
use forebay_store::Cancel;

use crate::failure::{Failure, Kind};
use crate::storage::Reading;
pub(crate) use given::Count;
pub(crate) use keywords::{_bytes, Keywords};
pub(crate) use loader_args::options_of;

mod given;
mod keywords;
mod loader_args;
mod schema;

/// Credentials for a server, and its trusted certificates.
#[derive(Clone, Default)]
pub(crate) struct Access {
    pub(crate) credential: Option<Credential>,
    pub(crate) tls: ClientTls,
}

/// Returns the credentials and certificates for servers. The environment supplies missing ones.
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
            // The error does not show the value, which may be a mistyped secret.
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

/// All options of a loader except its source.
pub(crate) struct LoaderArgs {
    pub(crate) options: Options,
    /// The failure if the server has no job: an option that is required without one is missing.
    pub(crate) missing: Option<Failure>,
    /// Options of the schema that the caller gave. They must agree with those of a job.
    pub(crate) given: LoaderOptions,
    pub(crate) timeout: Option<Duration>,
    /// Whether the last batch is padded if there is one rank.
    pub(crate) pad_last: bool,
    /// Transport of batches from a server, if given.
    pub(crate) transport: Option<Transport>,
    /// Number of connections that transfer each batch from a server.
    pub(crate) connections: usize,
    /// Options for reading datasets.
    pub(crate) read: Reading,
    /// Ends all waits for the stores of the datasets.
    pub(crate) cancel: Cancel,
    /// Credentials and certificates for servers.
    pub(crate) access: Access,
}

impl LoaderArgs {
    /// Returns these arguments for a loader without a server. Fails for a transport that needs a server.
    pub(crate) fn in_process(self) -> Result<LoaderArgs, Failure> {
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

/// Returns a hint for the name of an unknown option.
fn hint(name: &str) -> Option<String> {
    let known = super::docs::options().map(|option| option.name);
    foreign(name)
        .map(str::to_owned)
        .or_else(|| misspelled(name, known).map(|meant| format!("use '{meant}'")))
}

/// Returns the failure for an invalid option value.
fn refused(name: &str, found: impl std::fmt::Display, expected: &str) -> Failure {
    let message = format!("option {name} is {found}: expected {expected}");
    Failure::new(Kind::Option, message)
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

/// Parses the transport of batches from a server.
pub(crate) fn transport(given: Option<&str>) -> Result<Option<Transport>, Failure> {
    let transport = given.map(str::parse).transpose()?;
    Ok(transport)
}

/// Returns the given transport, or else that of the environment.
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
