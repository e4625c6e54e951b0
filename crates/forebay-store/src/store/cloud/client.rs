//! The HTTP clients below `object_store`. Redirects are off in the underlying client.
//!
//! A request to a bucket carries a signature, a session token or a SAS in its query. Sent to the host of a redirect, it would
//! disclose these credentials, so requests to buckets never follow redirects. Requests to web servers follow up to five
//! redirects, but to another origin only without the token of the Hugging Face Hub, and at a public address: otherwise a
//! server could make this machine read addresses of its private network, such as the metadata of a cloud instance.

use super::exchange_log::EXCHANGE_LOG;
use super::random;
use http::HeaderMap;
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions, HeaderValue};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{NoProxy, Proxy, Url};
use std::collections::HashMap;
use std::error::Error as StdError;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Maximum number of redirects that one request follows.
const MAX_REDIRECTS: u32 = 5;
/// How long the target of a redirect is used for other ranges. The Hub signs its targets for an hour.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// Maximum number of targets that are remembered; a repository should have less than 100,000 files.
const MOST_TARGETS: usize = 100_000;
/// Variables that name a proxy for `https://`.
const PROXY_VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
/// Request headers that a redirected request keeps. None of them identifies the sender.
const KEPT_HEADERS: [&str; 6] = [
    "accept",
    "range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
];

/// Why a redirect was not followed. Stored in the extensions of the redirect response, which is returned to the caller.
#[derive(Debug, Clone, Copy)]
pub(super) struct NotFollowed(pub(super) &'static str);

/// Permitted targets of a redirect to another origin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admission {
    scheme: &'static str,
    address: fn(IpAddr) -> bool,
}

/// Encrypted, and at an address that is reachable from the whole internet.
const PUBLIC: Admission = Admission {
    scheme: "https",
    address: is_public,
};

/// Sends requests and returns redirects as they are.
#[derive(Debug)]
pub(super) struct Direct(reqwest::Client);

impl Direct {
    pub(super) fn new(options: &ClientOptions) -> object_store::Result<Self> {
        Self::authorized(options, None)
    }

    fn authorized(
        options: &ClientOptions,
        token: Option<&HeaderValue>,
    ) -> object_store::Result<Self> {
        let resolver = Resolver(|_| true);
        let client = with_proxy(client_builder(options, resolver)?, options)?;
        let token = token.map(|token| (http::header::AUTHORIZATION, token.clone()));
        let client = client.default_headers(token.into_iter().collect());
        Ok(Self(client.build().map_err(failed)?))
    }
}

#[async_trait::async_trait]
impl HttpService for Direct {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // The client of `object_store` panics at a URL that only one of its two URL parsers accepts.
        if let Err(error) = Url::parse(&request.uri().to_string()) {
            return Err(HttpError::new(HttpErrorKind::Unknown, error));
        }
        self.0.call(request).await
    }
}

/// Sends requests and follows redirects. Credentials, if there are any, go to the origin that the user named alone.
#[derive(Debug)]
pub(super) struct Following {
    /// For the origin that the user named.
    own: Direct,
    /// For all other origins: connects to admitted addresses only.
    others: Direct,
    admission: Admission,
    /// Whether a proxy is set, which resolves names itself, so that the resolved addresses cannot be checked here.
    has_proxy: bool,
    /// The targets of redirects, by the URL that was asked for; `None` if each request asks again.
    targets: Option<Mutex<HashMap<Url, Target>>>,
}

/// The URL that redirects led to.
#[derive(Debug, Clone)]
struct Target {
    url: Url,
    is_own: bool,
    since: Instant,
}

impl Following {
    /// A client of the Hugging Face Hub: requests to the origin that the user named have `token` as their `authorization`,
    /// and redirects to the bytes of a file are used for several ranges, since the Hub limits requests.
    pub(super) fn hub(
        options: &ClientOptions,
        token: Option<&HeaderValue>,
    ) -> object_store::Result<Self> {
        Ok(Self {
            own: Direct::authorized(options, token)?,
            targets: Some(Mutex::default()),
            ..Self::new(options)?
        })
    }

