//! HDFS over HTTP: `webhdfs://HOST:PORT/PATH`, or `swebhdfs://` with TLS.
//!
//! A name node answers requests, and redirects those that read or write bytes to a data node. A file is written under a
//! temporary name beside its own and renamed, so it is complete or absent; an extended attribute has its CRC-32C and the token
//! of its writer. The parts of an upload are appended in their order.

mod client;
mod write;

use super::exchange_log::EXCHANGE_LOG;
use super::list::{empty_level, one_level};
use super::open::Opening;
use super::watcher::Watched;
use super::{Fault, Open, Service, attributes, web};
use crate::{Result, is_temporary};
use client::{Client, failed};
use futures_util::stream::{self, BoxStream, Stream};
use futures_util::{StreamExt, TryStreamExt};
use http::Method;
use object_store::client::HttpConnector;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Name;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult,
};
use serde::Deserialize;
use std::ffi::OsStr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use write::{Uploads, aside};

const STORE: &str = "WebHDFS";
/// The extended attribute of files that are written here.
const ATTRIBUTE: &str = "user.forebay";

#[async_trait::async_trait]
impl Service for WebHdfs {
    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::new(self.clone())
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(self)
    }

    fn lists_in_order(&self) -> bool {
        false
    }

    fn appends_parts(&self) -> bool {
        true
    }

    async fn unfinished(&self, name: &Name) -> std::result::Result<Option<Vec<String>>, Fault> {
        Ok(Some(self.0.unfinished(name).await?))
    }
}

pub(super) fn connect(mut opening: Opening<'_>) -> Result<Open> {
    let location = opening.location;
    let scheme = match location.scheme() {
        Some("swebhdfs") => "https",
        _ => "http",
    };
    let nodes = opening
        .take(&["namenodes"])
        .or(opening.variable(&["WEBHDFS_NAMENODES"])?);
    let nodes = nodes.unwrap_or_else(|| location.authority().unwrap_or_default().to_owned());
    let mut urls = Vec::new();
    for node in nodes.split(',').map(str::trim) {
        let url = format!("{scheme}://{node}/webhdfs/v1");
        opening.check_http(&url)?;
        urls.push(url);
    }
    let token = opening
        .take(&["delegation_token"])
        .or(opening.variable(&["WEBHDFS_DELEGATION_TOKEN"])?);
    let user = opening.take(&["hdfs_user"]).or(opening.variable(&[
        "HADOOP_USER_NAME",
        "USER",
        "LOGNAME",
    ])?);
    let identity = match (token, user) {
        _ if opening.options.anonymous => None,
        (Some(token), _) => Some(("delegation", token)),
        (None, user) => user.map(|user| ("user.name", user)),
    };
    let options = web::client_options(&mut opening)?;
    let client = Watched::Bucket
        .connect(&options)
        .map_err(|error| opening.failed(&error))?;
    let endpoint = urls.first().cloned();
    let client = Client::new(client, urls, identity, opening.options.timeout)
        .map_err(|error| opening.failed(&error))?;
    let files = WebHdfs(Arc::new(Files {
        client,
        uploads: Uploads::default(),
    }));
    opening.finish(Box::new(files), endpoint.as_deref())
}

/// The file system as a store of `object_store`.
#[derive(Debug, Clone)]
struct WebHdfs(Arc<Files>);

#[derive(Debug)]
struct Files {
    client: Client,
    uploads: Uploads,
}

impl std::fmt::Display for WebHdfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(STORE)
    }
}

#[derive(Deserialize, Debug, PartialEq, Eq, Clone, Copy)]
#[serde(rename_all = "UPPERCASE")]
enum FileType {
    File,
    Directory,
    Symlink,
}

/// A file or a directory, as a name node describes it.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(default)]
    path_suffix: String,
    r#type: FileType,
    #[serde(default)]
    length: u64,
    /// Milliseconds since 1970.
    #[serde(default)]
    modification_time: u64,
    /// The inode, which a renamed file keeps. Some gateways do not have it.
    #[serde(default)]
    file_id: u64,
}

impl Status {
    fn etag(&self) -> String {
        let Self {
            file_id,
            length,
            modification_time,
            ..
        } = self;
        format!("{file_id:x}-{length:x}-{modification_time:x}")
    }

