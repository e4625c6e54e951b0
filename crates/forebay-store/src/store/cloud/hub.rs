//! Datasets of the Hugging Face Hub, which are read only: `hf://datasets/OWNER/NAME[@REVISION][/PATH]`.
//!
//! The first request resolves the revision to a commit, and all others name that commit, so files do not change while they
//! are read. The Hub's API lists files with their sizes and hashes; ranges come from `resolve`, which may redirect to another
//! host. The token is sent to the Hub alone.

use super::exchange_log::EXCHANGE_LOG;
use super::fault::ENDLESS_LISTING;
use super::list::{empty_level, one_level};
use super::open::Opening;
use super::watcher::{Watched, read_some};
use super::{Fault, Open, Service, web};
use crate::{Location, Result};
use futures_util::stream::{self, BoxStream, Stream};
use futures_util::{StreamExt, TryStreamExt};
use http::{HeaderMap, Method};
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpRequestBody};
use object_store::http::{HttpBuilder, HttpStore};
use object_store::path::Path as Name;
use object_store::{
    ClientOptions, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, HeaderValue,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions,
    PutPayload, PutResult,
};
use reqwest::Url;
use serde::Deserialize;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::OnceCell;

const HUB: &str = "https://huggingface.co";
const STORE: &str = "Hub";
/// The largest response of the API that is read; a page of a listing has 1,000 entries.
const MAX_RESPONSE_BYTES: usize = 16 << 20;
/// The largest token file that is read.
const MAX_TOKEN_BYTES: u64 = 4 << 10;
/// The most pages that a listing may have: the Hub recommends less than 100,000 files in a repository.
const MAX_PAGES: usize = 20_000;

#[async_trait::async_trait]
impl Service for Hub {
    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::new(self.clone())
    }

    fn prefix<'a>(&self, location: &'a Location) -> &'a str {
        location.hub_url().map_or("", |place| place.path)
    }

    async fn pinned(&self, location: &Location) -> std::result::Result<Option<Location>, Fault> {
        let pinned = self.0.pinned().await?;
        let url = location
            .hub_url()
            .map(|url| url.at(&pinned.id, &pinned.commit));
        Ok(url.map(Location::parse).transpose()?)
    }

    fn lists(&self) -> bool {
        true
    }

    fn is_pinned(&self) -> bool {
        true
    }

    fn lists_in_order(&self) -> bool {
        false
    }
}

pub(super) fn connect(mut opening: Opening<'_>) -> Result<Open> {
    let Some(place) = opening.location.hub_url() else {
        let why = "a dataset of the Hugging Face Hub is hf://datasets/OWNER/NAME, or hf://datasets/OWNER/NAME@REVISION";
        return Err(opening.wrong(why, None));
    };
    let endpoint = opening
        .options
        .endpoint
        .clone()
        .or_else(|| opening.take(&["hf_endpoint", "endpoint"]))
        .or(opening.variable(&["HF_ENDPOINT"])?)
        .unwrap_or_else(|| HUB.to_owned());
    opening.check_http(&endpoint)?;
    let token = token(&mut opening)?;
    let options = web::client_options(&mut opening)?;
    let watched = Watched::Hub(token);
    let client = watched
        .connect(&options)
        .map_err(|error| opening.failed(&error))?;
    let repository = Repository {
        endpoint: Url::parse(&endpoint)
            .map_err(|_| opening.wrong("the endpoint is not a valid URL", None))?,
        id: place.id.map(str::to_owned),
        revision: place.revision.replace("%2F", "/"),
        options,
        watched,
        client,
        timeout: opening.options.timeout,
        pinned: OnceCell::new(),
    };
    opening.finish(Box::new(Hub(Arc::new(repository))), Some(&endpoint))
}

