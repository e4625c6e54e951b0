//! Listing.

use super::exchange_log::EXCHANGE_LOG;
use super::fault::ENDLESS_LISTING;
use super::read::describe;
use super::{Fault, Live, SLOWEST};
use crate::Result;
use crate::store::{Listing, Object};
use futures_util::{Stream, TryStreamExt};
use object_store::path::Path as Name;
use object_store::{ListResult, ObjectMeta};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// The allowance of a listing, in bytes: a day. A timeout applies to each page, of which large buckets have thousands.
const LISTING: u64 = SLOWEST * 86_400;

/// Maximum number of names in a row that a listing has had before: as many as a page may have.
const MOST_REPEATED: u32 = 5000;

impl Live {
    /// Returns all objects below `prefix`, sorted by key.
    pub(super) async fn list(self, prefix: String) -> Result<Vec<Object>> {
        self.refuse_web("list", &prefix)?;
        let below = self.name(&prefix)?;
        let found = self.list_between(&prefix, &below, (None, None)).await?;
        let mut objects: Vec<Object> = found.iter().filter_map(|meta| self.listed(meta)).collect();
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    /// Lists the objects below `below` whose names are greater than `after` and at most `until`.
    pub(super) async fn list_between(
        &self,
        prefix: &str,
        below: &Name,
        (after, until): (Option<Name>, Option<Name>),
    ) -> Result<Vec<ObjectMeta>> {
        let operation = self.operation("list", prefix, LISTING);
        let mut found: Vec<ObjectMeta> = Vec::new();
        let known = Arc::<Mutex<KnownNames>>::default();
        // When a page fails, the pages before it are kept, and the next round continues after the last name. Each round
        // that makes progress starts a new count of retries.
        loop {
            let before = found.len();
            let last = found.last().map(|meta| meta.location.clone());
            let last = last.or_else(|| after.clone());
            let page = self
                .run(&operation, |_| {
                    let (live, below, last) = (self.clone(), below.clone(), last.clone());
                    let (until, known) = (until.clone(), Arc::clone(&known));
                    async move { live.list_some(below, last, until, &known).await }
                })
                .await
                .map_err(|failed| failed.into_error(&operation))?;
            let (more, complete) = page;
            found.extend(more);
            if complete || found.len() == before {
                return Ok(found);
            }
        }
    }

    /// Lists the names after `last`, up to `until` or the end. Returns false with the names so far if a later page fails.
    async fn list_some(
        self,
        below: Name,
        last: Option<Name>,
        until: Option<Name>,
        known: &Mutex<KnownNames>,
    ) -> std::result::Result<(Vec<ObjectMeta>, bool), Fault> {
        let store = self.store();
        let mut listing = match &last {
            Some(last) => store.list_with_offset(Some(&below), last),
            None => store.list(Some(&below)),
        };
        let mut found = Vec::new();
        let in_order = self.0.service.lists_in_order();
        loop {
            let next = tokio::time::timeout(self.0.timeout, listing.try_next());
            let next = next.await.map_err(|_| Fault::TimedOut(self.0.timeout));
            match next.and_then(|next| Ok(next?)) {
                Ok(Some(meta)) if until.as_ref().is_some_and(|until| meta.location > *until) => {
                    return Ok((found, true));
                }
                Ok(Some(meta)) => {
                    // A retry of a listing that is in no order begins with its first name.
                    if in_order {
                        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
                        known.add(&meta.location)?;
                    }
                    found.push(meta);
                }
                Ok(None) => return Ok((found, true)),
                Err(fault) if found.is_empty() || !in_order || is_endless() => return Err(fault),
                Err(_) => return Ok((found, false)),
            }
        }
    }

    pub(super) async fn list_dir(self, prefix: String) -> Result<Listing> {
        self.refuse_web("list", &prefix)?;
        let below = self.name(&prefix)?;
        // The pages of listings without an order have a timeout of their own.
        let in_order = self.0.service.lists_in_order();
        let operation = self.operation("list", &prefix, if in_order { 0 } else { LISTING });
        let level = self
            .run(&operation, |_| {
                let (store, below) = (self.store(), below.clone());
                async move { Ok(store.list_with_delimiter(Some(&below)).await?) }
            })
            .await
            .map_err(|failed| failed.into_error(&operation))?;
        let mut listing = Listing {
            objects: level
                .objects
                .iter()
                .filter_map(|meta| self.listed(meta))
                .collect(),
            dirs: level
                .common_prefixes
                .iter()
                .filter_map(|name| self.key(name))
                .collect(),
            left_out: Vec::new(),
        };
        listing.objects.sort_by(|a, b| a.key.cmp(&b.key));
        listing.dirs.sort();
        Ok(listing)
    }

    fn listed(&self, meta: &ObjectMeta) -> Option<Object> {
        Some(describe(self.key(&meta.location)?, meta))
    }
}

/// The names that a listing has had, by their hashes.
#[derive(Debug, Default)]
struct KnownNames {
    hashes: HashSet<u64>,
    /// Names in a row that were known.
    repeated: u32,
}

impl KnownNames {
    /// Fails once so many names in a row are known that a page repeats.
    fn add(&mut self, name: &Name) -> std::result::Result<(), Fault> {
        let mut hasher = DefaultHasher::new();
        name.as_ref().hash(&mut hasher);
        let is_new = self.hashes.insert(hasher.finish());
        self.repeated = if is_new { 0 } else { self.repeated + 1 };
        match self.repeated > MOST_REPEATED {
            true => Err(Fault::EndlessListing),
            false => Ok(()),
        }
    }
}

pub(super) fn empty_level() -> ListResult {
    ListResult {
        common_prefixes: Vec::new(),
        objects: Vec::new(),
        extensions: http::Extensions::new(),
    }
}

/// The pages of a level as one.
pub(super) async fn one_level(
    pages: impl Stream<Item = object_store::Result<ListResult>>,
) -> object_store::Result<ListResult> {
    let mut pages = std::pin::pin!(pages);
    let mut all = empty_level();
    while let Some(page) = pages.try_next().await? {
        all.objects.extend(page.objects);
        all.common_prefixes.extend(page.common_prefixes);
    }
    Ok(all)
}

/// Whether the last page of the listing continued with one that was listed before.
fn is_endless() -> bool {
    let code = EXCHANGE_LOG.try_with(|notes| notes.lock().code.clone());
    code.is_ok_and(|code| code.as_deref() == Some(ENDLESS_LISTING))
}
