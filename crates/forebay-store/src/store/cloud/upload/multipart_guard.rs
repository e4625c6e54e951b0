//! Uploads in parts that are begun: none of them is left open, however it goes on.
//!
//! A caller may be stopped before the id of its upload comes: the answer is waited for. One whose answer is lost has no parts, so it
//! costs nothing until the bucket's lifecycle rule removes it.

use crate::Result;
use crate::store::cloud::exchange_log::EXCHANGE_LOG;
use crate::store::cloud::task_tracker::TaskTracker;
use crate::store::cloud::{Fault, Live, attributes};
use object_store::PutMultipartOptions;
use object_store::path::Path as Name;
use std::future::Future;
use std::sync::Arc;

/// An upload that was begun: ended when it is dropped before it is complete.
pub(super) struct MultipartGuard {
    live: Live,
    pub(super) name: Name,
    pub(super) key: String,
    pub(super) id: String,
    endings: TaskTracker,
    /// Parts that are on their way: each is entered here.
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

    /// One try. It goes on to its answer though it is dropped, and ends what it began.
    async fn begin_once(
        self,
        key: String,
        name: Name,
        options: PutMultipartOptions,
        endings: TaskTracker,
    ) -> std::result::Result<MultipartGuard, Fault> {
        let notes = EXCHANGE_LOG.with(Arc::clone);
        let own = endings.clone();
        // If the caller is gone, the result is dropped, which ends the upload.
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
            // Metadata comes with the completion.
            return Ok(String::new());
        }
        // A caller that waits gives up before.
        let patience = self.0.timeout * 2;
        let asking = self.multipart()?.create_multipart_opts(name, options);
        match tokio::time::timeout(patience, asking).await {
            Ok(id) => Ok(id?),
            Err(_) => Err(Fault::TimedOut(patience)),
        }
    }
}

impl MultipartGuard {
    /// It is complete: there is nothing to end.
    pub(super) fn complete(mut self) {
        self.pending = false;
    }

    /// Ends the upload, so that nothing of it is left in the store.
    pub(super) async fn end(mut self) {
        self.pending = false;
        let ending = self.endings.through(self.ending());
        let _ = ending.await;
    }

    fn ending(&self) -> impl Future<Output = ()> + Send + use<> {
        let (live, name) = (self.live.clone(), self.name.clone());
        let (key, id, parts) = (self.key.clone(), self.id.clone(), self.parts.clone());
        async move {
            // A part that arrives later would bring it back to life.
            parts.all().await;
            end_upload(live, name, key, id).await;
        }
    }
}

impl Drop for MultipartGuard {
    fn drop(&mut self) {
        if std::mem::replace(&mut self.pending, false) {
            // Without a runtime nothing was begun.
            let _ = self.endings.spawn(self.ending());
        }
    }
}

async fn end_upload(live: Live, name: Name, key: String, id: String) {
    // What failed is on its way to the caller already; what is left here goes by the bucket's lifecycle rule.
    let _ = live.end_one(&key, name, id).await;
}