/// The token that the options, the environment or the file of `hf auth login` have.
fn token(opening: &mut Opening<'_>) -> Result<Option<HeaderValue>> {
    let mut token = opening.take(&["hf_token", "token"]);
    if opening.options.anonymous {
        return Ok(None);
    }
    let around = opening.around;
    token = token.or(opening.variable(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])?);
    let home = || {
        around
            .var("HOME")
            .map(|home| PathBuf::from(home).join(".cache"))
    };
    let cache = || {
        around
            .var("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(home)
    };
    let hub_home = || {
        let named = around.var("HF_HOME").map(PathBuf::from);
        named.or_else(|| Some(cache()?.join("huggingface")))
    };
    let file = around.var("HF_TOKEN_PATH").map(PathBuf::from);
    if token.is_none()
        && let Some(file) = file.or_else(|| Some(hub_home()?.join("token")))
        && let Ok(opened) = forebay_shard::storage::open_input(&file)
    {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::io::Read::take(opened, MAX_TOKEN_BYTES), &mut text)
            .map_err(|error| crate::Error::io(&file, "read", error))?;
        token = Some(text);
    }
    let Some(token) = token
        .map(|token| token.trim().to_owned())
        .filter(|token| !token.is_empty())
    else {
        return Ok(None);
    };
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .map_err(|_| opening.wrong("the token has characters that no token has", None))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// A repository of the Hub as a store of `object_store`.
#[derive(Debug, Clone)]
struct Hub(Arc<Repository>);

#[derive(Debug)]
struct Repository {
    endpoint: Url,
    id: [String; 2],
    revision: String,
    options: ClientOptions,
    watched: Watched,
    client: HttpClient,
    /// For each request to the API.
    timeout: Duration,
    pinned: OnceCell<Pinned>,
}

/// The repository at one commit.
#[derive(Debug)]
struct Pinned {
    /// The name of the repository now: the Hub redirects from the names that it had before.
    id: Vec<String>,
    commit: String,
    modified: SystemTime,
    /// The files below `resolve`.
    files: HttpStore,
}

#[derive(Deserialize)]
struct Revision {
    id: String,
    sha: String,
    #[serde(rename = "lastModified")]
    last_modified: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    r#type: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
}

impl std::fmt::Display for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(STORE)
    }
}

fn failed(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic {
        store: STORE,
        source: source.into(),
    }
}

fn read_only<T>() -> object_store::Result<T> {
    Err(Error::NotSupported {
        source: "the Hub is read only here".into(),
    })
}

/// The error of an answer that no Hub gives, which is not asked for again.
fn foreign(why: impl std::fmt::Display) -> Error {
    note("NoHub");
    failed(why.to_string())
}

fn note(code: &str) {
    let _ = EXCHANGE_LOG.try_with(|notes| notes.lock().code = Some(code.to_owned()));
}

fn parsed<'a, T: Deserialize<'a>>(json: &'a [u8]) -> object_store::Result<T> {
    forebay_shard::json::from_slice(json).map_err(foreign)
}

