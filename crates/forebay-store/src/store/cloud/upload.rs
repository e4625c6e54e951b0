//! Uploads of files: in one put, or in parts.
//!
//! A multipart upload has two requests whose effect is unknown if their response is lost. A lost begin may leave an open
//! upload without parts, which costs nothing (see `multipart_guard`). A lost completion may have succeeded: before a retry,
//! the client reads the object's metadata and recognizes its own object by the token.

mod multipart_guard;
mod source;

use super::exchange_log::EXCHANGE_LOG;
use super::task_tracker::TaskTracker;
use super::{Fault, Live, Outcome, Try, new_token, runtime};
use crate::store::{Object, Put, Transfer};
use crate::{Error, Limiter, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use multipart_guard::MultipartGuard;
use object_store::multipart::PartId;
use object_store::path::Path as Name;
use source::Source;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// The smallest part, except the last, that S3 and Google accept.
const SMALLEST_PART: u64 = 5 << 20;
/// Maximum number of parts that are used; S3 and Google accept 10,000.
const MOST_PARTS: u64 = 9_000;
/// Maximum number of tries of an upload that another process aborts, or that is damaged when it is read back.
const ROUNDS: u32 = 3;
/// The file to upload.
#[derive(Clone, Copy)]
struct Whole<'a> {
    key: &'a str,
    source: &'a Source,
    crc32c: u32,
    part_bytes: u64,
}

/// A part that was uploaded.
struct Sent {
    index: usize,
    id: PartId,
    crc32c: u32,
    len: u64,
    /// Whether the store's response proved that it received these bytes.
    proved: bool,
    /// The URL of the object, as used in the request.
    url: String,
}

impl Live {
    pub(super) async fn upload_file(
        self,
        key: String,
        file: &Path,
        transfer: &Transfer<'_>,
        endings: &TaskTracker,
    ) -> Result<Object> {
        self.refuse_web("write", &key)?;
        let source = Source::open(file)?;
        let crc32c = match transfer.crc32c {
            Some(crc32c) => crc32c,
            None => source.clone().crc32c().await?,
        };
        let part_bytes = transfer
            .part_bytes
            .max(SMALLEST_PART)
            .max((source.len / MOST_PARTS).next_multiple_of(1 << 20));
        let mut counted = 0;
        if source.len <= part_bytes {
            return self
                .upload_whole(key, source, crc32c, transfer, endings)
                .await;
        }
        let mut round = 1;
        loop {
            let done = self
                .upload_parts(
                    Whole {
                        key: &key,
                        source: &source,
                        crc32c,
                        part_bytes,
                    },
                    transfer,
                    &mut counted,
                    endings,
                )
                .await;
            match done {
                // Another process aborted this upload, or the stored bytes differ from the sent ones.
                Err(Error::NotFound { .. } | Error::Checksum { what: STORED, .. })
                    if round < ROUNDS =>
                {
                    round += 1;
                }
                done => return done,
            }
        }
    }

    async fn upload_whole(
        self,
        key: String,
        source: Source,
        crc32c: u32,
        transfer: &Transfer<'_>,
        endings: &TaskTracker,
    ) -> Result<Object> {
        if let Some(limiter) = transfer.limiter {
            limiter.wait(source.len).await;
        }
        let len = source.len;
        let bytes = source.clone().read(0, len).await?;
        source.expect(crc32c, crc32c::crc32c(&bytes))?;
        let written = self.put(key.clone(), bytes, Put::Always, endings).await?;
        (transfer.progress)(len);
        Ok(Object {
            etag: written.etag,
            crc32c: Some(crc32c),
            ..Object::new(key, len)
        })
    }

    async fn upload_parts(
        &self,
        whole: Whole<'_>,
        transfer: &Transfer<'_>,
        counted: &mut u64,
        endings: &TaskTracker,
    ) -> Result<Object> {
        let Whole {
            key,
            source,
            crc32c,
            part_bytes,
        } = whole;
        let runtime = runtime::runtime()?;
        let name = self.name(key)?;
        let token = new_token();
        let begun = self
            .begin_upload(key, &name, crc32c, &token, endings)
            .await?;
        let limiter = transfer.limiter.cloned();
        let mut sent: Vec<Sent> = Vec::new();
        let mut through = 0u64;
        {
            let (upload_id, on_their_way) = (begun.id.clone(), begun.parts.clone());
            let parts = (0..source.len.div_ceil(part_bytes)).map(|index| {
                let offset = index * part_bytes;
                let part = Part {
                    index: index as usize,
                    offset,
                    len: part_bytes.min(source.len - offset),
                    key: key.to_owned(),
                    name: name.clone(),
                    upload_id: upload_id.clone(),
                    source: source.clone(),
                    limiter: limiter.clone(),
                };
                let (live, going) = (self.clone(), on_their_way.enter());
                Task::spawn(runtime, async move {
                    let sent = live.send_part(part).await;
                    drop(going);
                    sent
                })
            });
            let mut parts = stream::iter(parts).buffer_unordered(self.parts_at_once(transfer));
            loop {
                match parts.try_next().await {
                    Ok(Some(part)) => {
                        through += part.len;
                        if through > *counted {
                            (transfer.progress)(through - *counted);
                            *counted = through;
                        }
                        sent.push(part);
                    }
                    Ok(None) => break,
                    Err(error) => {
                        drop(parts);
                        begun.end().await;
                        return Err(error);
                    }
                }
            }
        }
        sent.sort_by_key(|part| part.index);
        let found = sent.iter().fold(0, |crc32c, part| {
            crc32c::crc32c_combine(crc32c, part.crc32c, part.len as usize)
        });
        if let Err(error) = source.expect(crc32c, found) {
            begun.end().await;
            return Err(error);
        }
        let all_proved = sent.iter().all(|part| part.proved);
        let done = self
            .complete_upload(&begun, sent, source.len, crc32c, &token)
            .await;
        let etag = match done {
            Ok(etag) => etag,
            Err(error) => {
                begun.end().await;
                return Err(error);
            }
        };
        begun.complete();
        if self.reads_back() || (!all_proved && self.is_unprotected()) {
            let found = self.read_back(key, source.len, part_bytes).await?;
            if found != crc32c {
                return Err(Error::Checksum {
                    object: self.object(key),
                    what: STORED,
                    expected: crc32c,
                    found,
                });
            }
        }
        Ok(Object {
            etag,
            crc32c: Some(crc32c),
            ..Object::new(key, source.len)
        })
    }