    fn meta(&self, location: Name) -> ObjectMeta {
        let modified = SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_millis(self.modification_time))
            .unwrap_or(SystemTime::UNIX_EPOCH);
        ObjectMeta {
            location,
            last_modified: modified.into(),
            size: self.length,
            e_tag: Some(self.etag()),
            version: None,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FileStatus {
    file_status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FileStatuses {
    file_statuses: Statuses,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Statuses {
    file_status: Vec<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DirectoryListing {
    directory_listing: Page,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    partial_listing: FileStatuses,
    remaining_entries: u64,
}

#[derive(Deserialize)]
struct XAttrs {
    #[serde(rename = "XAttrs")]
    all: Vec<XAttr>,
}

#[derive(Deserialize)]
struct XAttr {
    name: String,
    value: Option<String>,
}

fn not_found(name: &Name) -> Error {
    Error::NotFound {
        path: name.to_string(),
        source: "there is no such file".into(),
    }
}

fn not_supported<T>(what: &str) -> object_store::Result<T> {
    Err(Error::NotSupported {
        source: format!("{STORE} has no {what} here").into(),
    })
}

impl Files {
    /// The status of a file; a directory is no file.
    async fn status(&self, name: &Name) -> object_store::Result<Status> {
        let found: FileStatus = self
            .client
            .json(Method::GET, name, "GETFILESTATUS", &[])
            .await?;
        match found.file_status.r#type {
            FileType::File => Ok(found.file_status),
            _ => Err(not_found(name)),
        }
    }

    /// The CRC-32C and the token that the writer of the file stored, as the metadata of other stores.
    async fn stored(&self, name: &Name) -> object_store::Result<Attributes> {
        let query = [("encoding", "text")];
        let found: XAttrs = match self
            .client
            .json(Method::GET, name, "GETXATTRS", &query)
            .await
        {
            // A file system without extended attributes.
            Err(Error::NotSupported { .. }) => return Ok(Attributes::new()),
            found => found?,
        };
        let found = found.all.into_iter().find(|each| each.name == ATTRIBUTE);
        let text = found.and_then(|found| found.value).unwrap_or_default();
        let parts = text.trim_matches('"').split_once('-');
        let known = parts.and_then(|(crc32c, token)| {
            let crc32c = u32::from_str_radix(crc32c, 16).ok()?;
            Some(attributes(crc32c, token))
        });
        Ok(known.unwrap_or_default())
    }

    /// Up to a page of the entries of a directory that follow `after`, and whether there are more.
    async fn page(
        &self,
        dir: &Name,
        after: Option<&str>,
    ) -> object_store::Result<(Vec<Status>, bool)> {
        let query: Vec<_> = after.iter().map(|after| ("startAfter", *after)).collect();
        let page = async {
            let paged = self
                .client
                .json(Method::GET, dir, "LISTSTATUS_BATCH", &query)
                .await;
            match paged {
                Ok(DirectoryListing { directory_listing }) => Ok((
                    directory_listing.partial_listing,
                    directory_listing.remaining_entries > 0,
                )),
                // Hadoop before 2.8 has no pages.
                Err(Error::NotSupported { .. }) => {
                    let all = self.client.json(Method::GET, dir, "LISTSTATUS", &[]);
                    Ok((all.await?, false))
                }
                Err(error) => Err(error),
            }
        };
        let (entries, more) = match page.await {
            Ok((FileStatuses { file_statuses }, more)) => (file_statuses.file_status, more),
            Err(Error::NotFound { .. }) => return Ok((Vec::new(), false)),
            Err(error) => return Err(error),
        };
        let last = entries.last().map(|last| last.path_suffix.as_str());
        if more && last.is_none_or(|last| after.is_some_and(|after| last <= after)) {
            client::note(super::fault::ENDLESS_LISTING);
            return Err(failed("the listing does not end"));
        }
        Ok((entries, more))
    }

    /// The pages of a listing of one directory, or of all below it.
    fn pages(
        self: Arc<Self>,
        prefix: Option<Name>,
        is_deep: bool,
    ) -> impl Stream<Item = object_store::Result<ListResult>> {
        let start = vec![(prefix.unwrap_or_default(), None::<String>)];
        stream::try_unfold(start, move |mut open| {
            let files = Arc::clone(&self);
            async move {
                let Some((dir, after)) = open.pop() else {
                    return Ok(None);
                };
                let (entries, more) = files.page(&dir, after.as_deref()).await?;
                if more && let Some(last) = entries.last() {
                    open.push((dir.clone(), Some(last.path_suffix.clone())));
                }
                let found = sort(&dir, entries);
                if is_deep {
                    let dirs = found.common_prefixes.iter().cloned();
                    open.extend(dirs.map(|dir| (dir, None)));
                }
                Ok(Some((found, open)))
            }
        })
    }

    /// The bytes of `range`, or of the whole file, and the metadata of the file that they are of.
    async fn read(&self, name: &Name, options: GetOptions) -> object_store::Result<GetResult> {
        let (start, end) = match &options.range {
            None => (0, None),
            Some(GetRange::Bounded(range)) => (range.start, Some(range.end)),
            Some(GetRange::Offset(start)) => (*start, None),
            Some(GetRange::Suffix(_)) => return not_supported("ranges that count from the end"),
        };
        let opened = self.client.open(name, start, end).await;
        // After the data node has opened the file, so that the bytes are not of one that is newer.
        let (body, status) = match opened {
            Ok(body) => (body.map_err(failed).boxed(), self.status(name).await?),
            // A name node refuses a range that begins behind the end.
            Err(error) if start > 0 => match aside(self.status(name)).await {
                Ok(status) if start > status.length => (stream::empty().boxed(), status),
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        };
        let size = status.length;
        let range: Range<u64> = start.min(size)..end.unwrap_or(size).min(size);
        let meta = status.meta(name.clone());
        if let (Some(wanted), Some(found)) = (&options.if_match, &meta.e_tag)
            && wanted != found
        {
            return Err(Error::Precondition {
                path: name.to_string(),
                source: "another file is there".into(),
            });
        }
        let attributes = match options.range {
            None => self.stored(name).await?,
            Some(_) => Attributes::new(),
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(body),
            meta,
            range,
            attributes,
            extensions: http::Extensions::new(),
        })
    }
}

/// The entries of a directory as objects and directories, without temporary files. A name that cannot be a key is noted and left out.
fn sort(dir: &Name, entries: Vec<Status>) -> ListResult {
    let mut found = empty_level();
    for entry in entries {
        let suffix = entry.path_suffix.as_str();
        // A listing of a file is the file itself, without a name.
        if suffix.is_empty() || is_temporary(OsStr::new(suffix)) {
            continue;
        }
        let path = match dir.as_ref() {
            "" => suffix.to_owned(),
            dir => format!("{dir}/{suffix}"),
        };
        let is_named = !path.chars().any(char::is_control);
        match (Name::parse(&path), entry.r#type) {
            (Ok(name), FileType::Directory) if is_named => found.common_prefixes.push(name),
            (Ok(name), FileType::File) if is_named => found.objects.push(entry.meta(name)),
            _ => {
                let _ = EXCHANGE_LOG.try_with(|notes| notes.lock().invalid_names.push(path));
            }
        }
    }
    found
}

#[async_trait::async_trait]
impl ObjectStore for WebHdfs {
    async fn get_opts(&self, name: &Name, options: GetOptions) -> object_store::Result<GetResult> {
        if !options.head {
            return self.0.read(name, options).await;
        }
        let status = self.0.status(name).await?;
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::empty().boxed()),
            range: 0..status.length,
            meta: status.meta(name.clone()),
            attributes: self.0.stored(name).await?,
            extensions: http::Extensions::new(),
        })
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
        name: &Name,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.0.put(name, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        _: &Name,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        not_supported("uploads of unknown length")
    }

    fn delete_stream(
        &self,
        names: BoxStream<'static, object_store::Result<Name>>,
    ) -> BoxStream<'static, object_store::Result<Name>> {
        let files = Arc::clone(&self.0);
        let deleted = names.and_then(move |name| {
            let files = Arc::clone(&files);
            async move { files.delete(&name).await.map(|()| name) }
        });
        deleted.boxed()
    }

    async fn copy_opts(&self, _: &Name, _: &Name, _: CopyOptions) -> object_store::Result<()> {
        not_supported("copies on the server")
    }
}
