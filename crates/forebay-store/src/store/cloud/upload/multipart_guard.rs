//! Uploads in parts that are begun: none of them is left open, however it goes on.
//!
//! A store may have begun one though no caller has its id: the answer was lost, or the caller that asked was stopped before it came. An answer
//! that may still come is waited for; what is lost is looked for by its name.

use crate::Result;
use crate::store::cloud::exchange_log::EXCHANGE_LOG;
use crate::store::cloud::task_tracker::TaskTracker;
use crate::store::cloud::{Fault, Live, attributes};
use object_store::PutMultipartOptions;
use object_store::path::Path as Name;
use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

/// An upload that was begun: ended when it is dropped before it is complete.
pub(super) struct MultipartGuard {
    live: Live,
    pub(super) name: Name,
    pub(super) key: String,
    pub(super) id: String,
    endings: TaskTracker,
    /// Parts that are on their way: each is entered here.
    pub(super) parts: TaskTracker,
    strays: Option<OrphanedUploads>,
    pending: bool,
}

/// Uploads whose ids were lost with the answers of tries to begin one: found and ended when this is dropped.
struct OrphanedUploads {
    live: Live,
    key: String,
    began: Instant,
    endings: TaskTracker,
    may_be: bool,
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
        let mut strays = OrphanedUploads {
            live: self.clone(),
            key: key.to_owned(),
            began: Instant::now(),
            endings: endings.clone(),
            may_be: false,
        };
        let begun = self
            .run(&operation, |number| {
                strays.may_be |= number.0 > 1;
                let options = PutMultipartOptions {
                    attributes: attributes(crc32c, token),
                    ..PutMultipartOptions::default()
                };
                let (key, name) = (key.to_owned(), name.clone());
                self.clone().begin_once(key, name, options, endings.clone())
            })
            .await;
        match begun {
            Ok(mut begun) => {
                begun.strays = Some(strays);
                Ok(begun)
            }
            Err(failed) => Err(failed.into_error(&operation)),
        }
    }

    /// One try. It goes on to its answer though it is dropped, and ends what it began.
    async fn begin_once(
        self,
        key: String,
        name: Name,
        options: PutMultipartOptions,
        endings: TaskTracker,
    ) -> std::result::Result<MultipartGuard, Fault> {
        let mut strays = OrphanedUploads {
            live: self.clone(),
            key: key.clone(),
            began: Instant::now(),
            endings: endings.clone(),
            may_be: true,
        };
        let notes = EXCHANGE_LOG.with(Arc::clone);
        let own = endings.clone();
        // If the caller is gone, the result is dropped, which ends the upload.
        let asking = async move {
            match EXCHANGE_LOG
                .scope(notes, self.ask_for_upload(&name, options))
                .await
            {
                Ok(id) => {
                    strays.none();
                    Ok(MultipartGuard {
                        live: self,
                        name,
                        key,
                        id,
                        endings: own,
                        parts: TaskTracker::new(),
                        strays: None,
                        pending: true,
                    })
                }
                Err(fault) => Err((fault, strays)),
            }
        };
        match endings.through(asking).await? {
            Some(Ok(begun)) => Ok(begun),
            Some(Err((fault, mut strays))) => {
                // A caller that tries again looks for them.
                strays.none();
                Err(fault)
            }
            None => Err(Fault::BadBytes("the request broke off".to_owned())),
        }
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
        // A caller that waits gives up before. What is answered later than that is left to be found by its name.
        let patience = self.0.timeout * 2;
        let asking = self.multipart()?.create_multipart_opts(name, options);
        match tokio::time::timeout(patience, asking).await {
            Ok(id) => Ok(id?),
            Err(_) => Err(Fault::TimedOut(patience)),
        }
    }
}

impl MultipartGuard {
    /// It is complete: nothing is ended but what lost tries left.
    pub(super) async fn complete(mut self) {
        self.pending = false;
        self.end_strays().await;
    }

    /// Ends the upload, so that nothing of it is left in the store.
    pub(super) async fn end(mut self) {
        self.pending = false;
        let ending = self.endings.through(self.ending());
        let _ = ending.await;
        self.end_strays().await;
    }

    async fn end_strays(&mut self) {
        if let Some(strays) = &mut self.strays
            && strays.may_be
        {
            self.live
                .end_strays(&strays.key, strays.began.elapsed())
                .await;
            strays.none();
        }
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

impl OrphanedUploads {
    /// There are none, or another process looks for them.
    fn none(&mut self) {
        self.may_be = false;
    }
}

impl Drop for OrphanedUploads {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.may_be, false) {
            return;
        }
        let (live, key, since) = (self.live.clone(), self.key.clone(), self.began.elapsed());
        let _ = self.endings.spawn(async move {
            live.end_strays(&key, since).await;
        });
    }
}

async fn end_upload(live: Live, name: Name, key: String, id: String) {
    // What failed is on its way to the caller already; what is left here goes by the bucket's lifecycle rule.
    let _ = live.end_one(&key, name, id).await;
}
