//! The claim: an object that names the owner of an unfinished dataset in a store.
//!
//! A conditional put creates it, so only one of two concurrent packs succeeds. The owner checks the claim again before
//! each upload of a shard and before publishing the manifest. This detects a store that ignored the condition, and a
//! pack that took over the claim, before the dataset becomes visible. The owner deletes the claim after publishing.

use crate::differences::differences;
use crate::error::{Error, Result};
use forebay_store::{Error as StoreError, Put, Store};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The key of the claim. The name is hidden, and the claim is deleted before the dataset is used.
pub(crate) const CLAIM: &str = ".forebay-pack/claim";
/// The directory of the claim.
pub(crate) const CLAIM_DIR: &str = ".forebay-pack";
/// Maximum size of a claim in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The owner of a destination, and its plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// Distinguishes packs of the same plan: a random id, kept in the staging area.
    pub(crate) id: String,
    /// Digest of the plan.
    pub(crate) plan: String,
    /// The arguments that determine the plan, by name.
    pub(crate) arguments: BTreeMap<String, String>,
    /// The process and its machine, for messages.
    pub(crate) by: String,
}

impl Claim {
    /// Reads the claim in a store, with the tag of this version of the object.
    pub(crate) fn read(store: &Store) -> Result<Option<(Self, Option<String>)>> {
        let Some(object) = store.head(CLAIM)? else {
            return Ok(None);
        };
        Ok(Self::fetch(store)?.map(|claim| (claim, object.etag)))
    }

    /// Reads the claim in a store with one request.
    fn fetch(store: &Store) -> Result<Option<Self>> {
        let bytes = match store.get(CLAIM, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let claim = forebay_shard::json::from_slice(&bytes).unwrap_or_else(|_| Self {
            id: String::new(),
            plan: String::new(),
            arguments: BTreeMap::new(),
            by: "its claim cannot be read".into(),
        });
        Ok(Some(claim))
    }

    /// Creates the claim, or replaces the one with the tag `instead_of`.
    pub(crate) fn put(&self, store: &Store, instead_of: Option<String>) -> Result<()> {
        let condition = instead_of.map_or(Put::IfAbsent, Put::IfMatch);
        let json =
            serde_json::to_vec(self).map_err(|error| Error::io(place(store), "encode", error))?;
        match store.put(CLAIM, &json, condition) {
            Ok(_) => self.check(store),
            Err(StoreError::AlreadyThere { .. } | StoreError::Changed { .. }) => self.check(store),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether both belong to the same pack, which another process may have continued.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        self.id == other.id && self.plan == other.plan
    }

    /// Returns an error if the store contains another claim.
    pub(crate) fn check(&self, store: &Store) -> Result<()> {
        match Self::fetch(store)? {
            Some(found) if found.is_of(self) => Ok(()),
            Some(found) => Err(self.lost_to(&found, store)),
            None => {
                let what = "this pack's claim was removed while it ran: nothing was published";
                Err(Error::destination(place(store), what))
            }
        }
    }

    /// Returns the error that names the other owner of the claim, and the differences between both plans.
    pub(crate) fn lost_to(&self, other: &Self, store: &Store) -> Error {
        let arguments = [&other.arguments, &self.arguments];
        let mut differences = differences(arguments, ["there", "here"]);
        if differences.is_empty() && self.plan != other.plan {
            differences.push("the source is another one, or was changed".to_owned());
        }
        Error::Claimed {
            path: place(store),
            by: other.by.clone(),
            differences,
        }
    }
}

/// Returns the destination, for messages.
pub(crate) fn place(store: &Store) -> PathBuf {
    PathBuf::from(store.location().to_string())
}

/// Describes this process, for other processes.
pub(crate) fn this_process() -> String {
    let host = rustix::system::uname();
    format!(
        "process {} on {}",
        std::process::id(),
        host.nodename().to_string_lossy()
    )
}
