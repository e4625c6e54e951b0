//! Multipart uploads that have begun: every upload with a known id is completed or aborted.
//!
//! If a call is cancelled before it has the upload id, a tracked task waits for the id and aborts the upload. An upload whose
//! begin response is lost has no parts, so it costs nothing until the bucket's lifecycle rule removes it.

use crate::Result;
use crate::store::cloud::exchange_log::EXCHANGE_LOG;
use crate::store::cloud::task_tracker::TaskTracker;
use crate::store::cloud::{Fault, Live, attributes};
use object_store::PutMultipartOptions;
use object_store::path::Path as Name;
use std::future::Future;
use std::sync::Arc;

/// An open multipart upload, which is aborted if the guard is dropped before [`complete`](Self::complete).
pub(super) struct MultipartGuard {
    live: Live,
    pub(super) name: Name,
    pub(super) key: String,
    pub(super) id: String,
    endings: TaskTracker,
    /// Counts the parts in flight.
    pub(super) parts: TaskTracker,
    pending: bool,
}

impl Live {
    pub(super) async fn begin_upload(
        &self,
        key: &str,
        name: &Name,
        crc32c: u32,
        token: &str,
        endings: &TaskTracker,
    ) -> Result<MultipartGuard> {
        let operation = self.operation("write", key, 0);
        let begun = self
            .run(&operation, |_| {
                let options = PutMultipartOptions {
                    attributes: attributes(crc32c, token),
                    ..PutMultipartOptions::default()
                };
                let (key, name) = (key.to_owned(), name.clone());
                self.clone().begin_once(key, name, options, endings.clone())
            })
            .await;
        begun.map_err(|failed| failed.into_error(&operation))
    }

    /// One try. It runs until its response arrives, even if this future is dropped, and then aborts the upload.
    async fn begin_once(
        self,
        key: String,
        name: Name,
        options: PutMultipartOptions,
        endings: TaskTracker,
    ) -> std::result::Result<MultipartGuard, Fault> {
        let notes = EXCHANGE_LOG.with(Arc::clone);
        let own = endings.clone();
        // If the caller has stopped waiting, the result is dropped, which aborts the upload.
        let asking = async move {
            let id = EXCHANGE_LOG
                .scope(notes, self.ask_for_upload(&name, options))
                .await?;
            Ok::<_, Fault>(MultipartGuard {
                live: self,
                name,
                key,
                id,
                endings: own,
                parts: TaskTracker::new(),
                pending: true,
            })
        };
        let broke_off = || Err(Fault::BadBytes("the request broke off".to_owned()));
        endings.through(asking).await?.unwrap_or_else(broke_off)
    }

    async fn ask_for_upload(
        &self,
        name: &Name,
        options: PutMultipartOptions,
    ) -> std::result::Result<String, Fault> {
        if !self.0.service.has_uploads() {
            // The metadata is sent with the completion.
            return Ok(String::new());
        }
        // A caller that still waits has given up before that time.
        let patience = self.0.timeout * 2;
        let asking = self.multipart()?.create_multipart_opts(name, options);
        match tokio::time::timeout(patience, asking).await {
            Ok(id) => Ok(id?),
            Err(_) => Err(Fault::TimedOut(patience)),
        }
    }
}

impl MultipartGuard {
    /// Marks the upload as completed, so that it is not aborted.
    pub(super) fn complete(mut self) {
        self.pending = false;
    }

    /// Aborts the upload, so that none of its parts stay in the store.
    pub(super) async fn end(mut self) {
        self.pending = false;
        let ending = self.endings.through(self.ending());
        let _ = ending.await;
    }

    fn ending(&self) -> impl Future<Output = ()> + Send + use<> {
        let (live, name) = (self.live.clone(), self.name.clone());
        let (key, id, parts) = (self.key.clone(), self.id.clone(), self.parts.clone());
        async move {
            // Wait for the parts in flight: a part that arrives after the abort could recreate the upload.
            parts.all().await;
            end_upload(live, name, key, id).await;
        }
    }
}

impl Drop for MultipartGuard {
    fn drop(&mut self) {
        if std::mem::replace(&mut self.pending, false) {
            // `spawn` fails only without a runtime, and then no upload has begun.
            let _ = self.endings.spawn(self.ending());
        }
    }
}

async fn end_upload(live: Live, name: Name, key: String, id: String) {
    // The caller already has the error that led here. If the abort fails, the bucket's lifecycle rule removes the upload.
    let _ = live.end_one(&key, name, id).await;
}
