//! How a store is reached and how patiently.

use crate::Cancel;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How a [`Store`](crate::Store) is reached. What is left open comes from the environment, as other tools read it.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The server's URL, where it is not the provider's own: `http://127.0.0.1:9000`.
    pub endpoint: Option<String>,
    /// The region, for S3.
    pub region: Option<String>,
    /// Whether requests go without credentials, for public buckets.
    pub anonymous: bool,
    /// Time without progress after which a request fails. A request of many bytes may take longer as a whole.
    pub timeout: Duration,
    /// How failures are answered.
    pub retry: Retry,
    /// Bytes a second that all transfers of this store share; none does not limit.
    pub bandwidth: Option<u64>,
    /// Requests in flight to one bucket from this process at most. Fewer are sent to a store that asks to slow down.
    pub max_requests: usize,
    /// Ends whatever waits for this store once it is raised: calls return [`Error::Cancelled`](crate::Error::Cancelled) within a
    /// fraction of a second, also those made later.
    pub cancel: Option<Cancel>,
    /// Settings by the names that the field's tools have: `aws_access_key_id`, `google_application_credentials`,
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
    /// The options that name nothing: everything comes from the environment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the server's URL.
    #[must_use]
    pub fn with_endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Takes a region.
    #[must_use]
    pub fn with_region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Takes one more setting of [`extra`](Self::extra).
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }

    /// Takes how failures are answered.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Takes what ends all waiting for the store.
    #[must_use]
    pub fn with_cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Returns the endpoint without user name, password and query, as it may be written to a disk.
    #[must_use]
    pub fn public_endpoint(&self) -> Option<String> {
        self.endpoint.as_deref().map(without_secrets)
    }

    /// Sets the time without progress after which a request fails.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
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

/// How patiently failures are answered: by waiting a random time up to one that doubles, and trying again.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Retry {
    /// Tries at most, the first included; 1 never tries again.
    pub max_attempts: u32,
    /// The longest wait before the second try.
    pub first_wait: Duration,
    /// The longest wait before any try.
    pub max_wait: Duration,
    /// No try begins after this much time. A store that never answered in this process is given up after a tenth of it.
    pub give_up_after: Duration,
    /// A wait that is longer is said to the observer of [`on_long_wait`](crate::on_long_wait).
    pub say_after: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_attempts: 100,
            first_wait: Duration::from_millis(100),
            max_wait: Duration::from_secs(10),
            // Longer than the minute that a store may be away without anybody noticing.
            give_up_after: Duration::from_secs(150),
            say_after: Duration::from_secs(10),
        }
    }
}

impl Retry {
    /// Never tries again.
    pub fn never() -> Self {
        Self {
            max_attempts: 1,
            ..Self::default()
        }
    }

    /// Takes how long tries go on.
    #[must_use]
    pub fn with_give_up_after(mut self, time: Duration) -> Self {
        self.give_up_after = time;
        self
    }

    /// Takes how long a wait goes unsaid.
    #[must_use]
    pub fn with_say_after(mut self, time: Duration) -> Self {
        self.say_after = time;
        self
    }

    /// Takes how many tries there are at most, the first included.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Takes the longest waits: before the second try, and before any.
    #[must_use]
    pub fn with_waits(mut self, first: Duration, max: Duration) -> Self {
        self.first_wait = first;
        self.max_wait = max;
        self
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
