//! A dataset in a store that several machines write in parts.
//!
//! Parts exchange no messages and hold no lock. They share the plan, an object that a conditional put creates, and each
//! part compares its own plan with it. When the shards of a part are stored and checked, its journal is stored as its
//! record; to join the parts, a process reads the plan and the records. A part that is repeated, or written twice at the
//! same time, stores the same bytes again. A dataset that one process writes has a claim instead of a plan, and each
//! refuses the other.

use super::claim::{CLAIM, CLAIM_DIR, Claim, place};
use super::keys::{is_of_pack, is_of_shards};
use super::{MANIFEST_MAX_BYTES, StagedDestination};
use crate::census::{CensusRecord, RECORD_MAX_BYTES};
use crate::error::{Error, Result};
use crate::observer::Observer;
use crate::options::Part;
use crate::publish::destination::{
    BeginState, Header, Journal, JournalContents, PlanDifference, PlanFile, Request, ShardLine,
    SharedPlan, State, UnfinishedPack, encode_plan, parse_plan,
};
use forebay_store::{Error as StoreError, Put, Store};
use std::collections::{BTreeMap, BTreeSet};

/// The key of the plan that parts share.
pub(super) const PLAN: &str = ".forebay-pack/plan";

/// Returns the key of the record of a finished part.
fn record_key(part: Part) -> String {
    format!("{CLAIM_DIR}/{}", part.dir_name())
}

impl StagedDestination {
    /// As [`begin_plan`](super::Destination::begin_plan): leaves the store without the plan of another pack.
    pub(super) fn begin_shared_plan(
        &self,
        request: &Request<'_>,
        observer: &dyn Observer,
    ) -> Result<BeginState> {
        let nothing = |is_continued| BeginState::Lines {
            lines: Vec::new(),
            is_continued,
        };
        if request.overwrite {
            self.refuse_objects(&is_of_pack)?;
            self.remove_parts()?;
            self.clear()?;
            self.store.delete(CLAIM)?;
            return Ok(nothing(false));
        }
        if let Some(manifest) = self.manifest()? {
            (request.refuse_other)(&manifest)?;
            return Ok(BeginState::Complete(Box::new(manifest)));
        }
        self.refuse_claim()?;
        let Some(plan) = self.plan()? else {
            self.refuse_objects(&|_| false)?;
            return Ok(nothing(false));
        };
        match plan.header.difference(request.header) {
            PlanDifference::None => Ok(nothing(true)),
            PlanDifference::Source(differences) if request.restarts => {
                observer.begins_anew(&differences);
                self.remove_parts()?;
                self.clear()?;
                Ok(nothing(false))
            }
            other => Err(Error::DifferentPack {
                path: request.shown.to_path_buf(),
                differences: other.into_words(),
            }),
        }
    }

    /// As [`state`](super::Destination::state).
    pub(super) fn shared_state(&self) -> Result<State> {
        if let Some(manifest) = self.manifest()? {
            return Ok(State::Complete(Box::new(manifest)));
        }
        match self.unfinished_state() {
            // Another process may have published the dataset since, and removed the plan.
            Err(error @ Error::Destination { .. }) => match self.manifest()? {
                Some(manifest) => Ok(State::Complete(Box::new(manifest))),
                None => Err(error),
            },
            state => state,
        }
    }

    fn unfinished_state(&self) -> Result<State> {
        self.refuse_claim()?;
        let plan = match self.plan()? {
            Some(plan) => plan,
            None => match self.refuse_objects(&|_| false) {
                Ok(()) => {
                    self.forget_local()?;
                    return Ok(State::Empty);
                }
                // Another part may have begun since.
                Err(foreign) => self.plan()?.ok_or(foreign)?,
            },
        };
        if self.part.is_none() {
            let shards: BTreeSet<&String> = plan.header.shards.iter().collect();
            self.refuse_objects(&|key| {
                is_of_shards(key, &|shard| shards.contains(&shard.to_owned()))
            })?;
        }
        let mut journals = Vec::new();
        if let State::Unfinished(local) = self.dir.state()? {
            if local.difference(&plan.header) == PlanDifference::None {
                let local = local.journals.into_iter();
                journals.extend(local.map(|(_, found)| (self.part, found)));
            } else {
                // They belong to an earlier plan, which was replaced.
                self.forget_local()?;
            }
        }
        for part in self.recorded_parts()? {
            if let Some(found) = self.record(part)? {
                journals.push((Some(part), found));
            }
        }
        Ok(State::Unfinished(Box::new(UnfinishedPack {
            plan: Some(plan),
            journals,
        })))
    }

