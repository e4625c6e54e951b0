//! Metadata and reading.

use super::content_hash::ContentHash;
use super::exchange_log::EXCHANGE_LOG;
use super::fault::Damage;
use super::{CRC32C_NAME, Fault, Live, Operation, Outcome, TOKEN_NAME, metadata, runtime};
use crate::store::object::plain_etag;
use crate::store::{Object, Transfer};
use crate::{AtomicFile, Durability, Error, Location, Result};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Name;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStoreExt as _};
use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Maximum number of tries of a download whose bytes are damaged or whose object is replaced meanwhile.
const DOWNLOAD_ROUNDS: u32 = 5;

/// Maximum number of slices of one vectored write: the common system limit (`IOV_MAX`).
const MOST_SLICES: usize = 1024;

/// The metadata that the response to a range request is compared with.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    etag: Option<String>,
    /// The size, if objects of the store never change.
    listed_len: Option<u64>,
}

/// The response to a HEAD request.
pub(super) struct Head {
    pub(super) object: Object,
    /// The object version (Google: generation) that some stores need in conditions.
    pub(super) version: Option<String>,
    pub(super) token: Option<String>,
}

impl Live {
    pub(super) async fn pinned(self) -> Result<Option<Location>> {
        let operation = self.operation("look at", "", 0);
        self.run(&operation, |_| {
            let open = Arc::clone(&self.0);
            async move { open.service.pinned(&open.location).await }
        })
        .await
        .map_err(|failed| failed.into_error(&operation))
    }

    pub(super) async fn head(self, key: String) -> Result<Option<Object>> {
        Ok(self.look(&key).await?.map(|head| head.object))
    }

    /// Requests the metadata of an object; `None` if there is no such object.
    pub(super) async fn look(&self, key: &str) -> Result<Option<Head>> {
        let operation = self.operation("look at", key, 0);
        let name = self.name(key)?;
        let head = self
            .run(&operation, |_| {
                self.clone().look_once(key.to_owned(), name.clone())
            })
            .await;
        match head {
            Ok(head) => Ok(Some(head)),
            Err(failed) if matches!(failed.verdict.what, Outcome::NotFound) => Ok(None),
            Err(failed) => Err(failed.into_error(&operation)),
        }
    }

