//! What a listing told of, and answers that are no older than it.
//!
//! A cache in front of a store, and one replica behind it, may tell for a while what was there before. To tell old answers from true ones
//! a process that wrote nothing itself needs one true answer: a listing that is asked for in words that no request had before, so
//! that nobody has kept an answer to it. It tells the etags of all objects, and what has another one is older.

use super::fresh::{TRIES, Told, plain};
use super::read::Head;
use super::{Fault, Live, Service, Try, What, new_token};
use crate::Result;
use crate::store::Object;
use object_store::ObjectMeta;
use object_store::path::Path as Name;

/// Buckets whose names end so list in no order.
const UNORDERED: &str = "--x-s3";

impl Live {
    /// All that is `below`, in a request that was never made before: for what follows a name that nobody has.
    pub(super) async fn list_anew(&self, prefix: &str, below: &Name) -> Result<Vec<ObjectMeta>> {
        let bucket = self.0.location.authority().unwrap_or_default();
        let slash = if below.as_ref().is_empty() { "" } else { "/" };
        // Below the prefix: some servers list nothing behind a name that is not.
        let first = Name::parse(format!("{below}{slash}!{}", new_token()));
        let (Ok(first), false) = (first, bucket.ends_with(UNORDERED)) else {
            return self.list_between(prefix, below, (None, None)).await;
        };
        let after = (Some(first.clone()), None);
        let mut found = self.list_between(prefix, below, after).await?;
        // What comes before it: hardly anything has such a name.
        let before = self.list_between(prefix, below, (None, Some(first)));
        found.extend(before.await?);
        Ok(found)
    }

    pub(super) async fn head_listed(self, listed: Object) -> Result<Option<Object>> {
        let head = match &listed.etag {
            Some(etag) => self.look_listed(&listed.key, etag).await?,
            None => self.look(&listed.key).await?,
        };
        Ok(head.map(|head| head.object))
    }

    /// As `look`, of an object that a listing told of with this etag.
    pub(super) async fn look_listed(&self, key: &str, etag: &str) -> Result<Option<Head>> {
        if let Service::Web(_) = self.0.service {
            return self.look(key).await;
        }
        let operation = self.operation("look at", key, 0);
        let name = self.name(key)?;
        let head = self
            .run(&operation, |number| {
                let (live, key, name) = (self.clone(), key.to_owned(), name.clone());
                let etag = etag.to_owned();
                async move {
                    let only = condition(etag.clone());
                    let head = live.look_once_if(key, name, only).await;
                    let told = Told::by(&head, |head| head.object.etag.as_deref());
                    refuse_older(told, &etag, number)?;
                    head
                }
            })
            .await;
        match head {
            Ok(head) => Ok(Some(head)),
            Err(failed) if is_another(&failed.verdict.what) => self.look(key).await,
            Err(failed) => Err(failed.into_error(&operation)),
        }
    }

    pub(super) async fn get_listed(self, listed: Object, limit: u64) -> Result<Vec<u8>> {
        let (Some(etag), false) = (listed.etag, matches!(self.0.service, Service::Web(_))) else {
            return self.get(listed.key, limit).await;
        };
        let name = self.name(&listed.key)?;
        let operation = self.operation("read", &listed.key, limit.min(64 << 20));
        let got = self
            .run(&operation, |number| {
                let object = operation.object.clone();
                let etag = Some(etag.clone());
                self.clone()
                    .get_once(object, name.clone(), limit, etag, number)
            })
            .await;
        match got {
            Ok(bytes) => {
                self.share(bytes.len() as u64).await;
                Ok(bytes)
            }
            Err(failed) if is_another(&failed.verdict.what) => self.get(listed.key, limit).await,
            Err(failed) => Err(failed.into_error(&operation)),
        }
    }
}

/// Whether the store itself says that it is another object by now, or none. Some say so because their listings name objects otherwise
/// than their answers do.
fn is_another(what: &What) -> bool {
    matches!(what, What::NotFound | What::Condition)
}

/// A fault where an answer is not of the object that a listing told of. A condition that was refused is an answer of the store itself.
pub(super) fn refuse_older(
    told: Told<'_>,
    etag: &str,
    number: Try,
) -> std::result::Result<(), Fault> {
    match told {
        Told::Object(Some(found)) if plain(found) != plain(etag) => Err(Fault::Old),
        // After some tries it counts: somebody may have removed it.
        Told::Nothing if number.0 < TRIES => Err(Fault::Old),
        _ => Ok(()),
    }
}

/// An etag as a condition: a weak one never matches, and is only compared.
pub(super) fn condition(etag: String) -> Option<String> {
    Some(etag).filter(|etag| !etag.starts_with("W/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_what_was_listed_is_older() {
        let refused = |told, number| refuse_older(told, "1", Try(number)).is_err();
        assert!(refused(Told::Object(Some("\"0\"")), 7));
        assert!(!refused(Told::Object(Some("\"1\"")), 1));
        assert!(!refused(Told::Object(None), 1));
        assert!(!refused(Told::Unknown, 1));
        assert!(refused(Told::Nothing, 1));
        assert!(!refused(Told::Nothing, TRIES));
    }
}