impl Repository {
    /// A URL of the endpoint: `before`, the repository and `after` as segments of its path.
    fn url(&self, before: &[&str], id: &[String], after: &[&str]) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(before);
            segments.extend(id).extend(after);
        }
        url
    }

    /// The response to a request to the API. Errors of the Hub are in the exchange log too.
    async fn ask(
        &self,
        url: Url,
        form: Option<String>,
    ) -> object_store::Result<(HeaderMap, Vec<u8>)> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.as_str().parse().map_err(failed)?;
        if let Some(body) = form {
            *request.method_mut() = Method::POST;
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            request.headers_mut().insert("content-type", form);
            *request.body_mut() = body.into();
        }
        let asked = async {
            let (parts, body) = self.client.execute(request).await?.into_parts();
            Ok((parts, read_some(body, MAX_RESPONSE_BYTES).await?))
        };
        let answer: std::result::Result<_, HttpError> = tokio::time::timeout(self.timeout, asked)
            .await
            .map_err(failed)?;
        let (parts, body) = answer.map_err(failed)?;
        if parts.status == 404 {
            let path = url.path().to_owned();
            let source = "the Hub has no such file".into();
            return Err(Error::NotFound { path, source });
        }
        if parts.status == 401 {
            // Without a token the Hub does not tell a private repository from a missing one.
            let _ = EXCHANGE_LOG.try_with(|notes| {
                let mut seen = notes.lock();
                let said = seen.message.as_deref().unwrap_or_default();
                let is_token = said.starts_with("Invalid credentials");
                let code = if is_token { "BadToken" } else { "RepoNotFound" };
                seen.code.get_or_insert_with(|| code.to_owned());
            });
        }
        if !parts.status.is_success() {
            return Err(failed(format!(
                "the Hub answers with status {}",
                parts.status
            )));
        }
        if body.len() == MAX_RESPONSE_BYTES {
            return Err(foreign("the Hub's answer is larger than 16 MiB"));
        }
        Ok((parts.headers, body))
    }

    /// Resolves the revision, once.
    async fn pinned(&self) -> object_store::Result<&Pinned> {
        let pin = async || {
            let url = self.url(
                &["api", "datasets"],
                &self.id,
                &["revision", &self.revision],
            );
            let (_, body) = self.ask(url, None).await?;
            let found: Revision = parsed(&body)?;
            let id: Vec<String> = found.id.split('/').map(str::to_owned).collect();
            let is_commit =
                !found.sha.is_empty() && found.sha.bytes().all(|b| b.is_ascii_hexdigit());
            if id.len() != 2 || !is_commit {
                return Err(foreign("the Hub's answer names no commit of a repository"));
            }
            let files = self.url(&["datasets"], &id, &["resolve", &found.sha]);
            let files = HttpBuilder::new()
                .with_url(files)
                .with_client_options(self.options.clone())
                .with_retry(Opening::no_retry())
                .with_http_connector(self.watched.clone())
                .build()?;
            let modified = found.last_modified.as_deref().unwrap_or_default();
            Ok(Pinned {
                id,
                commit: found.sha,
                modified: humantime::parse_rfc3339(modified).unwrap_or(SystemTime::UNIX_EPOCH),
                files,
            })
        };
        self.pinned.get_or_try_init(pin).await
    }

    /// The entry as the metadata of an object; an entry whose path cannot be a key is noted and left out.
    fn meta(pinned: &Pinned, entry: Entry) -> Option<ObjectMeta> {
        let Ok(location) = Name::parse(&entry.path) else {
            let _ = EXCHANGE_LOG.try_with(|notes| notes.lock().invalid_names.push(entry.path));
            return None;
        };
        Some(ObjectMeta {
            location,
            last_modified: pinned.modified.into(),
            size: entry.size,
            e_tag: entry.lfs.map(|lfs| lfs.oid).or(entry.oid),
            version: None,
        })
    }

    /// The URL of the first page of a listing below `prefix`, of all levels or of one.
    async fn first_page(&self, prefix: Option<&Name>, is_deep: bool) -> object_store::Result<Url> {
        let pinned = self.pinned().await?;
        let mut path = vec!["tree", &pinned.commit];
        let below = prefix.map(Name::as_ref).unwrap_or_default();
        path.extend(below.split('/').filter(|part| !part.is_empty()));
        let mut url = self.url(&["api", "datasets"], &pinned.id, &path);
        url.set_query(is_deep.then_some("recursive=true"));
        Ok(url)
    }

    /// Files and directories of the page at `url`, and the URL of the next page.
    async fn page(
        &self,
        url: &Url,
        prefix: Option<&Name>,
    ) -> object_store::Result<(ListResult, Option<Url>)> {
        let pinned = self.pinned().await?;
        let below = prefix.map(Name::as_ref).unwrap_or_default();
        let mut found = empty_level();
        let (headers, body) = match self.ask(url.clone(), None).await {
            Err(Error::NotFound { .. }) => return Ok((found, None)),
            answer => answer?,
        };
        for entry in parsed::<Vec<Entry>>(&body)? {
            let rest = entry.path.strip_prefix(below);
            let is_below = below.is_empty() || rest.is_some_and(|rest| rest.starts_with('/'));
            match entry.r#type.as_str() {
                "file" if is_below => found.objects.extend(Self::meta(pinned, entry)),
                "directory" if is_below => {
                    found.common_prefixes.extend(Name::parse(&entry.path).ok());
                }
                _ => {}
            }
        }
        Ok((found, next_page(url, &headers)?))
    }

    /// The pages of a listing.
    fn pages(
        self: Arc<Self>,
        prefix: Option<Name>,
        is_deep: bool,
    ) -> impl Stream<Item = object_store::Result<ListResult>> {
        let start = (None, HashSet::<Url>::new());
        stream::try_unfold(start, move |(next, mut before)| {
            let (repository, prefix) = (Arc::clone(&self), prefix.clone());
            async move {
                let url = match next {
                    Some(url) => url,
                    None if before.is_empty() => {
                        repository.first_page(prefix.as_ref(), is_deep).await?
                    }
                    None => return Ok(None),
                };
                if before.len() >= MAX_PAGES || !before.insert(url.clone()) {
                    note(ENDLESS_LISTING);
                    return Err(failed("the listing does not end"));
                }
                let (found, next) = repository.page(&url, prefix.as_ref()).await?;
                Ok(Some((found, (next, before))))
            }
        })
    }

    /// The metadata of one file.
    async fn info(&self, location: &Name) -> object_store::Result<ObjectMeta> {
        let pinned = self.pinned().await?;
        let url = self.url(
            &["api", "datasets"],
            &pinned.id,
            &["paths-info", &pinned.commit],
        );
        let mut form = url.clone();
        form.query_pairs_mut()
            .append_pair("paths", location.as_ref());
        let (_, body) = self.ask(url, form.query().map(str::to_owned)).await?;
        let entries = parsed::<Vec<Entry>>(&body)?.into_iter();
        entries
            .filter(|entry| entry.r#type == "file" && entry.path == location.as_ref())
            .find_map(|entry| Self::meta(pinned, entry))
            .ok_or_else(|| Error::NotFound {
                path: location.to_string(),
                source: "the Hub has no such file".into(),
            })
    }
}

