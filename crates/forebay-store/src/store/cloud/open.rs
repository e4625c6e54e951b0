//! Opening a store: its service, endpoint and credentials.
//!
//! Precedence of settings: fields of the options, `extra`, environment, profile.

mod values;

use super::adaptive_limiter::AdaptiveLimiter;
use super::environment::Environment;
use super::watcher::Watched;
use super::{CheckUploads, Open, Service, Settings, fault};
use crate::prices::VARIABLE;
use crate::scheme::{Kind, find};
use crate::store::StoreOptions;
use crate::store::options::{is_true, without_secrets};
use crate::{Error, Limiter, Location, Result, Tariff};
use object_store::client::HttpConnector;
use object_store::path::Path as Name;
use object_store::{ClientOptions, HeaderValue, RetryConfig};
use std::collections::BTreeMap;
use std::time::Duration;

/// Enough for a connection to a reachable server on another continent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The function that opens a service with the settings of an [`Opening`].
pub(super) type Connect = fn(Opening<'_>) -> Result<Open>;

pub(super) fn open(location: &Location, options: &StoreOptions, connect: Connect) -> Result<Open> {
    connect(Opening::new(location, options, &Environment::of_process())?)
}

/// The settings that a service is opened with.
pub(super) struct Opening<'a> {
    pub(super) location: &'a Location,
    pub(super) options: &'a StoreOptions,
    pub(super) around: &'a Environment,
    /// The settings of `extra` that are not used yet; they are passed to the `object_store` client.
    pub(super) extra: BTreeMap<String, String>,
    pub(super) settings: Settings,
    allow_http: bool,
    pub(super) profile: Option<String>,
}

impl<'a> Opening<'a> {
    fn new(
        location: &'a Location,
        options: &'a StoreOptions,
        around: &'a Environment,
    ) -> Result<Self> {
        let mut extra: BTreeMap<String, String> = options
            .extra
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
            .collect();
        let profile = extra
            .remove("profile")
            .or_else(|| extra.remove("aws_profile"));
        let mut opening = Self {
            location,
            options,
            around,
            extra,
            settings: Settings::default(),
            allow_http: false,
            profile,
        };
        for (name, value) in &options.extra {
            opening.check_value(&format!("the storage option {name}"), value)?;
        }
        if let Some(endpoint) = &options.endpoint {
            opening.check_value("the endpoint", endpoint)?;
        }
        if let Some(region) = &options.region {
            opening.check_value("the region", region)?;
        }
        opening.allow_http = opening.flag("allow_http")?
            || opening.flag("aws_allow_http")?
            || ["AWS_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP", "AZURE_ALLOW_HTTP"]
                .iter()
                .any(|name| {
                    around
                        .var(name)
                        .is_some_and(|value| is_true(value) == Some(true))
                });
        opening.settings.assume_conditional_put = opening.flag("assume_conditional_put")?;
        opening.settings.check_uploads = match opening.extra.remove("check_uploads").as_deref() {
            None | Some("reported") => CheckUploads::Reported,
            Some("read") => CheckUploads::Read,
            Some(_) => return Err(opening.wrong("check_uploads is reported or read", None)),
        };
        Ok(opening)
    }

    fn flag(&mut self, name: &str) -> Result<bool> {
        match self.extra.remove(name) {
            None => Ok(false),
            Some(value) => {
                is_true(&value).ok_or_else(|| self.wrong(&format!("{name} is true or false"), None))
            }
        }
    }

    pub(super) fn wrong(&self, why: &str, hint: Option<&str>) -> Error {
        Error::Options {
            place: self.location.to_string(),
            why: self.redact(why),
            hint: hint.map(str::to_owned),
        }
    }

