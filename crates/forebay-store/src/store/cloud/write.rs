//! Small objects: one put, with or without a condition.

use super::endings::Endings;
use super::wire::{NOTES, Notes};
use super::{Fault, Live, Service, Try, attributes, new_token};
use crate::store::{Put, Written};
use crate::{Error, Result};
use bytes::Bytes;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a put writes, for all of its tries.
#[derive(Debug)]
struct Parcel {
    key: String,
    name: Name,
    bytes: Bytes,
    crc32c: u32,
    token: String,
    put: Put,
    /// Whether the object that is to be replaced is one that this process wrote lately.
    replaces_own: bool,
    /// Set once the object there is known to be ours, with other bytes than it should have.
    ours_is_damaged: AtomicBool,
}

impl Live {
    pub(super) async fn put(
        self,
        key: String,
        bytes: Bytes,
        put: Put,
        endings: &Endings,
    ) -> Result<Written> {
        self.refuse_web("write", &key)?;
        if put != Put::Always {
            self.prove_conditions(&key, &put, endings).await?;
        }
        self.put_here(key, bytes, put).await
    }

    async fn put_here(&self, key: String, bytes: Bytes, put: Put) -> Result<Written> {
        // Before the first try: to wait for one's share of bandwidth is not to stand still.
        self.share(bytes.len() as u64).await;
        let operation = self.operation("write", &key, bytes.len() as u64);
        let name = self.name(&key)?;
        let recent = self.0.pace.recent();
        let parcel = Arc::new(Parcel {
            replaces_own: matches!(&put, Put::IfMatch(etag) if recent.is_own(&name, etag)),
            name,
            crc32c: crc32c::crc32c(&bytes),
            token: new_token(),
            ours_is_damaged: AtomicBool::new(false),
            key,
            bytes,
            put,
        });
        recent.changes(&parcel.name);
        let written = self
            .run(&operation, |number| {
                self.clone().put_once(Arc::clone(&parcel), number)
            })
            .await
            .map_err(|failed| failed.into_error(&operation))?;
        recent.wrote(&parcel.name, written.etag.as_deref());
        Ok(written)
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
            // A try before this one may have been done, and its answer lost. (Two puts at the same moment are no answer.)
            Err(error) if refused && number.0 > 1 && !collided() => {
                let head = self
                    .clone()
                    .look_once(parcel.key.clone(), parcel.name.clone())
                    .await;
                let head = match head {
                    // Refused because of what is there, and nothing is there: one of the answers is old.
                    Err(Fault::Store(object_store::Error::NotFound { .. })) => {
                        return Err(Fault::Old);
                    }
                    other => other?,
                };
                let is_as_before = matches!(&parcel.put, Put::IfMatch(etag) if head.object.etag.as_ref() == Some(etag));
                match head.token.as_deref() {
                    Some(token) if token == parcel.token => head.object.etag,
                    // Refused because it is another one, and it is the same one.
                    _ if is_as_before => return Err(Fault::Old),
                    _ => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        };
        let seen = NOTES.with(|notes| notes.seen());
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

    /// The condition that the object there has this etag, as the store takes it.
    async fn update(
        &self,
        parcel: &Parcel,
        etag: &str,
        number: Try,
    ) -> std::result::Result<PutMode, Fault> {
        let e_tag = Some(etag.to_owned());
        if !matches!(self.0.service, Service::Google(_)) {
            return Ok(PutMode::Update(UpdateVersion {
                e_tag,
                version: None,
            }));
        }
        // Google's conditions name a generation: that of the object that has this etag, which no other will ever have.
        let head = self
            .clone()
            .look_once(parcel.key.clone(), parcel.name.clone())
            .await;
        match head {
            Ok(head) if head.object.etag == e_tag => Ok(PutMode::Update(UpdateVersion {
                e_tag,
                version: head.version,
            })),
            // Already done by an earlier try: let the put itself be refused, which looks whose the object is.
            Ok(head) if number.0 > 1 && head.token.as_deref() == Some(&parcel.token) => {
                Ok(PutMode::Create)
            }
            // It was there when we wrote it: this may be from before.
            Ok(_) | Err(Fault::Store(object_store::Error::NotFound { .. }))
                if parcel.replaces_own && number.0 < super::fresh::TRIES =>
            {
                Err(Fault::Old)
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

    /// Makes sure, once for each bucket and process, that the store heeds conditions: some accept them and overwrite.
    /// Providers whose own stores these are do; behind `s3://` may be anything.
    async fn prove_conditions(&self, key: &str, put: &Put, endings: &Endings) -> Result<()> {
        let settings = &self.0.settings;
        if settings.assume_conditional_put || !matches!(self.0.service, Service::S3(_)) {
            return Ok(());
        }
        let proven = match put {
            Put::IfMatch(_) => &self.0.pace.heeds_if_match,
            _ => &self.0.pace.heeds_if_absent,
        };
        if proven.load(Ordering::Relaxed) {
            return Ok(());
        }
        // With the call that wants to know it an object would stay that nobody needs.
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
        let probe = format!("{}.forebay-probe-{}", directory(key), new_token());
        let bytes = Bytes::from_static(b"forebay asks whether conditions are heeded\n");
        self.put_here(probe.clone(), bytes.clone(), Put::Always)
            .await?;
        let condition = match put {
            Put::IfMatch(_) => Put::IfMatch("\"00000000000000000000000000000000\"".to_owned()),
            _ => Put::IfAbsent,
        };
        let answer = self.put_here(probe.clone(), bytes, condition).await;
        // Whoever may write but not delete is left with a file of a few bytes.
        let _ = self.clone().delete(probe).await;
        match answer {
            Err(Error::AlreadyThere { .. } | Error::Changed { .. }) => Ok(()),
            Ok(_) => Err(Error::NotConditional {
                object: self.object(key),
            }),
            Err(error) => Err(error),
        }
    }

    /// Finds out, once for each bucket and process, whether the store compares the bytes that it receives with the hash in the
    /// request's signature. Where it does, no other checksum is needed to know that it has what was sent. A small object whose
    /// bytes are changed on their way is refused then, and nothing is left of it.
    pub(super) async fn learn_payloads(&self, key: &str, endings: &Endings) {
        let open = &self.0;
        if !matches!(open.service, Service::S3(_)) || open.pace.knows_payloads() {
            return;
        }
        // Whoever is not told asks again with the next upload.
        let asking = self.clone().ask_of_payloads(key.to_owned());
        let _ = endings.through(asking).await;
    }

    async fn ask_of_payloads(self, key: String) {
        let (open, key) = (&self.0, key.as_str());
        let probe = format!("{}.forebay-probe-{}", directory(key), new_token());
        let Ok(name) = self.name(&probe) else { return };
        let notes = Arc::new(Notes::spoiling());
        let bytes = Bytes::from_static(b"forebay asks whether payloads are compared\n");
        let store = self.store();
        let asked = store.put(&name, bytes.into());
        let asked = NOTES.scope(Arc::clone(&notes), asked);
        // Whoever does not answer is asked again with the next upload.
        match tokio::time::timeout(LEARNING_TIME, asked).await {
            Ok(Ok(_)) => open.pace.learned_payloads(false),
            Ok(Err(_)) => {
                let code = notes.seen().code;
                if code.is_some_and(|code| REFUSALS_OF_PAYLOADS.contains(&code.as_str())) {
                    open.pace.learned_payloads(true);
                    return;
                }
            }
            Err(_) => {}
        }
        // It may be there though the answer was lost. Whoever may write but not delete is left with a file of a few bytes.
        let _ = self.clone().delete(probe).await;
    }

    pub(super) fn reads_back(&self) -> bool {
        self.0.settings.check_uploads == super::CheckUploads::Read
    }
}

/// What stores say of bytes that are not those of the hash.
const REFUSALS_OF_PAYLOADS: [&str; 2] = ["XAmzContentSHA256Mismatch", "BadDigest"];
/// A store that takes longer to answer is not asked.
const LEARNING_TIME: Duration = Duration::from_secs(5);

/// Whether the store refused only because somebody else writes there right now.
fn collided() -> bool {
    NOTES.with(|notes| notes.seen().code.as_deref() == Some("ConditionalRequestConflict"))
}

/// The part of a key before its name, with the slash.
fn directory(key: &str) -> &str {
    key.rfind('/')
        .and_then(|at| key.get(..=at))
        .unwrap_or_default()
}