    pub(super) fn new(options: &ClientOptions) -> object_store::Result<Self> {
        let proxy = options.get_config_value(&ClientConfigKey::ProxyUrl);
        let has_proxy = proxy.is_some()
            || PROXY_VARIABLES
                .iter()
                .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        Self::with(options, PUBLIC, has_proxy)
    }

    fn with(
        options: &ClientOptions,
        admission: Admission,
        has_proxy: bool,
    ) -> object_store::Result<Self> {
        // The addresses are checked by the resolver that the connection uses, so a name that resolves to
        // another address the second time (DNS rebinding) does not pass the check.
        let resolver = Resolver(admission.address);
        let others = client_builder(options, resolver)?.no_proxy();
        Ok(Self {
            own: Direct::new(options)?,
            others: Direct(others.build().map_err(failed)?),
            admission,
            has_proxy,
            targets: None,
        })
    }

    /// The remembered targets, if this request may use one.
    fn targets(&self, method: &http::Method) -> Option<MutexGuard<'_, HashMap<Url, Target>>> {
        let targets = self.targets.as_ref().filter(|_| method == "GET")?;
        Some(
            targets
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        )
    }

    /// Sends a request to the target of a redirect.
    async fn ask(
        &self,
        method: &http::Method,
        headers: &HeaderMap,
        target: &Url,
        is_own: bool,
    ) -> Result<HttpResponse, HttpError> {
        let mut next = HttpRequest::new(HttpRequestBody::empty());
        *next.method_mut() = method.clone();
        *next.headers_mut() = headers.clone();
        *next.uri_mut() = (target.as_str().parse()).map_err(|error: http::uri::InvalidUri| {
            HttpError::new(HttpErrorKind::Unknown, error)
        })?;
        let client = if is_own { &self.own } else { &self.others };
        let _ = EXCHANGE_LOG.try_with(|notes| notes.asks(target.host_str().unwrap_or_default()));
        client.call(next).await
    }

    /// The reason not to follow a redirect to `target`, which is at another origin.
    fn refuse(&self, target: &Url) -> Option<&'static str> {
        if target.scheme() != self.admission.scheme {
            return Some("redirects to another server are followed to https:// only");
        }
        let address = target.host_str().and_then(|host| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            host.parse().ok()
        });
        if address.is_some_and(|address| !(self.admission.address)(address)) {
            return Some(NOT_PUBLIC);
        }
        self.has_proxy.then_some(
            "redirects to another server are not followed through a proxy, which hides the address",
        )
    }
}

const NOT_PUBLIC: &str = "redirects to a private, loopback or link-local address are not followed";

#[async_trait::async_trait]
impl HttpService for Following {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let method = request.method().clone();
        let mut url = Url::parse(&request.uri().to_string())
            .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut headers = HeaderMap::new();
        for name in KEPT_HEADERS {
            if let Some(value) = request.headers().get(name) {
                headers.insert(name, value.clone());
            }
        }
        let asked = url.clone();
        let known = self
            .targets(&method)
            .and_then(|targets| targets.get(&asked).cloned());
        if let Some(known) = known.filter(|known| known.since.elapsed() < REMEMBERED_FOR)
            && let Ok(answer) = self.ask(&method, &headers, &known.url, known.is_own).await
            && (answer.status().is_success() || answer.status() == 416)
        {
            return Ok(answer);
        }
        let mut answer = self.own.call(request).await?;
        let mut is_own = true;
        for number in 1.. {
            let is_read = matches!(method.as_str(), "GET" | "HEAD");
            let is_redirect = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(target) = redirect_target(&url, &answer).filter(|_| is_read && is_redirect)
            else {
                break;
            };
            if number > MAX_REDIRECTS {
                return Ok(not_followed(answer, "at most five redirects are followed"));
            }
            if target.origin() != url.origin() {
                is_own = false;
            }
            if !is_own && let Some(why) = self.refuse(&target) {
                return Ok(not_followed(answer, why));
            }
            if target.as_str().parse::<http::Uri>().is_err() {
                return Ok(not_followed(answer, "the URL it names is not valid"));
            }
            answer = match self.ask(&method, &headers, &target, is_own).await {
                Ok(next) => next,
                Err(error) if is_refused_address(&error) => {
                    return Ok(not_followed(answer, NOT_PUBLIC));
                }
                Err(error) => return Err(error),
            };
            url = target;
        }
        let is_file = |url: &Url| url.path().contains("/resolve/");
        if self.targets.is_some() && is_file(&asked) && !is_file(&url) {
            let _ = EXCHANGE_LOG.try_with(|notes| notes.lock().is_signed = true);
        }
        if let Some(mut targets) = self.targets(&method) {
            targets.remove(&asked);
            if answer.status().is_success() && url != asked && targets.len() < MOST_TARGETS {
                let since = Instant::now();
                targets.insert(asked, Target { url, is_own, since });
            }
        }
        Ok(answer)
    }
}

