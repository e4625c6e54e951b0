//! Requests to name nodes, and to the data nodes that they redirect to.

use super::STORE;
use crate::store::cloud::exchange_log::EXCHANGE_LOG;
use crate::store::cloud::watcher::read_some;
use futures_util::stream::BoxStream;
use http::Method;
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
};
use object_store::path::Path as Name;
use object_store::{Error, HeaderValue, PutPayload};
use reqwest::Url;
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The largest answer of a name node that is read. A page of a listing has 1,000 entries; Hadoop before 2.8 lists a directory
/// in one answer.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// The code of an answer that lacks its end: the request is made again.
const CUT_OFF: &str = "IncompleteBody";

/// A client of the name nodes of one file system.
pub(super) struct Client {
    client: HttpClient,
    nodes: Vec<Url>,
    /// The name node that answered last; the others are on standby.
    active: AtomicUsize,
    /// The user's name or delegation token, as a parameter of requests.
    identity: Option<(&'static str, String)>,
    /// For each request to a name node.
    timeout: Duration,
}

/// Written by hand, because of the token.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("nodes", &self.nodes)
            .finish_non_exhaustive()
    }
}

pub(super) fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic {
        store: STORE,
        source: source.into(),
    }
}

/// Sets the error code of the last exchange.
pub(super) fn note(code: &str) {
    let _ = EXCHANGE_LOG.try_with(|notes| notes.lock().code = Some(code.to_owned()));
}

fn code() -> Option<String> {
    EXCHANGE_LOG
        .try_with(|notes| notes.lock().code.clone())
        .ok()
        .flatten()
}

/// The error that an answer other than success means.
fn refusal(status: http::StatusCode, name: &Name) -> Error {
    let path = name.to_string();
    let said = |text: &str| text.to_owned().into();
    match code().as_deref() {
        Some("FileNotFoundException") => Error::NotFound {
            path,
            source: said("there is no such file"),
        },
        Some("FileAlreadyExistsException") => Error::AlreadyExists {
            path,
            source: said("there is a file"),
        },
        Some("UnsupportedOperationException" | "IllegalArgumentException") => {
            let message = EXCHANGE_LOG.try_with(|notes| notes.lock().message.clone());
            let message = message.ok().flatten().unwrap_or_default();
            Error::NotSupported {
                source: said(&message),
            }
        }
        None if status == 404 => {
            note("NoWebHdfs");
            failed("the answer is not that of WebHDFS")
        }
        None if status == 401 => {
            note("AuthenticationRequired");
            failed("the cluster wants a delegation token")
        }
        _ => failed(format!("the name node answers with status {status}")),
    }
}

impl Client {
    pub(super) fn new(
        client: HttpClient,
        nodes: Vec<String>,
        identity: Option<(&'static str, String)>,
        timeout: Duration,
    ) -> object_store::Result<Self> {
        let nodes = nodes.iter().map(|node| Url::parse(node).map_err(failed));
        Ok(Self {
            client,
            nodes: nodes.collect::<object_store::Result<_>>()?,
            active: AtomicUsize::new(0),
            identity,
            timeout,
        })
    }

    fn url(&self, node: &Url, name: &Name, op: &str, query: &[(&str, &str)]) -> Url {
        let mut url = node.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend(name.as_ref().split('/'));
        }
        let mut pairs = url.query_pairs_mut();
        pairs.append_pair("op", op);
        if let Some((parameter, value)) = &self.identity {
            pairs.append_pair(parameter, value);
        }
        pairs.extend_pairs(query);
        drop(pairs);
        url
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        body: HttpRequestBody,
    ) -> Result<HttpResponse, HttpError> {
        let mut request = HttpRequest::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = url
            .as_str()
            .parse()
            .map_err(|error: http::uri::InvalidUri| {
                HttpError::new(HttpErrorKind::Request, error)
            })?;
        // A gateway takes bytes of this type alone.
        let bytes = HeaderValue::from_static("application/octet-stream");
        request.headers_mut().insert("content-type", bytes);
        self.client.execute(request).await
    }

