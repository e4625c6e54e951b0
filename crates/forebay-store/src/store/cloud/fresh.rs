//! What this process wrote lately, so that an older answer is known for one.
//!
//! Object stores that are consistent show what was written at once; caches in front of them, and replicas behind some, do not.
//! An object that was written here in the last minute and is another one, or is not there, is looked at a few times more.
//! Then the answer counts: somebody else may have written.

use super::{Fault, Live, Try};
use crate::store::{Listing, Object};
use object_store::path::Path as Name;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Caches that tell old answers do so for seconds.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Objects that are remembered. More at a time are forgotten, which only makes old answers count.
const MOST: usize = 4096;
/// Tries, the first included, before an answer counts: a second and a half in all.
pub(super) const TRIES: u32 = 6;
/// Doubts that proved wrong: a store that names an object otherwise when it is written than when it is read is not doubted.
const WRONG_DOUBTS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    written: HashMap<Name, Wrote>,
    wrong_doubts: u32,
}

#[derive(Debug)]
struct Wrote {
    at: Instant,
    /// None where it was deleted.
    etag: Option<String>,
}

/// What an answer tells of an object.
#[derive(Debug, Clone, Copy)]
pub(super) enum Told<'a> {
    /// There is none.
    Nothing,
    /// There is one, with this etag.
    Object(Option<&'a str>),
    /// Neither: it was no answer.
    Unknown,
}

impl<'a> Told<'a> {
    pub(super) fn by<T>(
        answer: &'a std::result::Result<T, Fault>,
        etag: impl FnOnce(&'a T) -> Option<&'a str>,
    ) -> Self {
        match answer {
            Ok(object) => Self::Object(etag(object)),
            Err(Fault::Store(object_store::Error::NotFound { .. })) => Self::Nothing,
            Err(_) => Self::Unknown,
        }
    }
}

impl Recent {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An object is about to be written or deleted: what will be there is open until that is done.
    pub(super) fn changes(&self, name: &Name) {
        self.lock().written.remove(name);
    }

    /// An object was written. Without an etag nothing can be compared.
    pub(super) fn wrote(&self, name: &Name, etag: Option<&str>) {
        match etag {
            Some(etag) => self.lock().note(name, Some(plain(etag).to_owned())),
            None => self.changes(name),
        }
    }

    /// Whether the object with this etag is one that was written here.
    pub(super) fn is_own(&self, name: &Name, etag: &str) -> bool {
        let state = self.lock();
        let own = state.written.get(name).and_then(|own| own.etag.as_deref());
        own == Some(plain(etag))
    }

    /// An object was deleted.
    pub(super) fn deleted(&self, name: &Name) {
        self.lock().note(name, None);
    }

    /// Whether this is another state than was written here.
    fn is_doubtful(&self, name: &Name, told: Told<'_>) -> bool {
        let mut state = self.lock();
        if state.wrong_doubts >= WRONG_DOUBTS {
            return false;
        }
        let Some(wrote) = state.written.get(name) else {
            return false;
        };
        if wrote.at.elapsed() > REMEMBERED {
            state.written.remove(name);
            return false;
        }
        match (&wrote.etag, told) {
            (Some(_), Told::Nothing) | (None, Told::Object(_)) => true,
            (Some(own), Told::Object(Some(etag))) => own != plain(etag),
            _ => false,
        }
    }

    /// It stays another state: that of somebody else.
    fn was_wrong(&self, name: &Name) {
        let mut state = self.lock();
        if state.written.remove(name).is_some() {
            state.wrong_doubts += 1;
        }
    }