    /// `text` without any value that may be a secret.
    fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let given = self
            .options
            .extra
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()));
        for (name, value) in self.around.vars().chain(given) {
            let name = name.to_ascii_lowercase();
            let is_secret = [
                "key",
                "secret",
                "token",
                "password",
                "sas",
                "connection_string",
            ]
            .iter()
            .any(|word| name.contains(word));
            if is_secret && value.len() >= 4 {
                text = text.replace(value, "...");
            }
        }
        text
    }

    pub(super) fn failed(&self, error: &object_store::Error) -> Error {
        self.wrong(
            &fault::innermost(error),
            Some("docs/storage.md has the options and variables that are read"),
        )
    }

    /// Refuses plain HTTP, which would send bytes and signatures unencrypted, except to this machine.
    pub(super) fn check_http(&mut self, url: &str) -> Result<()> {
        // `object_store` panics at a URL that is not valid.
        if reqwest::Url::parse(url).is_err() {
            return Err(self.wrong("the endpoint is not a valid URL", None));
        }
        let Some(rest) = url.strip_prefix("http://") else {
            if url.starts_with("https://") {
                return Ok(());
            }
            return Err(self.wrong(
                "an endpoint is a URL that begins with https:// or http://",
                None,
            ));
        };
        self.settings.plain_http = true;
        if self.allow_http || is_loopback(rest) {
            return Ok(());
        }
        Err(Error::Options {
            place: without_secrets(url),
            why: "http:// is not encrypted, and is refused but on this machine".to_owned(),
            hint: Some(
                "use https://, or, in a network that is trusted, allow it with the storage option allow_http=true"
                    .to_owned(),
            ),
        })
    }

    pub(super) fn client_options(&self) -> ClientOptions {
        let agent = concat!("forebay/", env!("CARGO_PKG_VERSION"));
        let mut options = ClientOptions::new()
            // The time of a whole request depends on its bytes; `Live::run` and its callers limit it.
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_user_agent(HeaderValue::from_static(agent))
            .with_allow_http(self.settings.plain_http);
        if self.settings.plain_http {
            // Allows plain HTTP on machines that have no system certificates.
            options = options.with_no_system_certificates(true);
        }
        options
    }

    /// Disables the retries of `object_store`: `Live::run` makes and counts all tries.
    pub(super) fn no_retry() -> RetryConfig {
        RetryConfig {
            max_retries: 0,
            ..RetryConfig::default()
        }
    }

    pub(super) fn finish(self, service: Box<dyn Service>, endpoint: Option<&str>) -> Result<Open> {
        let location = self.location;
        let connector = match service.is_read_only() {
            true => Watched::Web,
            false => Watched::Bucket,
        };
        let client = connector
            .connect(&self.client_options())
            .map_err(|error| self.failed(&error))?;
        let prefix = service.prefix(location);
        let prefix = Name::parse(prefix).map_err(|_| Error::BadKey {
            key: prefix.to_owned(),
            why: "object stores have no such names",
        })?;
        let bucket = format!(
            "{}://{} {}",
            location.scheme().unwrap_or_default(),
            location.authority().unwrap_or_default(),
            endpoint.unwrap_or_default()
        );
        let tariff = self.tariff(endpoint)?;
        Ok(Open {
            pid: std::process::id(),
            location: location.clone(),
            service,
            client,
            prefix,
            pace: AdaptiveLimiter::shared(&bucket, self.options.max_requests, &tariff),
            billed: std::sync::Arc::default(),
            tariff,
            limiter: self.options.bandwidth.map(|rate| Limiter::new(Some(rate))),
            timeout: self.options.timeout,
            retry: self.options.retry,
            settings: self.settings,
            counters: super::Counters::default(),
            invalid_names: std::sync::Mutex::default(),
        })
    }

    /// The prices of the store's requests and transfers. An endpoint that is not a provider's has those of an own one.
    fn tariff(&self, endpoint: Option<&str>) -> Result<std::sync::Arc<Tariff>> {
        let kind = self.location.scheme().and_then(find);
        let kind = kind.map_or(Kind::web, |scheme| scheme.store);
        let host = endpoint.and_then(|endpoint| reqwest::Url::parse(endpoint).ok());
        let host = host.as_ref().and_then(reqwest::Url::host_str);
        let is_providers = |host: &str| {
            let domains = [".amazonaws.com", ".googleapis.com", ".core.windows.net"];
            domains.iter().any(|domain| host.ends_with(domain))
        };
        let is_own = endpoint.is_some() && !host.is_some_and(is_providers);
        Tariff::load(kind, is_own, self.around.var(VARIABLE))
    }

    /// The value of the first of these environment variables that is set.
    pub(super) fn variable(&self, names: &[&str]) -> Result<Option<String>> {
        for name in names {
            if let Some(value) = self.around.var(name) {
                self.check_value(name, value)?;
                return Ok(Some(value.to_owned()));
            }
        }
        Ok(None)
    }

    /// Takes a setting out of `extra`. `names` are its aliases; the first one that is set wins.
    pub(super) fn take(&mut self, names: &[&str]) -> Option<String> {
        let mut found = None;
        for name in names {
            let value = self.extra.remove(*name);
            found = found.or(value);
        }
        found
    }

    pub(super) fn unknown(&self, name: &str) -> Error {
        self.wrong(
            &format!("there is no storage option {name:?}"),
            Some("docs/storage.md lists them"),
        )
    }
}