    /// The answer of the active name node: a success, or a redirect to a data node.
    async fn ask(
        &self,
        method: Method,
        name: &Name,
        op: &str,
        query: &[(&str, &str)],
    ) -> object_store::Result<HttpResponse> {
        let first = self.active.load(Ordering::Relaxed);
        let mut turn = 0;
        loop {
            let at = (first + turn) % self.nodes.len();
            turn += 1;
            let is_last = turn == self.nodes.len();
            let node = self
                .nodes
                .get(at)
                .ok_or_else(|| failed("there is no name node"))?;
            let url = self.url(node, name, op, query);
            let asked = self.send(method.clone(), &url, HttpRequestBody::empty());
            let answer = match tokio::time::timeout(self.timeout, asked).await {
                Err(_) if !is_last => continue,
                Ok(Err(error)) if !is_last && error.kind() == HttpErrorKind::Connect => continue,
                answer => answer.map_err(failed)?.map_err(failed)?,
            };
            let status = answer.status();
            if status.is_success() || status.is_redirection() {
                self.active.store(at, Ordering::Relaxed);
                return Ok(answer);
            }
            if is_last || code().as_deref() != Some("StandbyException") {
                if code().is_none() && is_json(&answer) {
                    note(CUT_OFF);
                }
                return Err(refusal(status, name));
            }
        }
    }

    /// The answer of the name node as JSON.
    pub(super) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        name: &Name,
        op: &str,
        query: &[(&str, &str)],
    ) -> object_store::Result<T> {
        let body = self.text(method, name, op, query).await?;
        parsed(&body)
    }

    /// The answer of the name node.
    pub(super) async fn text(
        &self,
        method: Method,
        name: &Name,
        op: &str,
        query: &[(&str, &str)],
    ) -> object_store::Result<Vec<u8>> {
        let answer = self.ask(method, name, op, query).await?;
        let read = read_some(answer.into_body(), MAX_ANSWER_BYTES);
        let body = tokio::time::timeout(self.timeout, read).await;
        let body = body.map_err(failed)?.map_err(failed)?;
        match body.len() < MAX_ANSWER_BYTES {
            true => Ok(body),
            false => Err(failed("the answer of the name node is larger than 64 MiB")),
        }
    }

    /// The bytes from `start` to `end` of a file.
    pub(super) async fn open(
        &self,
        name: &Name,
        start: u64,
        end: Option<u64>,
    ) -> object_store::Result<BoxStream<'static, Result<bytes::Bytes, HttpError>>> {
        let offset = start.to_string();
        let length = end.map(|end| end.saturating_sub(start).to_string());
        let mut query = vec![("offset", offset.as_str())];
        query.extend(length.as_deref().map(|length| ("length", length)));
        let answer = self.ask(Method::GET, name, "OPEN", &query).await?;
        let answer = match target(&answer)? {
            // A gateway sends the bytes itself.
            None => answer,
            Some(url) => {
                let opened = self.send(Method::GET, &url, HttpRequestBody::empty());
                let answer = opened.await.map_err(failed)?;
                if !answer.status().is_success() {
                    return Err(refusal(answer.status(), name));
                }
                answer
            }
        };
        Ok(answer.into_body().bytes_stream())
    }

    /// Sends bytes to the data node that the name node redirects to.
    pub(super) async fn write(
        &self,
        method: Method,
        name: &Name,
        op: &str,
        query: &[(&str, &str)],
        bytes: PutPayload,
    ) -> object_store::Result<()> {
        let answer = self.ask(method.clone(), name, op, query).await?;
        let url = target(&answer)?.ok_or_else(|| {
            note("NoWebHdfs");
            failed("the name node names no data node")
        })?;
        let answer = self
            .send(method, &url, bytes.into())
            .await
            .map_err(failed)?;
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(refusal(answer.status(), name)),
        }
    }
}

/// An answer as JSON. A request whose answer lacks its end is made again.
pub(super) fn parsed<T: DeserializeOwned>(body: &[u8]) -> object_store::Result<T> {
    forebay_shard::json::from_slice(body).map_err(|error| {
        let is_cut_off = error.is_eof() && body.starts_with(b"{");
        note(if is_cut_off { CUT_OFF } else { "NoWebHdfs" });
        failed(error)
    })
}

fn is_json(answer: &HttpResponse) -> bool {
    let kind = answer.headers().get("content-type");
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
}

/// The URL that an answer redirects to. It has the credentials that the data node wants.
fn target(answer: &HttpResponse) -> object_store::Result<Option<Url>> {
    if !answer.status().is_redirection() {
        return Ok(None);
    }
    let url = answer
        .headers()
        .get("location")
        .and_then(|location| Url::parse(location.to_str().ok()?).ok());
    url.filter(|url| matches!(url.scheme(), "http" | "https"))
        .map(Some)
        .ok_or_else(|| {
            note("NoWebHdfs");
            failed("the name node redirects to no URL")
        })
}