fn not_followed(mut redirect: HttpResponse, why: &'static str) -> HttpResponse {
    redirect.extensions_mut().insert(NotFollowed(why));
    redirect
}

/// The URL that a redirect names, without credentials and fragment.
fn redirect_target(url: &Url, answer: &HttpResponse) -> Option<Url> {
    let location = answer.headers().get("location")?.to_str().ok()?;
    let mut target = url.join(location).ok()?;
    target.set_fragment(None);
    let _ = target.set_username("");
    let _ = target.set_password(None);
    target.has_host().then_some(target)
}

/// The host that a redirect of a request to `url` names.
pub(super) fn redirect_host(url: &str, answer: &HttpResponse) -> Option<String> {
    let target = redirect_target(&Url::parse(url).ok()?, answer)?;
    target.host_str().map(str::to_owned)
}

/// Resolves names to admitted addresses, in random order, so that connections are spread over the hosts of a store.
struct Resolver(fn(IpAddr) -> bool);

/// The error of a name that has no admitted address.
#[derive(Debug, thiserror::Error)]
#[error("{NOT_PUBLIC}")]
struct RefusedAddress;

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let admits = self.0;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let (mut admitted, refused): (Vec<SocketAddr>, Vec<SocketAddr>) =
                found.partition(|address| admits(address.ip()));
            if admitted.is_empty() && !refused.is_empty() {
                return Err(RefusedAddress.into());
            }
            admitted.sort_by_cached_key(|_| random());
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

