//! Records the requests and responses between `object_store` and its HTTP client in the log of the running operation.

use super::client::{Direct, Following, NotFollowed, redirect_host};
use super::exchange_log::{EXCHANGE_LOG, ExchangeLog, Redirect};
use super::fault::ENDLESS_LISTING;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http_body_util::BodyExt;
use md5::{Digest, Md5};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{HeaderMap, HeaderValue};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The largest number of bytes read from the body of an error response, which is untrusted.
const ERROR_BODY_BYTES: usize = 64 << 10;

/// Creates HTTP clients that record requests and responses in the log.
#[derive(Debug, Clone)]
pub(super) enum Watched {
    /// For requests with credentials, which never follow a redirect.
    Bucket,
    /// For requests without credentials.
    Web,
    /// For requests that have this `authorization` at the origin that the user named, and none at others.
    Hub(Option<HeaderValue>),
}

impl HttpConnector for Watched {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut secret = None;
        let client = match self {
            Self::Bucket => HttpClient::new(Direct::new(options)?),
            Self::Web => HttpClient::new(Following::new(options)?),
            Self::Hub(token) => {
                secret = token.as_ref().and_then(|token| {
                    let token = token.to_str().ok()?;
                    Some(token.trim_start_matches("Bearer ").to_owned())
                });
                HttpClient::new(Following::hub(options, token.as_ref())?)
            }
        };
        Ok(HttpClient::new(Watcher { client, secret }))
    }
}

struct Watcher {
    client: HttpClient,
    /// The token, which a response may repeat.
    secret: Option<String>,
}

/// Written by hand, because of the secret.
impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl Watcher {
    /// The text without the token.
    fn public(&self, text: String) -> String {
        match self.secret.as_deref().filter(|secret| !secret.is_empty()) {
            Some(secret) => text.replace(secret, "[token]"),
            None => text,
        }
    }
}