/// Whether a variable is read here, so that it is not passed to the `object_store` client.
pub(super) fn is_ours(name: &str) -> bool {
    matches!(
        name,
        "aws_endpoint_url"
            | "aws_endpoint_url_s3"
            | "aws_endpoint"
            | "aws_region"
            | "aws_default_region"
            | "aws_allow_http"
            | "google_base_url"
            | "google_allow_http"
            | "azure_storage_endpoint"
            | "azure_endpoint"
            | "azure_allow_http"
    )
}

/// Whether the host in `rest`, the URL without `http://`, is this machine.
fn is_loopback(rest: &str) -> bool {
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn opened(url: &str, options: &StoreOptions, vars: &[(&str, &str)]) -> Result<Open> {
        let location = Location::parse(url).unwrap();
        let around = Environment::new(vars);
        let opening = Opening::new(&location, options, &around)?;
        match location.scheme() {
            Some("s3") => crate::store::cloud::s3::connect(opening),
            Some("gs") => crate::store::cloud::google::connect(opening),
            Some("hf") => crate::store::cloud::hub::connect(opening),
            _ => crate::store::cloud::azure::connect(opening),
        }
    }

    pub(super) const KEYS: [(&str, &str); 2] = [
        ("AWS_ACCESS_KEY_ID", "MARKEDID"),
        ("AWS_SECRET_ACCESS_KEY", "MARKEDSECRET"),
    ];

    #[test]
    fn prices_follow_the_endpoint_and_the_variable() {
        let origin = |endpoint: &str| {
            let options = match endpoint {
                "" => StoreOptions::new(),
                endpoint => StoreOptions::new().with_endpoint(endpoint),
            };
            opened("s3://bucket/x", &options, &KEYS)
                .unwrap()
                .tariff
                .origin()
        };
        assert!(origin("").contains("Amazon S3"), "{}", origin(""));
        assert!(origin("https://s3.us-west-2.amazonaws.com").contains("Amazon S3"));
        for own in ["http://127.0.0.1:9000", "https://amazonaws.com.example.org"] {
            assert!(origin(own).contains("an endpoint of your own"), "{own}");
        }
        let [id, secret] = KEYS;
        let vars = [id, secret, ("FOREBAY_PRICES", "/no/such/prices.toml")];
        let error = opened("s3://bucket/x", &StoreOptions::new(), &vars).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("the prices in \"/no/such/prices.toml\": "),
            "{error}"
        );
    }

    #[test]
    fn plain_http_is_accepted_for_loopback_only() {
        for (endpoint, good) in [
            ("http://127.0.0.1:9000", true),
            ("http://localhost", true),
            ("http://[::1]:9", true),
            ("http://127.0.0.1.example.org", false),
            ("http://10.0.0.1:9000", false),
            ("http://localhost@evil.example:1/", false),
            ("ftp://127.0.0.1", false),
        ] {
            let options = StoreOptions::new().with_endpoint(endpoint);
            let result = opened("s3://bucket/x", &options, &KEYS);
            assert_eq!(result.is_ok(), good, "{endpoint}");
            if endpoint.starts_with("http") {
                let allowed = options.with("allow_http", "true");
                assert!(opened("s3://bucket/x", &allowed, &KEYS).is_ok());
            }
        }
    }

    #[test]
    fn unknown_options_are_named() {
        let options = StoreOptions::new().with("aws_colour", "MARKEDVALUE");
        let error = opened("s3://bucket", &options, &KEYS)
            .unwrap_err()
            .to_string();
        assert!(error.contains("aws_colour"), "{error}");
        assert!(!error.contains("MARKED"), "{error}");
    }

    #[test]
    fn secrets_are_never_shown() {
        let sas = "sv=2020&sig=MARKEDSIG";
        for (url, vars) in [
            ("s3://bucket/x", KEYS.to_vec()),
            (
                "az://box/x",
                vec![
                    ("AZURE_STORAGE_ACCOUNT_NAME", "me"),
                    ("AZURE_STORAGE_SAS_KEY", sas),
                ],
            ),
            (
                "az://box/x",
                vec![
                    ("AZURE_STORAGE_ACCOUNT_NAME", "me"),
                    ("AZURE_STORAGE_ACCOUNT_KEY", "MARKED not base64"),
                ],
            ),
            ("hf://datasets/me/x", vec![("HF_TOKEN", "MARKED\u{e9}")]),
            ("hf://datasets/me/x", vec![("HF_TOKEN", "MARKED")]),
            (
                "gs://bucket/x",
                vec![("GOOGLE_SERVICE_ACCOUNT_KEY", "{\"private_key\": \"MARKED\"")],
            ),
        ] {
            let options = StoreOptions::new().with("aws_session_token", "MARKEDTOKEN");
            for options in [StoreOptions::new(), options] {
                let shown = match opened(url, &options, &vars) {
                    Ok(open) => format!("{open:?} {options:?}"),
                    Err(error) => format!("{error} {error:?} {options:?}"),
                };
                assert!(!shown.contains("MARKED"), "{url}: {shown}");
            }
        }
    }

    #[test]
    fn profiles_that_cannot_be_used_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        std::fs::write(
            &config,
            "[profile sso]\nsso_session = x\n[profile half]\naws_access_key_id = MARKED\n",
        )
        .unwrap();
        let vars = [("AWS_CONFIG_FILE", config.to_str().unwrap())];
        for (profile, word) in [
            ("sso", "sso_session"),
            ("half", "not both"),
            ("none", "none"),
        ] {
            let options = StoreOptions::new().with("profile", profile);
            let error = opened("s3://bucket", &options, &vars).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert!(!format!("{error:?}").contains("MARKED"));
            assert!(error.hint().is_some() || profile == "half");
        }
    }

    #[test]
    fn an_azure_account_comes_from_the_url_or_the_environment() {
        let key = ("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0");
        let open = opened(
            "abfss://box@me.dfs.core.windows.net/x",
            &StoreOptions::new(),
            &[key],
        )
        .unwrap();
        assert_eq!(open.settings.account, "me");
        let error = opened("az://box/x", &StoreOptions::new(), &[key]).unwrap_err();
        assert!(error.hint().unwrap().contains("AZURE_STORAGE_ACCOUNT_NAME"));
        let connection = "DefaultEndpointsProtocol=http;AccountName=dev;AccountKey=c2VjcmV0;BlobEndpoint=http://127.0.0.1:1/dev;";
        let open = opened(
            "az://box",
            &StoreOptions::new(),
            &[("AZURE_STORAGE_CONNECTION_STRING", connection)],
        )
        .unwrap();
        assert_eq!(open.settings.account, "dev");
    }
}