fn is_refused_address(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<RefusedAddress>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether this address is reachable from the whole internet.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_special = (a, b, c) == (192, 0, 0) || (a == 198 && (b == 18 || b == 19));
    // Azure's host serves virtual machines at this address, which is in a public range.
    let is_azure_host = address == Ipv4Addr::new(168, 63, 129, 16);
    !(a == 0
        || a >= 224
        || address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_documentation()
        || is_shared
        || is_special
        || is_azure_host)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    if let Some(v4) = address.to_ipv4_mapped() {
        return is_public_v4(v4);
    }
    let [.., a, b] = segments;
    let [a, b, c, d] = [a >> 8, a & 0xff, b >> 8, b & 0xff].map(|byte| byte as u8);
    match segments {
        // NAT64 maps to the IPv4 address inside. 6to4, Teredo and documentation addresses are refused.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(Ipv4Addr::new(a, b, c, d)),
        [0x2002, ..] | [0x2001, 0 | 0xdb8, ..] | [0x3fff, 0..0x1000, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// A `reqwest` builder with the client options of `object_store`, and redirects off.
fn client_builder(
    options: &ClientOptions,
    resolver: Resolver,
) -> object_store::Result<reqwest::ClientBuilder> {
    use ClientConfigKey as Key;
    // Fails if the process has a provider, which is used then.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = reqwest::Client::builder()
        .redirect(Policy::none())
        .referer(false)
        .dns_resolver(Arc::new(resolver))
        .https_only(!flag(options, Key::AllowHttp)?)
        .tls_danger_accept_invalid_certs(flag(options, Key::AllowInvalidCertificates)?)
        .http2_keep_alive_while_idle(flag(options, Key::Http2KeepAliveWhileIdle)?);
    if let Some(agent) = options.get_config_value(&Key::UserAgent) {
        builder = builder.user_agent(agent);
    }
    if flag(options, Key::NoSystemCertificates)? {
        builder = builder.tls_certs_only([]);
    }
    if let Some(time) = duration(options, Key::Timeout)? {
        builder = builder.timeout(time);
    }
    if let Some(time) = duration(options, Key::ConnectTimeout)? {
        builder = builder.connect_timeout(time);
    }
    if let Some(time) = duration(options, Key::ReadTimeout)? {
        builder = builder.read_timeout(time);
    }
    if let Some(time) = duration(options, Key::PoolIdleTimeout)? {
        builder = builder.pool_idle_timeout(time);
    }
    if let Some(time) = duration(options, Key::Http2KeepAliveInterval)? {
        builder = builder.http2_keep_alive_interval(time);
    }
    if let Some(time) = duration(options, Key::Http2KeepAliveTimeout)? {
        builder = builder.http2_keep_alive_timeout(time);
    }
    if let Some(most) = parsed(options, Key::PoolMaxIdlePerHost, |text| text.parse().ok())? {
        builder = builder.pool_max_idle_per_host(most);
    }
    if let Some(size) = parsed(options, Key::Http2MaxFrameSize, |text| text.parse().ok())? {
        builder = builder.http2_max_frame_size(Some(size));
    }
    if flag(options, Key::Http1Only)? {
        builder = builder.http1_only();
    }
    if flag(options, Key::Http2Only)? {
        builder = builder.http2_prior_knowledge();
    }
    Ok(builder)
}

/// Adds the proxy that the options name, and its certificate.
fn with_proxy(
    mut builder: reqwest::ClientBuilder,
    options: &ClientOptions,
) -> object_store::Result<reqwest::ClientBuilder> {
    let value = |key| options.get_config_value(&key);
    let Some(url) = value(ClientConfigKey::ProxyUrl) else {
        return Ok(builder);
    };
    let mut proxy = Proxy::all(url).map_err(failed)?;
    if let Some(pem) = value(ClientConfigKey::ProxyCaCertificate) {
        let certificate = reqwest::Certificate::from_pem(pem.as_bytes()).map_err(failed)?;
        builder = builder.tls_certs_merge([certificate]);
    }
    if let Some(excludes) = value(ClientConfigKey::ProxyExcludes) {
        proxy = proxy.no_proxy(NoProxy::from_string(&excludes));
    }
    Ok(builder.proxy(proxy))
}

fn flag(options: &ClientOptions, key: ClientConfigKey) -> object_store::Result<bool> {
    Ok(parsed(options, key, crate::store::options::is_true)?.unwrap_or(false))
}

fn duration(
    options: &ClientOptions,
    key: ClientConfigKey,
) -> object_store::Result<Option<Duration>> {
    parsed(options, key, |text| humantime::parse_duration(text).ok())
}

fn parsed<T>(
    options: &ClientOptions,
    key: ClientConfigKey,
    parse: impl Fn(&str) -> Option<T>,
) -> object_store::Result<Option<T>> {
    let Some(text) = options.get_config_value(&key) else {
        return Ok(None);
    };
    match parse(&text) {
        Some(value) => Ok(Some(value)),
        None => Err(failed(format!(
            "{} has a value that is not valid",
            key.as_ref()
        ))),
    }
}

fn failed(source: impl Into<Box<dyn StdError + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic {
        store: "HTTP client",
        source: source.into(),
    }
}

#[cfg(test)]
mod tests;