#[async_trait::async_trait]
impl HttpService for Watcher {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let Ok(notes) = EXCHANGE_LOG.try_with(Arc::clone) else {
            return self.client.execute(request).await;
        };
        let uri = request.uri();
        {
            let mut seen = notes.lock();
            // Clears the observations of the request before.
            (seen.status, seen.code, seen.message) = (None, None, None);
            (seen.retry_after, seen.transport, seen.redirect) = (None, None, None);
            (seen.clocks, seen.is_signed) = (None, false);
            seen.host = uri.host().unwrap_or_default().to_owned();
            seen.url = format!(
                "{}://{}{}",
                uri.scheme_str().unwrap_or_default(),
                uri.authority().map_or("", |authority| authority.as_str()),
                uri.path()
            );
        }
        let asked = uri.to_string();
        let is_listing =
            request.method().as_str() == "GET" && lists(uri.query().unwrap_or_default());
        let body_bytes = request.body().content_length() as u64;
        notes.bill(request.method().as_str(), is_listing, body_bytes);
        let sent = (request.method().as_str() == "PUT" && request.body().content_length() > 0)
            .then(|| Sent::of(&request));
        let response = match self.client.execute(request).await {
            Ok(response) => response,
            Err(error) => {
                notes.lock().transport = Some(error.kind());
                return Err(error);
            }
        };
        let status = response.status();
        let headers = response.headers();
        {
            let mut seen = notes.lock();
            seen.status = Some(status.as_u16());
            seen.retry_after = retry_after(headers);
            // The date of a response from a cache (`age`) is the time when it was created.
            seen.clocks = text(headers, "date")
                .filter(|_| !status.is_success() && !headers.contains_key("age"))
                .and_then(|text| httpdate::parse_http_date(text).ok())
                .map(|theirs| (theirs, SystemTime::now()));
            seen.crc32c = goog_hash(headers, "crc32c").and_then(|sum| crc32c_of_base64(&sum));
            if let (Some(sent), true) = (sent, status.is_success()) {
                match sent.compare(headers) {
                    Some(true) => seen.proved += 1,
                    Some(false) => seen.refuted += 1,
                    None => seen.unproved += 1,
                }
            }
        }
        if status.is_redirection() && status.as_u16() != 304 {
            notes.lock().redirect = Some(Redirect {
                host: redirect_host(&asked, &response).map(|host| self.public(host)),
                region: text(response.headers(), "x-amz-bucket-region").map(str::to_owned),
                why: response.extensions().get().map(|NotFollowed(why)| *why),
            });
        }
        if status.is_success() && is_listing {
            return usable_page(response, &notes).await;
        }
        if status.is_success() || status.is_redirection() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = read_some(body, ERROR_BODY_BYTES)
            .await
            .inspect_err(|error| {
                notes.lock().transport = Some(error.kind());
            })?;
        {
            let mut seen = notes.lock();
            let said = String::from_utf8_lossy(&body);
            // The Hugging Face Hub has them in headers.
            let header = |name| text(&parts.headers, name).map(str::to_owned);
            seen.code = between(&said, "<Code>", "</Code>")
                .or_else(|| json_string(&said, "reason"))
                .or_else(|| json_string(&said, "exception"))
                .or_else(|| header("x-error-code"))
                .map(|code| self.public(code));
            seen.message = between(&said, "<Message>", "</Message>")
                .or_else(|| json_string(&said, "message"))
                .or_else(|| header("x-error-message"))
                .map(|message| self.public(message));
        }
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

/// Whether a query lists the objects of a bucket (S3, Google or Azure).
fn lists(query: &str) -> bool {
    let mut fields = query.split('&');
    fields.any(|field| field == "list-type=2" || field == "comp=list")
}

/// The error of a page that continues with one that was listed before.
#[derive(Debug, thiserror::Error)]
#[error("the listing does not end")]
struct EndlessListing;

/// Removes entries that are not readable objects from a page of a listing: invalid names such as `a//b` or `a/../b`, for
/// which `object_store` would refuse the whole listing, and directory markers, which consoles and other tools create.
/// `object_store` would return a marker's name without its last slash, and no request would find that name.
async fn usable_page(
    response: HttpResponse,
    notes: &ExchangeLog,
) -> Result<HttpResponse, HttpError> {
    let (mut parts, body) = response.into_parts();
    let body = body.bytes().await.inspect_err(|error| {
        notes.lock().transport = Some(error.kind());
    })?;
    let text = std::str::from_utf8(&body).ok();
    let next = text.and_then(|xml| {
        between(xml, "<NextContinuationToken>", "</NextContinuationToken>")
            .or_else(|| between(xml, "<NextMarker>", "</NextMarker>"))
    });
    if let Some(next) = next.filter(|next| !next.is_empty()) {
        let mut seen = notes.lock();
        if !seen.pages.insert(next) {
            seen.code = Some(ENDLESS_LISTING.to_owned());
            return Err(HttpError::new(HttpErrorKind::Decode, EndlessListing));
        }
    }
    let Some((xml, names)) = text.and_then(usable_entries) else {
        return Ok(HttpResponse::from_parts(parts, body.into()));
    };
    notes.lock().invalid_names.extend(names);
    parts.headers.remove("content-length");
    Ok(HttpResponse::from_parts(parts, xml.into_bytes().into()))
}

/// The XML elements of listing entries: opening tag, closing tag, and the element with the name.
const ENTRIES: [(&str, &str, &str); 4] = [
    ("<Contents>", "</Contents>", "Key"),
    ("<CommonPrefixes>", "</CommonPrefixes>", "Prefix"),
    ("<Blob>", "</Blob>", "Name"),
    ("<BlobPrefix>", "</BlobPrefix>", "Name"),
];

/// Whether an entry is a directory marker: it is empty, and its name ends in a slash or its properties say so.
fn is_directory(entry: &str, name: &str) -> bool {
    let of = |element: &str| between(entry, &format!("<{element}>"), &format!("</{element}>"));
    let is_empty = of("Size").or_else(|| of("Content-Length")).as_deref() == Some("0");
    let has_flag = of("ResourceType").as_deref() == Some("directory")
        || of("hdi_isfolder").as_deref() == Some("true");
    is_empty && (name.ends_with('/') || has_flag)
}

/// Whether an object of this name can be read: `object_store` drops leading and trailing slashes.
fn is_readable(name: &str, is_object: bool) -> bool {
    let is_path = object_store::path::Path::parse(name).is_ok();
    is_path && !(is_object && (name.ends_with('/') || name.starts_with('/')))
}

/// The page without directory markers and invalid names, and the invalid names; `None` if the page has no such entry.
fn usable_entries(xml: &str) -> Option<(String, Vec<String>)> {
    let (mut kept, mut names) = (String::new(), Vec::new());
    let mut is_changed = false;
    let mut rest = xml;
    loop {
        let begins = ENTRIES
            .iter()
            .filter_map(|entry| Some((rest.find(entry.0)?, entry)));
        let Some((start, (open, close, element))) = begins.min_by_key(|(start, _)| *start) else {
            break;
        };
        let Some(end) = rest[start..].find(close).map(|at| start + at + close.len()) else {
            break;
        };
        let (before, entry) = (&rest[..start], &rest[start..end]);
        let name = between(entry, &format!("<{element}>"), &format!("</{element}>"));
        let name = name.map(|name| match quick_xml::escape::unescape(&name) {
            Ok(text) => text.into_owned(),
            Err(_) => name.clone(),
        });
        kept.push_str(before);
        let is_object = matches!(*open, "<Contents>" | "<Blob>");
        match name {
            Some(name) if is_object && is_directory(entry, &name) => is_changed = true,
            Some(name) if !is_readable(&name, is_object) => {
                is_changed = true;
                names.push(name);
            }
            _ => kept.push_str(entry),
        }
        rest = &rest[end..];
    }
    kept.push_str(rest);
    is_changed.then_some((kept, names))
}

/// Reads a body up to `most` bytes.
pub(super) async fn read_some(
    mut body: HttpResponseBody,
    most: usize,
) -> Result<Vec<u8>, HttpError> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            let rest = most - read.len();
            read.extend_from_slice(data.get(..data.len().min(rest)).unwrap_or_default());
            if read.len() == most {
                break;
            }
        }
    }
    Ok(read)
}