    pub(super) async fn look_once(
        self,
        key: String,
        name: Name,
    ) -> std::result::Result<Head, Fault> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let mut answer = object_store::ObjectStore::get_opts(&*self.store(), &name, options).await;
        // The response to HEAD has no body with the reason (expired credentials look like a bad request), so send a GET.
        let seen = EXCHANGE_LOG.try_with(|notes| notes.seen());
        if answer.is_err()
            && seen.is_ok_and(|seen| {
                seen.code.is_none() && matches!(seen.status, Some(400 | 401 | 403))
            })
            && !self.0.service.is_read_only()
        {
            answer =
                object_store::ObjectStore::get_opts(&*self.store(), &name, GetOptions::default())
                    .await;
        }
        let answer = answer?;
        Ok(Head {
            token: metadata(&answer.attributes, TOKEN_NAME).map(str::to_owned),
            version: answer.meta.version.clone(),
            object: Object {
                crc32c: stored_crc32c(&answer),
                ..describe(key, &answer.meta)
            },
        })
    }

    pub(super) async fn get(self, key: String, limit: u64) -> Result<Vec<u8>> {
        let name = self.name(&key)?;
        let operation = self.operation("read", &key, limit.min(64 << 20));
        let bytes = self
            .run(&operation, |_| {
                self.clone()
                    .get_once(operation.object.clone(), name.clone(), limit)
            })
            .await
            .map_err(|failed| failed.into_error(&operation))?;
        // The bandwidth is charged afterwards, because the size was not known before.
        self.share(bytes.len() as u64).await;
        Ok(bytes)
    }

    /// Waits until the store's bandwidth limit admits this many bytes. Called outside `run`, so that the wait does not count
    /// towards the timeout of a request.
    pub(super) async fn share(&self, bytes: u64) {
        if let Some(limiter) = &self.0.limiter {
            limiter.wait(bytes).await;
        }
    }

    /// One try to get a whole object.
    async fn get_once(
        self,
        object: String,
        name: Name,
        limit: u64,
    ) -> std::result::Result<Vec<u8>, Fault> {
        let answer = self.begin(&name, GetOptions::default()).await?;
        let len = answer.meta.size;
        if len > limit {
            return Err(Error::TooLarge { object, len, limit }.into());
        }
        let expected = stored_crc32c(&answer);
        let chunks = self.body(answer, len).await?;
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or_default());
        for chunk in chunks {
            bytes.extend_from_slice(&chunk);
        }
        check_sum("what was read", expected, crc32c::crc32c(&bytes))?;
        Ok(bytes)
    }

    /// Reads a range, and returns its bytes in the chunks in which they arrived.
    pub(super) async fn read_range(
        self,
        key: String,
        expected: Expected,
        offset: u64,
        len: u64,
    ) -> Result<Vec<Bytes>> {
        let name = self.name(&key)?;
        let operation = self.operation("read", &key, len);
        let beyond = |len_now: u64| Error::BeyondEnd {
            object: operation.object.clone(),
            len: len_now,
            offset,
            wanted: len,
        };
        let Some(end) = offset.checked_add(len) else {
            return Err(beyond(0));
        };
        self.share(len).await;
        let read = self
            .run(&operation, |_| {
                let operation = operation.clone();
                self.clone()
                    .range_once(operation, name.clone(), expected.clone(), offset..end)
            })
            .await;
        match read {
            Ok(chunks) => Ok(chunks),
            Err(failed) if matches!(failed.verdict.what, Outcome::BeyondEnd) => {
                if let Some(len) = expected.listed_len {
                    let why = format!("it is shorter than the {len} bytes that are listed");
                    let object = operation.object;
                    return Err(Error::Damaged { object, why });
                }
                let now = self.look(&key).await?;
                Err(now.map_or_else(
                    || failed.into_error(&operation),
                    |head| beyond(head.object.len),
                ))
            }
            Err(failed) => Err(failed.into_error(&operation)),
        }
    }

    async fn range_once(
        self,
        operation: Operation,
        name: Name,
        Expected { etag, listed_len }: Expected,
        range: Range<u64>,
    ) -> std::result::Result<Vec<Bytes>, Fault> {
        let options = || GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            // A weak etag never matches `If-Match`; it is compared with the response below.
            if_match: etag.clone().filter(|etag| !etag.starts_with("W/")),
            ..GetOptions::default()
        };
        let started = Instant::now();
        let answer = self.begin_hedged(&name, &options).await?;
        self.0.pace.read_took(started.elapsed());
        let len = answer.meta.size;
        if let (Some(expected), Some(found)) = (&etag, &answer.meta.e_tag)
            && plain_etag(expected) != plain_etag(found)
        {
            let why = "it was overwritten".to_owned();
            let object = operation.object;
            return Err(Error::Changed { object, why }.into());
        }
        if let Some(listed) = listed_len.filter(|listed| *listed != len) {
            let why = format!("it has {len} bytes, and {listed} are listed");
            let object = operation.object;
            return Err(Error::Damaged { object, why }.into());
        }
        if answer.range != range {
            return Err(Error::BeyondEnd {
                object: operation.object,
                len,
                offset: range.start,
                wanted: range.end - range.start,
            }
            .into());
        }
        self.body(answer, range.end - range.start).await
    }

    /// Sends a GET, and a second one (a hedge) if the response is late. Returns the first success.
    async fn begin_hedged(
        &self,
        name: &Name,
        options: &impl Fn() -> GetOptions,
    ) -> std::result::Result<GetResult, Fault> {
        let first = self.begin(name, options());
        tokio::pin!(first);
        let Some(late) = self.0.pace.late_after() else {
            return first.await;
        };
        if let Ok(answer) = tokio::time::timeout(late, &mut first).await {
            return answer;
        }
        if !self.0.pace.may_hedge() {
            return first.await;
        }
        self.0.counters.hedges.fetch_add(1, Ordering::Relaxed);
        let second = self.begin(name, options());
        tokio::pin!(second);
        match futures_util::future::select(first, second).await {
            futures_util::future::Either::Left((Err(_), other)) => other.await,
            futures_util::future::Either::Right((Err(_), other)) => other.await,
            futures_util::future::Either::Left((answer, _))
            | futures_util::future::Either::Right((answer, _)) => answer,
        }
    }

    /// Sends a GET, and waits for the head of the response.
    async fn begin(
        &self,
        name: &Name,
        options: GetOptions,
    ) -> std::result::Result<GetResult, Fault> {
        let store = self.store();
        let asked = object_store::ObjectStore::get_opts(&*store, name, options);
        match tokio::time::timeout(self.0.timeout, asked).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Fault::TimedOut(self.0.timeout)),
        }
    }

    /// Reads the body of a response, which must have `len` bytes. The timeout applies to each chunk.
    async fn body(&self, answer: GetResult, len: u64) -> std::result::Result<Vec<Bytes>, Fault> {
        let mut stream = answer.into_stream();
        let mut chunks = Vec::new();
        let mut got = 0u64;
        loop {
            let next = tokio::time::timeout(self.0.timeout, stream.try_next());
            let chunk = match next.await {
                Ok(chunk) => chunk?,
                Err(_) => return Err(Fault::TimedOut(self.0.timeout)),
            };
            let Some(chunk) = chunk else { break };
            got += chunk.len() as u64;
            if got > len {
                break;
            }
            chunks.push(chunk);
        }
        if got != len {
            let why = format!("the answer has {got} bytes or more, and {len} were asked for");
            return Err(Fault::BadBytes(why));
        }
        self.0
            .counters
            .received_bytes
            .fetch_add(got, Ordering::Relaxed);
        self.0.billed.receive(got);
        self.0.pace.billed().receive(got);
        Ok(chunks)
    }

    /// The metadata that ranges of an object of `len` bytes are compared with.
    pub(super) fn expected(&self, etag: Option<String>, len: u64) -> Expected {
        Expected {
            etag,
            listed_len: self.0.service.is_pinned().then_some(len),
        }
    }

    /// Downloads an object and returns its CRC-32C.
    pub(super) async fn read_back(&self, key: &str, len: u64, part_bytes: u64) -> Result<u32> {
        let mut parts = self.parts(key, None, len, part_bytes, 4)?;
        let mut crc32c = 0;
        while let Some((chunks, part_crc32c)) = parts.try_next().await? {
            let part_len: usize = chunks.iter().map(Bytes::len).sum();
            crc32c = crc32c::crc32c_combine(crc32c, part_crc32c, part_len);
        }
        Ok(crc32c)
    }

    /// The parts of an object in order, each with its CRC-32C. Up to `parallel` parts are in flight at once.
    fn parts(
        &self,
        key: &str,
        etag: Option<String>,
        len: u64,
        part_bytes: u64,
        parallel: usize,
    ) -> Result<impl stream::Stream<Item = Result<(Vec<Bytes>, u32)>> + Unpin + use<>> {
        let runtime = runtime::runtime()?;
        let expected = self.expected(etag, len);
        let (live, key) = (self.clone(), key.to_owned());
        let offsets = (0..len.div_ceil(part_bytes)).map(move |part| part * part_bytes);
        Ok(stream::iter(offsets)
            .map(move |offset| {
                let (live, key, expected) = (live.clone(), key.clone(), expected.clone());
                let wanted = part_bytes.min(len - offset);
                super::upload::Task::spawn(runtime, async move {
                    let chunks = live.read_range(key, expected, offset, wanted).await?;
                    let crc32c = chunks
                        .iter()
                        .fold(0, |crc32c, chunk| crc32c::crc32c_append(crc32c, chunk));
                    Ok((chunks, crc32c))
                })
            })
            .buffered(parallel.max(1)))
    }

    pub(super) async fn download_file(
        self,
        key: String,
        file: &Path,
        transfer: &Transfer<'_>,
    ) -> Result<Object> {
        let mut counted = 0;
        let mut round = 1;
        loop {
            match self.download_once(&key, file, transfer, &mut counted).await {
                Err(Error::Checksum { .. } | Error::Damaged { .. }) if round < DOWNLOAD_ROUNDS => {
                    round += 1;
                }
                // The object was replaced meanwhile: download the new one.
                Err(Error::Changed { .. }) if round < DOWNLOAD_ROUNDS => {
                    round += 1;
                    tokio::time::sleep(self.wait_before(round)).await;
                }
                done => return done,
            }
        }
    }

    async fn download_once(
        &self,
        key: &str,
        file: &Path,
        transfer: &Transfer<'_>,
        counted: &mut u64,
    ) -> Result<Object> {
        let is_pinned = self.0.service.is_pinned();
        let listed = transfer.listed.filter(|_| is_pinned).cloned();
        let found = match listed {
            None => self.look(key).await?.map(|head| head.object),
            listed => listed,
        };
        let Some(mut object) = found else {
            return Err(Error::NotFound {
                object: self.object(key),
                op: "read",
            });
        };
        let mut hash = ContentHash::of(&object).filter(|_| is_pinned);
        let damaged = |expected, found| Error::Checksum {
            object: self.object(key),
            what: "the object",
            expected,
            found,
        };
        if let (Some(expected), Some(stored)) = (transfer.crc32c, object.crc32c)
            && expected != stored
        {
            return Err(damaged(expected, stored));
        }
        if let Some(dir) = file.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir).map_err(|error| Error::io(dir, "create", error))?;
        }
        let mut out = AtomicFile::create(file)?.with_early_writeback();
        let mut parts = self.parts(
            key,
            object.etag.clone(),
            object.len,
            transfer.part_bytes.max(64 << 10),
            transfer.parallel,
        )?;
        let mut crc32c = 0;
        let mut written = 0u64;
        while let Some((chunks, part_crc32c)) = parts.try_next().await? {
            let part_len: usize = chunks.iter().map(Bytes::len).sum();
            if let Some(limiter) = transfer.limiter {
                limiter.wait(part_len as u64).await;
            }
            if let Some(hash) = &mut hash {
                chunks.iter().for_each(|chunk| hash.update(chunk));
            }
            write_chunks(&mut out, &chunks).map_err(|error| Error::io(file, "write", error))?;
            crc32c = crc32c::crc32c_combine(crc32c, part_crc32c, part_len);
            written += part_len as u64;
            if written > *counted {
                (transfer.progress)(written - *counted);
                *counted = written;
            }
        }
        if let Some(expected) = transfer.crc32c.or(object.crc32c)
            && expected != crc32c
        {
            return Err(damaged(expected, crc32c));
        }
        if let Some(Err(why)) = hash.map(ContentHash::finish) {
            let object = self.object(key);
            return Err(Error::Damaged { object, why });
        }
        out.commit(Durability::Synced)?;
        object.crc32c = Some(crc32c);
        Ok(object)
    }

    pub(super) async fn delete(self, key: String) -> Result<()> {
        self.refuse_web("delete", &key)?;
        let name = self.name(&key)?;
        let operation = self.operation("delete", &key, 0);
        let deleted = self
            .run(&operation, |_| {
                let (store, name) = (self.store(), name.clone());
                async move { Ok(store.delete(&name).await?) }
            })
            .await;
        match deleted {
            Err(failed) if !matches!(failed.verdict.what, Outcome::NotFound) => {
                Err(failed.into_error(&operation))
            }
            _ => Ok(()),
        }
    }

    /// Whether uploads use plain HTTP, so that only a comparison of checksums detects damaged bytes.
    pub(super) fn is_unprotected(&self) -> bool {
        self.0.settings.plain_http && !self.0.service.is_read_only()
    }
}

