//! Writing: temporary files that become the file by a rename.

use super::client::{failed, note, parsed};
use super::{ATTRIBUTE, Files, WebHdfs};
use crate::atomic_file::{TEMPORARY_SUFFIX, temporary_name, temporary_stem};
use crate::store::cloud::exchange_log::EXCHANGE_LOG;
use crate::store::cloud::{CRC32C_NAME, TOKEN_NAME, metadata, new_token};
use http::Method;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as Name;
use object_store::{
    Attributes, Error, MultipartId, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use serde::Deserialize;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A lock file is held for the length of a few requests. An older one, by the file system's own clock, is of a killed process.
const LOCK_LIFETIME: Duration = Duration::from_secs(120);
/// The lock file of a name, as the id of a temporary file.
const LOCK: &str = "lock";
/// The code of a lock that another writer holds: the put is tried again.
const LOCKED: &str = "ConditionalRequestConflict";

/// The offsets of the parts of unfinished uploads, by the ids of the uploads.
#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<HashMap<MultipartId, Vec<u64>>>);

impl Uploads {
    fn with<T>(&self, id: &str, work: impl FnOnce(&mut Vec<u64>) -> T) -> Option<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(id).map(work)
    }

    fn begin(&self, id: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(id.to_owned(), vec![0]);
    }

    fn end(&self, id: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(id);
    }
}

#[derive(Deserialize)]
struct Done {
    boolean: bool,
}