    /// Stores the plan, unless there is one; returns the stored plan.
    pub(super) fn put_plan(&self, plan: &SharedPlan<'_>) -> Result<PlanFile> {
        if let Some(census) = plan.census {
            let key = census_key(&census.name);
            self.store.put(&key, &census.bytes, Put::Always)?;
        }
        let path = place(&self.store).join(PLAN);
        let plan = encode_plan(&path, plan)?;
        match self.store.put(PLAN, &plan, Put::IfAbsent) {
            Ok(_) | Err(StoreError::AlreadyThere { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.refuse_claim()?;
        self.plan()?.ok_or_else(|| self.lost_plan())
    }

    /// Stores the record of a part whose uploads are complete, unless the parts have another plan now.
    pub(super) fn put_record(
        &self,
        part: Part,
        header: &Header,
        done: &BTreeMap<String, ShardLine>,
    ) -> Result<()> {
        match self.plan()? {
            Some(plan) => {
                let difference = plan.header.difference(header);
                difference.refuse_part(&place(&self.store), format!("part {part}"))?;
            }
            // The same part was written elsewhere too, and the parts were joined.
            None if self.manifest()?.is_some() => return Ok(()),
            None => return Err(self.lost_plan()),
        }
        self.look_at_all(done)?;
        let key = record_key(part);
        let path = place(&self.store).join(&key);
        let record = Journal::encode(&path, header, done.values())?;
        self.store.put(&key, &record, Put::Always)?;
        Ok(())
    }

    /// Returns an error if parts write the dataset.
    pub(super) fn refuse_parts(&self) -> Result<()> {
        if self.store.head(PLAN)?.is_none() {
            return Ok(());
        }
        let what =
            "it holds a pack in parts: write the missing parts and join them, or overwrite it";
        Err(Error::destination(place(&self.store), what))
    }

    /// Removes the plan, its census and the records of parts. The plan goes first, so that running parts find out.
    pub(super) fn remove_parts(&self) -> Result<()> {
        self.store.delete(PLAN)?;
        let records = self.store.list_dir(CLAIM_DIR)?.objects.into_iter();
        let is_ours = |key: &str| part_of(key).is_some() || is_census(key);
        for record in records.filter(|object| is_ours(&object.key)) {
            self.store.delete(&record.key)?;
        }
        Ok(())
    }

    fn refuse_claim(&self) -> Result<()> {
        match Claim::read(&self.store)? {
            None => Ok(()),
            Some((claim, _)) => Err(Error::Claimed {
                path: place(&self.store),
                by: claim.by,
                differences: Vec::new(),
            }),
        }
    }

    /// Removes the shards that an earlier run left in the staging area.
    fn forget_local(&self) -> Result<()> {
        let discard = || -> Result<()> { Ok(self.area.discard()?) };
        self.dir.clear(self.dir.state()?, &discard)
    }

    fn plan(&self) -> Result<Option<PlanFile>> {
        read_plan(&self.store)
    }

    /// Returns the parts whose records are of interest: all, or to a part its own and those of another number of parts.
    fn recorded_parts(&self) -> Result<Vec<Part>> {
        let records = self.store.list_dir(CLAIM_DIR)?.objects;
        let mut parts: Vec<Part> = records
            .iter()
            .filter_map(|object| part_of(&object.key))
            .filter(|part| {
                self.part
                    .is_none_or(|own| own == *part || own.count() != part.count())
            })
            .collect();
        parts.sort_by_key(|part| (part.count(), part.number()));
        Ok(parts)
    }

    fn record(&self, part: Part) -> Result<Option<JournalContents>> {
        let text = read(&self.store, &record_key(part), MANIFEST_MAX_BYTES)?;
        Ok(text.and_then(|text| Journal::parse(&text)))
    }

    fn lost_plan(&self) -> Error {
        let what = "the plan of the parts was removed while this part was written: nothing was recorded, write it again";
        Error::destination(place(&self.store), what)
    }
}

/// Reads the plan that parts share in a store.
pub(super) fn read_plan(store: &Store) -> Result<Option<PlanFile>> {
    let path = place(store).join(PLAN);
    let text = read(store, PLAN, MANIFEST_MAX_BYTES)?;
    text.map(|text| parse_plan(&path, &text)).transpose()
}

fn read(store: &Store, key: &str, max_bytes: u64) -> Result<Option<Vec<u8>>> {
    match store.get(key, max_bytes) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the key of a recorded census.
fn census_key(name: &str) -> String {
    format!("{CLAIM_DIR}/{}", CensusRecord::file_name(name))
}

/// Reads a recorded census; `None` if it was removed.
pub(super) fn read_census(store: &Store, name: &str) -> Result<Option<Vec<u8>>> {
    read(store, &census_key(name), RECORD_MAX_BYTES)
}

fn is_census(key: &str) -> bool {
    let file = key
        .strip_prefix(CLAIM_DIR)
        .and_then(|key| key.strip_prefix('/'));
    file.is_some_and(CensusRecord::is_file_name)
}

/// Returns the part whose record has this key.
fn part_of(key: &str) -> Option<Part> {
    Part::of_dir_name(key.strip_prefix(CLAIM_DIR)?.strip_prefix('/')?)
}