/// Writes the chunks of a part with vectored writes, because servers send chunks of a few kilobytes.
fn write_chunks(out: &mut impl Write, chunks: &[Bytes]) -> io::Result<()> {
    for chunks in chunks.chunks(MOST_SLICES) {
        let mut slices: Vec<IoSlice<'_>> = chunks.iter().map(|chunk| IoSlice::new(chunk)).collect();
        let mut left = &mut slices[..];
        // Skips leading empty slices: writing only these returns 0, which would be taken for a full file.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match out.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

pub(super) fn describe(key: String, meta: &ObjectMeta) -> Object {
    Object {
        etag: meta.e_tag.clone(),
        modified: Some(meta.last_modified.into()),
        ..Object::new(key, meta.size)
    }
}

/// The CRC-32C stored with the requested object: from our metadata, or computed by the store (`x-goog-hash`).
fn stored_crc32c(answer: &GetResult) -> Option<u32> {
    let ours = metadata(&answer.attributes, CRC32C_NAME)
        .filter(|hex| hex.len() == 8)
        .and_then(|hex| u32::from_str_radix(hex, 16).ok());
    ours.or_else(|| {
        EXCHANGE_LOG
            .try_with(|notes| notes.seen().crc32c)
            .ok()
            .flatten()
    })
}

fn check_sum(
    what: &'static str,
    expected: Option<u32>,
    found: u32,
) -> std::result::Result<(), Fault> {
    match expected {
        Some(expected) if expected != found => Err(Fault::Damaged(Damage {
            what,
            expected,
            found,
        })),
        _ => Ok(()),
    }
}