/// The directory of a file, and the file's own name.
fn split(name: &Name) -> (&str, &str) {
    let path = name.as_ref();
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The start of the names of temporary files of `name`, without the directory.
fn stem(name: &Name) -> String {
    let stem = temporary_stem(OsStr::new(split(name).1));
    format!("{}.", stem.to_string_lossy())
}

/// The temporary file of `name` that `id` writes.
fn temporary(name: &Name, id: &str) -> object_store::Result<Name> {
    let own = temporary_name(OsStr::new(&(stem(name) + id)));
    let own = own.to_string_lossy();
    let path = match split(name).0 {
        "" => own.into_owned(),
        dir => format!("{dir}/{own}"),
    };
    Ok(Name::parse(path)?)
}

/// Does `work` without a trace in the log of the last exchange, which says why the operation fails.
pub(super) async fn aside<T>(work: impl Future<Output = T>) -> T {
    let seen = EXCHANGE_LOG.try_with(|notes| notes.seen());
    let done = work.await;
    if let Ok(seen) = seen {
        let _ = EXCHANGE_LOG.try_with(|notes| *notes.lock() = seen);
    }
    done
}

impl Files {
    /// Writes a file; it is not published.
    async fn create(
        &self,
        file: &Name,
        bytes: PutPayload,
        stored: &Attributes,
    ) -> object_store::Result<()> {
        let query = [("overwrite", "true")];
        self.client
            .write(Method::PUT, file, "CREATE", &query, bytes)
            .await?;
        let (Some(crc32c), Some(token)) =
            (metadata(stored, CRC32C_NAME), metadata(stored, TOKEN_NAME))
        else {
            return Ok(());
        };
        let value = format!("{crc32c}-{token}");
        let query = [
            ("xattr.name", ATTRIBUTE),
            ("xattr.value", value.as_str()),
            ("flag", "CREATE"),
        ];
        match self
            .client
            .text(Method::PUT, file, "SETXATTR", &query)
            .await
        {
            // A file system without extended attributes.
            Err(Error::NotSupported { .. }) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Renames a file. `option` is OVERWRITE, or NONE if an existing file is an error.
    async fn rename(&self, from: &Name, to: &Name, option: &str) -> object_store::Result<()> {
        let target = format!("/{to}");
        let query = [("destination", target.as_str()), ("renameoptions", option)];
        let answer = self
            .client
            .text(Method::PUT, from, "RENAME", &query)
            .await?;
        // A gateway that does not know the option answers whether it renamed: never over a file that exists.
        if answer.is_empty() || parsed::<Done>(&answer)?.boolean {
            return Ok(());
        }
        if option == "OVERWRITE" {
            self.delete(to).await?;
            return Box::pin(self.rename(from, to, "NONE")).await;
        }
        Err(Error::AlreadyExists {
            path: to.to_string(),
            source: "there is a file".into(),
        })
    }

    pub(super) async fn delete(&self, name: &Name) -> object_store::Result<()> {
        let query = [("recursive", "false")];
        let _: Done = self
            .client
            .json(Method::DELETE, name, "DELETE", &query)
            .await?;
        Ok(())
    }

    pub(super) async fn put(
        &self,
        name: &Name,
        bytes: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let token = metadata(&options.attributes, TOKEN_NAME).map_or_else(new_token, str::to_owned);
        let file = temporary(name, &token)?;
        self.create(&file, bytes, &options.attributes).await?;
        let e_tag = self.status(&file).await?.etag();
        let published = match &options.mode {
            PutMode::Overwrite => self.rename(&file, name, "OVERWRITE").await,
            PutMode::Create => self.rename(&file, name, "NONE").await,
            PutMode::Update(expected) => self.replace(name, expected.e_tag.as_deref(), &file).await,
        };
        if let Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) = &published {
            // The put is refused. If the file cannot be deleted now, `unfinished` finds it.
            let _ = aside(self.delete(&file)).await;
        }
        published?;
        Ok(PutResult {
            e_tag: Some(e_tag),
            version: None,
            extensions: http::Extensions::new(),
        })
    }

    /// Publishes `file` as `name` if the file that is there has this etag. HDFS has no such request, so writers that use
    /// conditions hold a lock file meanwhile.
    async fn replace(
        &self,
        name: &Name,
        expected: Option<&str>,
        file: &Name,
    ) -> object_store::Result<()> {
        let lock = temporary(name, LOCK)?;
        let query = [("overwrite", "false")];
        let created = self
            .client
            .write(Method::PUT, &lock, "CREATE", &query, PutPayload::new());
        match created.await {
            Ok(()) => {}
            Err(Error::AlreadyExists { .. }) => {
                let age = self.status(file).await?.modification_time;
                let since = self.status(&lock).await?.modification_time;
                if age.saturating_sub(since) > LOCK_LIFETIME.as_millis() as u64 {
                    // Of several writers one renames it.
                    let old = temporary(name, &new_token())?;
                    self.rename(&lock, &old, "NONE").await?;
                    self.delete(&old).await?;
                }
                note(LOCKED);
                return Err(failed("another writer replaces the file"));
            }
            Err(error) => return Err(error),
        }
        let replaced = async {
            match self.status(name).await {
                Ok(found) if Some(found.etag().as_str()) == expected => {
                    self.rename(file, name, "OVERWRITE").await
                }
                Ok(_) | Err(Error::NotFound { .. }) => Err(Error::Precondition {
                    path: name.to_string(),
                    source: "another file is there".into(),
                }),
                Err(error) => Err(error),
            }
        };
        let replaced = replaced.await;
        let _ = aside(self.delete(&lock)).await;
        replaced
    }

    /// The ids of the temporary files of `name`.
    pub(super) async fn unfinished(&self, name: &Name) -> object_store::Result<Vec<String>> {
        let dir = Name::parse(split(name).0)?;
        let start = format!(".{}", stem(name));
        let mut ids = Vec::new();
        let mut last = None::<String>;
        loop {
            let (entries, more) = self.page(&dir, last.as_deref()).await?;
            for entry in entries {
                last = Some(entry.path_suffix);
                let id = last.as_deref().and_then(|own| {
                    own.strip_prefix(start.as_str())?
                        .strip_suffix(TEMPORARY_SUFFIX)
                });
                ids.extend(
                    id.filter(|id| !id.contains('.') && *id != LOCK)
                        .map(str::to_owned),
                );
            }
            if !more {
                return Ok(ids);
            }
        }
    }
}

#[async_trait::async_trait]
impl MultipartStore for WebHdfs {
    async fn create_multipart(&self, name: &Name) -> object_store::Result<MultipartId> {
        let options = PutMultipartOptions::default();
        self.create_multipart_opts(name, options).await
    }

    async fn create_multipart_opts(
        &self,
        name: &Name,
        options: PutMultipartOptions,
    ) -> object_store::Result<MultipartId> {
        let id = new_token();
        let file = temporary(name, &id)?;
        let stored = &options.attributes;
        self.0.create(&file, PutPayload::new(), stored).await?;
        self.0.uploads.begin(&id);
        Ok(id)
    }

    async fn put_part(
        &self,
        name: &Name,
        id: &MultipartId,
        index: usize,
        bytes: PutPayload,
    ) -> object_store::Result<PartId> {
        let file = temporary(name, id)?;
        let start = self.0.uploads.with(id, |starts| starts.get(index).copied());
        let start = start.flatten().ok_or_else(|| super::not_found(&file))?;
        let end = start + bytes.content_length() as u64;
        match self.0.status(&file).await?.length {
            length if length == start => {
                self.0
                    .client
                    .write(Method::POST, &file, "APPEND", &[], bytes)
                    .await?;
            }
            // An earlier try, whose answer was lost.
            length if length == end => {}
            // An earlier try broke off within the part. The upload begins again.
            _ => return Err(super::not_found(&file)),
        }
        self.0.uploads.with(id, |starts| {
            starts.truncate(index + 1);
            starts.push(end);
        });
        Ok(PartId {
            content_id: index.to_string(),
        })
    }

    async fn complete_multipart(
        &self,
        name: &Name,
        id: &MultipartId,
        _: Vec<PartId>,
    ) -> object_store::Result<PutResult> {
        let file = temporary(name, id)?;
        let e_tag = self.0.status(&file).await?.etag();
        self.0.rename(&file, name, "OVERWRITE").await?;
        self.0.uploads.end(id);
        Ok(PutResult {
            e_tag: Some(e_tag),
            version: None,
            extensions: http::Extensions::new(),
        })
    }

    async fn abort_multipart(&self, name: &Name, id: &MultipartId) -> object_store::Result<()> {
        self.0.uploads.end(id);
        self.0.delete(&temporary(name, id)?).await
    }
}