    /// What was written lately below `prefix`, and whether it has to be there.
    fn below(&self, prefix: &Name) -> Vec<(Name, bool)> {
        let state = self.lock();
        if state.wrong_doubts >= WRONG_DOUBTS {
            return Vec::new();
        }
        let recent = state
            .written
            .iter()
            .filter(|(name, wrote)| {
                wrote.at.elapsed() <= REMEMBERED && *name != prefix && name.prefix_matches(prefix)
            })
            .map(|(name, wrote)| (name.clone(), wrote.etag.is_some()));
        recent.collect()
    }
}

impl State {
    fn note(&mut self, name: &Name, etag: Option<String>) {
        if self.written.len() >= MOST {
            self.written
                .retain(|_, wrote| wrote.at.elapsed() <= REMEMBERED);
        }
        if self.written.len() >= MOST {
            self.written.clear();
        }
        let at = Instant::now();
        self.written.insert(name.clone(), Wrote { at, etag });
    }
}

/// An etag as it is compared: some stores quote it in one answer and not in the other.
pub(super) fn plain(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

impl Live {
    /// A fault where an answer about an object may be from before this process wrote it.
    pub(super) fn refuse_old(
        &self,
        name: &Name,
        told: Told<'_>,
        number: Try,
    ) -> std::result::Result<(), Fault> {
        let recent = self.0.pace.recent();
        if !recent.is_doubtful(name, told) {
            return Ok(());
        }
        let retry = &self.0.retry;
        let may_ask_again = number.0 < TRIES.min(retry.max_attempts)
            && retry.give_up_after >= Duration::from_secs(5);
        if may_ask_again {
            return Err(Fault::Old);
        }
        recent.was_wrong(name);
        Ok(())
    }

    /// Whether a listing may be from before this process wrote: then it is worth another one. `has` is whether it has an object,
    /// where that can be told from it.
    pub(super) async fn is_old_listing(
        &self,
        below: &Name,
        has: impl Fn(&Name) -> Option<bool>,
        number: u32,
    ) -> bool {
        let recent = self.0.pace.recent();
        let mut is_old = false;
        for (name, is_there) in recent.below(below) {
            if has(&name).is_none_or(|has| has == is_there) {
                continue;
            }
            if number >= TRIES {
                recent.was_wrong(&name);
            } else {
                is_old = true;
            }
        }
        if is_old {
            tokio::time::sleep(self.wait_before(number + 1)).await;
        }
        is_old
    }

    /// Whether a level has an object. Of one that is deeper it only tells where its directory is not there: one that is may be there
    /// for the sake of others.
    pub(super) fn shows(&self, listing: &Listing, below: &Name, name: &Name) -> Option<bool> {
        let key = self.key(name)?;
        let mut rest = name.prefix_match(below)?;
        let (first, second) = (rest.next()?, rest.next());
        if second.is_none() {
            let find = |object: &Object| object.key.as_str().cmp(&key);
            return Some(listing.objects.binary_search_by(find).is_ok());
        }
        let dir = self.key(&below.clone().join(first))?;
        let has_dir = listing.dirs.binary_search(&dir).is_ok();
        (!has_dir).then_some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_what_was_written_is_doubted() {
        let recent = Recent::default();
        let name = Name::from("a/b");
        assert!(!recent.is_doubtful(&name, Told::Nothing));
        recent.wrote(&name, Some("\"1\""));
        assert!(recent.is_doubtful(&name, Told::Nothing));
        assert!(recent.is_doubtful(&name, Told::Object(Some("\"0\""))));
        assert!(!recent.is_doubtful(&name, Told::Object(Some("1"))));
        assert!(!recent.is_doubtful(&name, Told::Object(None)));
        recent.deleted(&name);
        assert!(recent.is_doubtful(&name, Told::Object(None)));
        assert_eq!(recent.below(&Name::from("a")), [(name.clone(), false)]);
        assert!(recent.below(&Name::from("b")).is_empty());
        // Without an etag nothing is known.
        recent.wrote(&name, None);
        assert!(!recent.is_doubtful(&name, Told::Nothing));
    }

    #[test]
    fn a_store_that_others_write_to_is_believed_in_the_end() {
        let recent = Recent::default();
        for number in 0..WRONG_DOUBTS {
            let name = Name::from(format!("{number}"));
            recent.wrote(&name, Some("1"));
            assert!(recent.is_doubtful(&name, Told::Nothing));
            recent.was_wrong(&name);
            assert!(!recent.is_doubtful(&name, Told::Nothing));
        }
        let name = Name::from("x");
        recent.wrote(&name, Some("1"));
        assert!(!recent.is_doubtful(&name, Told::Nothing));
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let recent = Recent::default();
        for number in 0..3 * MOST {
            recent.wrote(&Name::from(format!("{number}")), Some("1"));
        }
        assert!(recent.lock().written.len() <= MOST);
    }
}