/// The body of an upload request. Its checksums are computed only if the response has one to compare: each costs as much CPU
/// time as all other work on the bytes.
struct Sent {
    body: HttpRequestBody,
    /// Whether the request's signature covers the bytes: S3 refuses a body that does not match it.
    is_signed: bool,
}

impl Sent {
    fn of(request: &HttpRequest) -> Self {
        // If the body is not signed, the header has a word such as UNSIGNED-PAYLOAD instead of a hash.
        let hash = text(request.headers(), "x-amz-content-sha256");
        let is_hashed = hash
            .is_some_and(|hash| hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
        Self {
            body: request.body().clone(),
            is_signed: is_hashed,
        }
    }

    /// Calls `each` with the bytes, piece by piece.
    fn for_each(&self, mut each: impl FnMut(&[u8])) {
        let mut body = self.body.clone();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        // The body is in memory, so each frame is ready at once.
        while let std::task::Poll::Ready(Some(Ok(frame))) =
            http_body::Body::poll_frame(std::pin::Pin::new(&mut body), &mut context)
        {
            if let Ok(data) = frame.into_data() {
                each(&data);
            }
        }
    }

    fn crc32c(&self) -> u32 {
        let mut crc32c = 0;
        self.for_each(|data| crc32c = crc32c::crc32c_append(crc32c, data));
        crc32c
    }

    fn md5(&self) -> [u8; 16] {
        let mut md5 = Md5::new();
        self.for_each(|data| md5.update(data));
        md5.finalize().into()
    }

    /// Whether the response shows that the store received these bytes; `None` if it has no checksum.
    fn compare(&self, headers: &HeaderMap) -> Option<bool> {
        if let Some(sum) = goog_hash(headers, "crc32c")
            .or_else(|| text(headers, "x-amz-checksum-crc32c").map(str::to_owned))
            .and_then(|sum| crc32c_of_base64(&sum))
        {
            return Some(sum == self.crc32c());
        }
        if self.is_signed {
            return Some(true);
        }
        if let Some(sum) = text(headers, "content-md5") {
            return Some(base64_bytes(sum).as_deref() == Some(&self.md5()[..]));
        }
        // An etag is often the MD5 of the bytes, but it may be anything: an equal value proves, another one refutes nothing.
        let etag = text(headers, "etag")?.trim_matches('"');
        if etag.len() != 32 || !etag.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let hex: String = self
            .md5()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        etag.eq_ignore_ascii_case(&hex).then_some(true)
    }
}

/// How long the store asks to wait: `Retry-After` in seconds or as a date, or `RateLimit: "api";r=0;t=55` of the Hugging Face
/// Hub, of several limits the longest that is used up.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    if let Some(after) = text(headers, "retry-after").map(str::trim) {
        let seconds = after.parse().ok().map(Duration::from_secs);
        return seconds.or_else(|| {
            let date = httpdate::parse_http_date(after).ok()?;
            date.duration_since(SystemTime::now()).ok()
        });
    }
    let limits = text(headers, "ratelimit")?.split(',');
    let waits = limits.filter_map(|limit| {
        let field = |name| {
            let mut fields = limit.split(';').map(str::trim);
            fields.find_map(|field| field.strip_prefix(name)?.parse::<u64>().ok())
        };
        field("t=").filter(|_| field("r=") == Some(0))
    });
    waits.max().map(Duration::from_secs)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A value of `x-goog-hash: crc32c=...,md5=...`, which may be one header or several.