/// The URL of the next page of a listing, which must be at the same origin, since the token is sent there.
fn next_page(url: &Url, headers: &HeaderMap) -> object_store::Result<Option<Url>> {
    let links = headers.get("link").and_then(|links| links.to_str().ok());
    let mut links = links.unwrap_or_default().split(',');
    let Some(link) = links.find(|link| link.contains("rel=\"next\"")) else {
        return Ok(None);
    };
    let target = link
        .split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'));
    target
        .and_then(|(target, _)| url.join(target).ok())
        .filter(|next| next.origin() == url.origin())
        .map(Some)
        .ok_or_else(|| foreign("the Hub's listing continues at another server"))
}

#[async_trait::async_trait]
impl ObjectStore for Hub {
    async fn get_opts(
        &self,
        location: &Name,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        if options.head {
            let meta = self.0.info(location).await?;
            return Ok(GetResult {
                payload: GetResultPayload::Stream(stream::empty().boxed()),
                range: 0..meta.size,
                meta,
                attributes: object_store::Attributes::new(),
                extensions: http::Extensions::new(),
            });
        }
        // A commit does not change, and the host that sends the bytes has other etags than the listing.
        let options = GetOptions {
            if_match: None,
            ..options
        };
        let mut answer = self
            .0
            .pinned()
            .await?
            .files
            .get_opts(location, options)
            .await?;
        answer.meta.e_tag = None;
        Ok(answer)
    }

    fn list(&self, prefix: Option<&Name>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        Arc::clone(&self.0)
            .pages(prefix.cloned(), true)
            .map_ok(|page| stream::iter(page.objects.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Name>) -> object_store::Result<ListResult> {
        let pages = Arc::clone(&self.0).pages(prefix.cloned(), false);
        one_level(pages).await
    }

    async fn put_opts(
        &self,
        _: &Name,
        _: PutPayload,
        _: PutOptions,
    ) -> object_store::Result<PutResult> {
        read_only()
    }

    async fn put_multipart_opts(
        &self,
        _: &Name,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        read_only()
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store::Result<Name>>,
    ) -> BoxStream<'static, object_store::Result<Name>> {
        stream::once(async { read_only() }).boxed()
    }

    async fn copy_opts(&self, _: &Name, _: &Name, _: CopyOptions) -> object_store::Result<()> {
        read_only()
    }
}
