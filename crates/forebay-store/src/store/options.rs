//! Options of stores: connection, credentials, timeouts and retries.

use crate::Cancel;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How to connect to a [`Store`](crate::Store). Options that are not set come from the environment variables of the
/// provider's own tools.
#[derive(Clone, PartialEq)]
pub struct StoreOptions {
    /// The server's URL, if it is not the provider's default: `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    /// The region, for S3.
    pub region: Option<String>,
    /// Whether requests go without credentials, for public buckets.
    pub anonymous: bool,
    /// Time without progress after which a request fails. A request that transfers many bytes may take longer in total.
    pub timeout: Duration,
    /// How failed requests are retried.
    pub retry: Retry,
    /// Bandwidth limit of all transfers of this store together, in bytes per second; `None` means no limit.
    pub bandwidth: Option<u64>,
    /// Maximum number of requests in flight from this process to one bucket. The limit drops while a store asks to slow down.
    pub max_requests: usize,
    /// Once this flag is raised, all running and later calls of this store return
    /// [`Error::Cancelled`](crate::Error::Cancelled) within a fraction of a second.
    pub cancel: Option<Cancel>,
    /// Further settings, named as in the providers' tools: `aws_access_key_id`, `google_application_credentials`,
    /// `azure_storage_account_name`, `profile`, `allow_http` and so on. docs/storage.md lists them.
    pub extra: BTreeMap<String, String>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            anonymous: false,
            timeout: Duration::from_secs(30),
            retry: Retry::default(),
            bandwidth: None,
            max_requests: 64,
            cancel: None,
            extra: BTreeMap::new(),
        }
    }
}

impl StoreOptions {
    /// The default options: all settings come from the environment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the server's URL.
    #[must_use]
    pub fn with_endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Adds a setting to [`extra`](Self::extra).
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }

    /// Sets how failed requests are retried.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Returns the endpoint without user name, password and query, so that it may be logged or stored.
    #[must_use]
    pub fn public_endpoint(&self) -> Option<String> {
        self.endpoint.as_deref().map(without_secrets)
    }
}

/// Values of `extra` may be secrets, so only their names are shown.
impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("endpoint", &self.public_endpoint())
            .field("region", &self.region)
            .field("anonymous", &self.anonymous)
            .field("timeout", &self.timeout)
            .field("retry", &self.retry)
            .field("bandwidth", &self.bandwidth)
            .field("max_requests", &self.max_requests)
            .field("cancel", &self.cancel)
            .field("extra", &self.extra.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A URL without user name, password and query.
pub(crate) fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = host.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => url.to_owned(),
    }
}

/// Retries with exponential backoff: each wait is a random time up to a bound that doubles from try to try.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Maximum number of tries, the first included; 1 disables retries.
    pub max_attempts: u32,
    /// The upper bound of the wait before the second try.
    pub first_wait: Duration,
    /// The upper bound of the wait before any try.
    pub max_wait: Duration,
    /// No retry starts later than this after the first try. For a store that has never responded in this process, a tenth of it.
    pub give_up_after: Duration,
    /// A longer wait is reported to the observer of [`on_long_wait`](crate::on_long_wait).
    pub say_after: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 100,
            first_wait: Duration::from_millis(100),
            max_wait: Duration::from_secs(10),
            // Bridges outages of a minute, with a margin.
            give_up_after: Duration::from_secs(150),
            say_after: Duration::from_secs(10),
        }
    }
}

impl Retry {
    /// No retries.
    pub fn never() -> Self {
        Self {
            max_attempts: 1,
            ..Self::default()
        }
    }
}

pub(super) fn is_true(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let options = StoreOptions::new()
            .with_endpoint("https://USER:HIDDEN@host:1/a?sig=HIDDEN")
            .with("aws_secret_access_key", "HIDDEN");
        let shown = format!("{options:?}");
        assert!(!shown.contains("HIDDEN"), "{shown}");
        assert!(shown.contains("https://host:1/a"), "{shown}");
        assert!(shown.contains("aws_secret_access_key"), "{shown}");
    }
}