fn goog_hash(headers: &HeaderMap, kind: &str) -> Option<String> {
    headers
        .get_all("x-goog-hash")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|one| one.trim().strip_prefix(kind)?.strip_prefix('='))
        .map(str::to_owned)
}

fn crc32c_of_base64(text: &str) -> Option<u32> {
    let bytes: [u8; 4] = base64_bytes(text)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}

fn base64_bytes(text: &str) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text.trim()).ok()
}

fn between(text: &str, open: &str, close: &str) -> Option<String> {
    let rest = text.split_once(open)?.1;
    Some(rest.split_once(close)?.0.to_owned())
}

/// The first string field of that name in a JSON text, at any depth.
fn json_string(text: &str, name: &str) -> Option<String> {
    fn find(value: &serde_json::Value, name: &str) -> Option<String> {
        match value {
            serde_json::Value::Object(fields) => fields
                .get(name)
                .and_then(|value| value.as_str().map(str::to_owned))
                .or_else(|| fields.values().find_map(|value| find(value, name))),
            serde_json::Value::Array(values) => values.iter().find_map(|value| find(value, name)),
            _ => None,
        }
    }
    find(&forebay_shard::json::from_str(text).ok()?, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn reported_checksums_are_compared() {
        // CRC-32C of 32 zero bytes from RFC 3720, appendix B.4, and the MD5 of the same bytes.
        let request = HttpRequest::new(vec![0u8; 32].into());
        let sent = Sent::of(&request);
        assert_eq!(sent.crc32c(), 0x8a91_36aa);
        let good = "ipE2qg==";
        for (name, value, expected) in [
            ("x-goog-hash", format!("crc32c={good},md5=AAAA"), Some(true)),
            ("x-goog-hash", "crc32c=AAAAAA==".to_owned(), Some(false)),
            ("x-amz-checksum-crc32c", good.to_owned(), Some(true)),
            (
                "content-md5",
                "cLyPS3KoaSFGi/joRB3OUQ==".to_owned(),
                Some(true),
            ),
            (
                "content-md5",
                "cLyPS3KoaSFGi/joRB3OUA==".to_owned(),
                Some(false),
            ),
            (
                "etag",
                "\"70bc8f4b72a86921468bf8e8441dce51\"".to_owned(),
                Some(true),
            ),
            ("etag", "\"0x8DC\"".to_owned(), None),
            (
                "etag",
                "\"ffffffffffffffffffffffffffffffff\"".to_owned(),
                None,
            ),
        ] {
            let found = sent.compare(&headers(&[(name, &value)]));
            assert_eq!(found, expected, "{name}: {value}");
        }
        assert_eq!(sent.compare(&headers(&[])), None);
    }

    #[test]
    fn requested_pauses_are_read_from_both_headers() {
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        for (name, value, expected) in [
            ("retry-after", "7", Some(7)),
            ("retry-after", "soon", None),
            ("ratelimit", "\"api\";r=0;t=299", Some(299)),
            (
                "ratelimit",
                "\"api\"; r=0; t=5, \"pages\";r=0;t=60, \"resolvers\";r=9;t=300",
                Some(60),
            ),
            ("ratelimit", "\"api\";r=12;t=299", None),
        ] {
            let found = retry_after(&headers(&[(name, value)]));
            assert_eq!(found, expected.map(Duration::from_secs), "{name}: {value}");
        }
        let left = retry_after(&headers(&[("retry-after", &soon)])).unwrap();
        assert!(left > Duration::from_secs(50) && left <= Duration::from_secs(100));
    }

    #[test]
    fn a_signed_payload_is_proved_by_acceptance() {
        let signed = |hash: &str| {
            let mut request = HttpRequest::new(vec![0u8; 32].into());
            let headers = request.headers_mut();
            headers.insert("x-amz-content-sha256", hash.parse().unwrap());
            request
        };
        let nothing = headers(&[]);
        let hashed = signed(&"0123456789abcdef".repeat(4));
        assert_eq!(Sent::of(&hashed).compare(&nothing), Some(true));
        let unsigned = signed("UNSIGNED-PAYLOAD");
        assert_eq!(Sent::of(&unsigned).compare(&nothing), None);
        // A reported checksum takes precedence over the signature.
        let wrong = headers(&[("x-amz-checksum-crc32c", "AAAAAA==")]);
        assert_eq!(Sent::of(&hashed).compare(&wrong), Some(false));
    }

    #[test]
    fn directory_markers_are_removed_from_a_page() {
        let s3 = |key: &str, size: u32| {
            format!("<Contents><Key>{key}</Key><Size>{size}</Size></Contents>")
        };
        let azure = |name: &str, more: &str| {
            let size = "<Content-Length>0</Content-Length>";
            format!("<Blob><Name>{name}</Name><Properties>{size}{more}</Properties></Blob>")
        };
        let of_kind = "<ResourceType>directory</ResourceType>";
        let kept = [s3("a/b", 0), azure("a/c", ""), s3("d", 4)].concat();
        let prefix = "<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>";
        let page = [
            s3("a/", 0),
            kept.clone(),
            azure("e/", ""),
            azure("f", of_kind),
            prefix.to_owned(),
            s3("g/", 7),
            s3("/h", 7),
        ];
        let (xml, names) = usable_entries(&page.concat()).unwrap();
        assert_eq!(xml, kept.clone() + prefix);
        assert_eq!(names, ["g/", "/h"]);
        assert_eq!(usable_entries(&kept), None);
    }

    #[test]
    fn error_codes_are_found_in_xml_and_json() {
        let xml = "<Error><Code>SlowDown</Code><Message>less</Message></Error>";
        assert_eq!(between(xml, "<Code>", "</Code>").unwrap(), "SlowDown");
        let json = r#"{"error":{"errors":[{"reason":"forbidden"}],"message":"no"}}"#;
        assert_eq!(json_string(json, "message").unwrap(), "no");
        assert_eq!(json_string(json, "reason").unwrap(), "forbidden");
        assert_eq!(json_string("<html>", "message"), None);
    }
}