    fn parts_at_once(&self, transfer: &Transfer<'_>) -> usize {
        match self.0.service.appends_parts() {
            true => 1,
            false => transfer.parallel.max(1),
        }
    }

    async fn send_part(self, part: Part) -> Result<Sent> {
        let operation = self.operation("write", &part.key, part.len);
        for limiter in [part.limiter.as_ref(), self.0.limiter.as_ref()]
            .into_iter()
            .flatten()
        {
            limiter.wait(part.len).await;
        }
        let bytes = part.source.clone().read(part.offset, part.len).await?;
        let crc32c = crc32c::crc32c(&bytes);
        let part = Arc::new(part);
        self.run(&operation, |_| {
            let (live, part, bytes) = (self.clone(), Arc::clone(&part), bytes.clone());
            async move {
                let id = live
                    .multipart()?
                    .put_part(&part.name, &part.upload_id, part.index, bytes.into())
                    .await?;
                let seen = EXCHANGE_LOG.with(|notes| notes.seen());
                Ok(Sent {
                    index: part.index,
                    id,
                    crc32c,
                    len: part.len,
                    proved: seen.proved > 0,
                    url: seen.url,
                })
            }
        })
        .await
        .map_err(|failed| failed.into_error(&operation))
    }

    async fn complete_upload(
        &self,
        begun: &MultipartGuard,
        sent: Vec<Sent>,
        len: u64,
        crc32c: u32,
        token: &str,
    ) -> Result<Option<String>> {
        let operation = self.operation("write", &begun.key, 0);
        let url = sent
            .first()
            .map_or_else(String::new, |part| part.url.clone());
        let ids: Arc<Vec<PartId>> = Arc::new(sent.into_iter().map(|part| part.id).collect());
        let done = self
            .run(&operation, |number| {
                self.clone().complete_once(
                    Completion {
                        key: begun.key.clone(),
                        name: begun.name.clone(),
                        upload_id: begun.id.clone(),
                        url: url.clone(),
                        ids: Arc::clone(&ids),
                        crc32c,
                        token: token.to_owned(),
                    },
                    number,
                )
            })
            .await;
        match done {
            Ok(etag) => {
                // The store reports success; one more request verifies the length.
                match self.look(&begun.key).await? {
                    Some(head) if head.object.len == len => Ok(etag.or(head.object.etag)),
                    other => Err(Error::Changed {
                        object: self.object(&begun.key),
                        why: format!(
                            "{len} bytes were written, and it has {}",
                            other.map_or(0, |head| head.object.len)
                        ),
                    }),
                }
            }
            // The last try may have succeeded although its response was lost.
            Err(failed) => match self.look(&begun.key).await {
                Ok(Some(head)) if head.token.as_deref() == Some(token) => Ok(head.object.etag),
                _ if matches!(failed.verdict.what, Outcome::NotFound) => Err(Error::NotFound {
                    object: operation.object,
                    op: "write",
                }),
                _ => Err(failed.into_error(&operation)),
            },
        }
    }

    async fn complete_once(
        self,
        completion: Completion,
        number: Try,
    ) -> std::result::Result<Option<String>, Fault> {
        if number.0 > 1 {
            let head = self
                .clone()
                .look_once(completion.key.clone(), completion.name.clone())
                .await;
            match head {
                Ok(head) if head.token.as_deref() == Some(&completion.token) => {
                    return Ok(head.object.etag);
                }
                Ok(_) | Err(Fault::Store(object_store::Error::NotFound { .. })) => {}
                Err(fault) => return Err(fault),
            }
        }
        self.0.service.complete(&self.0, &completion).await
    }
}

/// Names the damaged bytes in the error of an upload that is read back.
const STORED: &str = "what the store has";

/// The request that completes a multipart upload.
pub(super) struct Completion {
    key: String,
    pub(super) name: Name,
    pub(super) upload_id: String,
    /// The URL of the object, without a query.
    pub(super) url: String,
    pub(super) ids: Arc<Vec<PartId>>,
    pub(super) crc32c: u32,
    pub(super) token: String,
}

struct Part {
    index: usize,
    offset: u64,
    len: u64,
    key: String,
    name: Name,
    upload_id: String,
    source: Source,
    limiter: Option<Limiter>,
}

/// A task on the runtime's threads that is aborted on drop.
pub(super) struct Task<T>(JoinHandle<Result<T>>);

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn(
        runtime: &Runtime,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Self {
        Self(runtime.spawn(work))
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|joined| {
            joined.unwrap_or_else(|ended| {
                Err(Error::io(
                    "",
                    "end a request of",
                    std::io::Error::other(ended),
                ))
            })
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
