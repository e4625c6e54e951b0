//! Small objects: one put, with or without a condition.

use super::exchange_log::EXCHANGE_LOG;
use super::task_tracker::TaskTracker;
use super::{Fault, Live, Try, attributes, new_token};
use crate::store::{Put, Written};
use crate::{Error, Result};
use bytes::Bytes;
use object_store::path::Path as Name;
use object_store::{ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The data of a put, shared by all of its tries.
#[derive(Debug)]
struct Parcel {
    key: String,
    name: Name,
    bytes: Bytes,
    crc32c: u32,
    token: String,
    put: Put,
    /// Set once the stored object is known to be written by this put with damaged bytes; the next try overwrites it.
    ours_is_damaged: AtomicBool,
}

impl Live {
    pub(super) async fn put(
        self,
        key: String,
        bytes: Bytes,
        put: Put,
        endings: &TaskTracker,
    ) -> Result<Written> {
        self.refuse_web("write", &key)?;
        if put != Put::Always {
            self.prove_conditions(&key, &put, endings).await?;
        }
        self.put_here(key, bytes, put).await
    }

    async fn put_here(&self, key: String, bytes: Bytes, put: Put) -> Result<Written> {
        // Before `run`, so that the wait for bandwidth does not count towards the timeout of a request.
        self.share(bytes.len() as u64).await;
        let operation = self.operation("write", &key, bytes.len() as u64);
        let name = self.name(&key)?;
        let parcel = Arc::new(Parcel {
            name,
            crc32c: crc32c::crc32c(&bytes),
            token: new_token(),
            ours_is_damaged: AtomicBool::new(false),
            key,
            bytes,
            put,
        });
        self.run(&operation, |number| {
            self.clone().put_once(Arc::clone(&parcel), number)
        })
        .await
        .map_err(|failed| failed.into_error(&operation))
    }

    async fn put_once(
        self,
        parcel: Arc<Parcel>,
        number: Try,
    ) -> std::result::Result<Written, Fault> {
        let mode = match &parcel.put {
            _ if parcel.ours_is_damaged.load(Ordering::Relaxed) => PutMode::Overwrite,
            Put::Always => PutMode::Overwrite,
            Put::IfAbsent => PutMode::Create,
            Put::IfMatch(etag) => self.update(&parcel, etag, number).await?,
        };
        let options = PutOptions {
            mode,
            attributes: attributes(parcel.crc32c, &parcel.token),
            ..PutOptions::default()
        };
        let outcome = self
            .store()
            .put_opts(&parcel.name, parcel.bytes.clone().into(), options)
            .await;
        let refused = matches!(
            &outcome,
            Err(object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. })
        );
        let etag = match outcome {
            Ok(done) => done.e_tag,
            // An earlier try may have succeeded although its response was lost: compare the token of the object. This does not
            // apply to a conflict of two concurrent puts, which says nothing about the object.
            Err(error) if refused && number.0 > 1 && !collided() => {
                let head = self
                    .clone()
                    .look_once(parcel.key.clone(), parcel.name.clone())
                    .await;
                match head {
                    Ok(head) if head.token.as_deref() == Some(&parcel.token) => head.object.etag,
                    Ok(_) | Err(Fault::Store(object_store::Error::NotFound { .. })) => {
                        return Err(error.into());
                    }
                    Err(fault) => return Err(fault),
                }
            }
            Err(error) => return Err(error.into()),
        };
        let seen = EXCHANGE_LOG.with(|notes| notes.seen());
        let mut good = seen.refuted == 0;
        if good && (self.reads_back() || (seen.proved == 0 && self.is_unprotected())) {
            let stored = self.store().get(&parcel.name).await?.bytes().await?;
            good = stored == parcel.bytes;
        }
        if !good {
            parcel.ours_is_damaged.store(true, Ordering::Relaxed);
            return Err(Fault::BadBytes(
                "the store received other bytes than were sent".to_owned(),
            ));
        }
        Ok(Written {
            etag,
            crc32c: parcel.crc32c,
        })
    }

    /// The condition that the existing object has this etag, in the form that the service needs.
    async fn update(
        &self,
        parcel: &Parcel,
        etag: &str,
        number: Try,
    ) -> std::result::Result<PutMode, Fault> {
        let e_tag = Some(etag.to_owned());
        if !self.0.service.names_generations() {
            return Ok(PutMode::Update(UpdateVersion {
                e_tag,
                version: None,
            }));
        }
        // Google's conditions use the generation, which identifies one version of an object. Look up the generation of the
        // object that has this etag.
        let head = self
            .clone()
            .look_once(parcel.key.clone(), parcel.name.clone())
            .await;
        match head {
            Ok(head) if head.object.etag == e_tag => Ok(PutMode::Update(UpdateVersion {
                e_tag,
                version: head.version,
            })),
            // An earlier try has written the object. `Create` makes the store refuse the put; `put_once` then finds its token.
            Ok(head) if number.0 > 1 && head.token.as_deref() == Some(&parcel.token) => {
                Ok(PutMode::Create)
            }
            Ok(_) | Err(Fault::Store(object_store::Error::NotFound { .. })) => {
                Err(Fault::Store(object_store::Error::Precondition {
                    path: parcel.key.clone(),
                    source: "another object is there".into(),
                }))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Verifies, once per bucket and process, that the store honors conditions: some S3-compatible servers accept a condition
    /// and overwrite the object all the same. The stores of Google and Azure are known to honor conditions.
    async fn prove_conditions(&self, key: &str, put: &Put, endings: &TaskTracker) -> Result<()> {
        let settings = &self.0.settings;
        if settings.assume_conditional_put || !self.0.service.may_ignore_conditions() {
            return Ok(());
        }
        let proven = match put {
            Put::IfMatch(_) => &self.0.pace.heeds_if_match,
            _ => &self.0.pace.heeds_if_absent,
        };
        if proven.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Runs as a tracked task: if the call were cancelled in between, the probe object would stay in the bucket.
        let asking = self.clone().ask_of_conditions(key.to_owned(), put.clone());
        let answer = endings.through(asking).await?;
        answer.unwrap_or_else(|| {
            let error = std::io::Error::other("the request broke off");
            Err(Error::io(self.object(key), "write", error))
        })?;
        proven.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn ask_of_conditions(self, key: String, put: Put) -> Result<()> {
        let key = key.as_str();
        let probe = format!("{PROBE}{}", new_token());
        let bytes = Bytes::from_static(b"forebay asks whether conditions are heeded\n");
        self.put_here(probe.clone(), bytes.clone(), Put::Always)
            .await?;
        self.clear_probes(&probe).await;
        let condition = match put {
            Put::IfMatch(_) => Put::IfMatch("\"00000000000000000000000000000000\"".to_owned()),
            _ => Put::IfAbsent,
        };
        let answer = self.put_here(probe.clone(), bytes, condition).await;
        // Without the permission to delete, an object of a few bytes stays.
        let _ = self.clone().delete(probe).await;
        match answer {
            Err(Error::AlreadyThere { .. } | Error::Changed { .. }) => Ok(()),
            Ok(_) => Err(Error::NotConditional {
                object: self.object(key),
            }),
            Err(error) => Err(error),
        }
    }

    /// Removes probes that killed processes left. Their age is measured by the store's clock, as the difference to `own`, which
    /// was written a moment ago. Probes that cannot be removed now are left to the next run.
    async fn clear_probes(&self, own: &str) {
        let (Ok(below), Ok(first), Ok(last)) = (
            self.name(""),
            self.name(PROBE.trim_end_matches('-')),
            self.name(&format!("{PROBE}~")),
        ) else {
            return;
        };
        let Ok(found) = self
            .list_between("", &below, (Some(first), Some(last)))
            .await
        else {
            return;
        };
        let own = self.name(own).ok();
        let now = found
            .iter()
            .find(|meta| Some(&meta.location) == own.as_ref())
            .map(|meta| meta.last_modified);
        let Some(now) = now else { return };
        for meta in found {
            let age = (now - meta.last_modified).to_std().unwrap_or_default();
            if age < PROBE_LIFETIME {
                continue;
            }
            if let Some(key) = self
                .key(&meta.location)
                .filter(|key| key.starts_with(PROBE))
            {
                let _ = self.clone().delete(key).await;
            }
        }
    }

    pub(super) fn reads_back(&self) -> bool {
        self.0.settings.check_uploads == super::CheckUploads::Read
    }
}

/// The prefix of the names of probe objects, which are written to test the store's behavior and then deleted.
const PROBE: &str = ".forebay-probe-";
/// A probe older than this is not in use: each request of a probe gives up after minutes.
const PROBE_LIFETIME: Duration = Duration::from_secs(3600);

/// Whether the store refused the put only because of a concurrent put to the same key.
fn collided() -> bool {
    EXCHANGE_LOG.with(|notes| notes.seen().code.as_deref() == Some("ConditionalRequestConflict"))
}
