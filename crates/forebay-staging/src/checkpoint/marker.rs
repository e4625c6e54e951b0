//! The marker of a staged checkpoint: a file beside its data with the destination and the list of files.

use super::manifest::{CheckpointPart, MANIFEST_MAX_BYTES, REPLACED_MAX};
use super::name::{self, CheckpointPath};
use super::{Error, Result};
use crate::unit::{Unit, UnitState};
use forebay_store::{Location, StoreOptions};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::Path;

const VERSION: u32 = 1;

/// The marker of a staged checkpoint. It holds no secrets: a process that continues after a crash uses its own credentials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Marker {
    version: u32,
    /// The run's directory or prefix.
    prefix: String,
    /// The checkpoint's name in the run.
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    anonymous: bool,
    /// Whether it replaces another checkpoint of the same name.
    pub(super) overwrite: bool,
    /// How many checkpoints of the run retention keeps once this one is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) keep: Option<u32>,
    pub(super) attempt: String,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) part: CheckpointPart,
}

/// The fields of a marker besides the files.
#[derive(Debug, Clone)]
pub(super) struct SaveTarget {
    pub(super) place: CheckpointPath,
    pub(super) store: StoreOptions,
    pub(super) overwrite: bool,
    pub(super) keep: Option<u32>,
    pub(super) attempt: String,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// As in [`CheckpointPart`].
    pub(super) superseded: Vec<String>,
}

impl Marker {
    /// Reads the marker of a unit; `None` if the unit was never acknowledged.
    pub(super) fn of(unit: &Unit) -> Result<Option<Self>> {
        let Some((path, bytes)) = unit.marker(MANIFEST_MAX_BYTES)? else {
            return Ok(None);
        };
        let place = path.display().to_string();
        let marker = Self::parse(&bytes).map_err(|why| Error::Manifest { place, why })?;
        Ok(Some(marker))
    }

    /// Returns the attempts in the area that this save makes obsolete: those to save the same checkpoint that are acknowledged
    /// and not uploaded, by the same rank, or by ranks of another world size, whose processes have ended. Ranks of one world
    /// size may be at different saves, so a part of another rank may be newer.
    pub(super) fn earlier_attempts(area: &Path, orders: &SaveTarget) -> Result<Vec<String>> {
        let mut found = BTreeSet::new();
        if !orders.overwrite {
            return Ok(Vec::new());
        }
        for unit in Unit::all(area)?.into_iter().rev().filter(Unit::is_own) {
            if unit.stage() == UnitState::Staged
                && let Ok(Some(marker)) = Self::of(&unit)
                && marker.place().is_ok_and(|place| place == orders.place)
                && (marker.rank == orders.rank || marker.world_size != orders.world_size)
                && marker.attempt != orders.attempt
                && found.len() < REPLACED_MAX
            {
                found.insert(marker.attempt);
            }
        }
        Ok(found.into_iter().collect())
    }

    pub(super) fn new(orders: &SaveTarget, part: CheckpointPart) -> Self {
        Self {
            version: VERSION,
            prefix: orders.place.prefix.to_string(),
            name: orders.place.name.clone(),
            endpoint: orders.store.public_endpoint(),
            region: orders.store.region.clone(),
            anonymous: orders.store.anonymous,
            overwrite: orders.overwrite,
            keep: orders.keep,
            attempt: orders.attempt.clone(),
            rank: orders.rank,
            world_size: orders.world_size,
            part,
        }
    }

    pub(super) fn place(&self) -> Result<CheckpointPath> {
        Ok(CheckpointPath {
            prefix: Location::parse(&self.prefix)?,
            name: self.name.clone(),
        })
    }

    /// Returns the options for the store, as far as the marker records them: without credentials.
    pub(super) fn store_options(&self) -> StoreOptions {
        let mut options = StoreOptions::default();
        options.endpoint.clone_from(&self.endpoint);
        options.region.clone_from(&self.region);
        options.anonymous = self.anonymous;
        options
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(format!("\n{sum:08x}\n").as_bytes());
        bytes
    }

    /// Parses a marker. Any user who can write to the disk may have made it, so everything that becomes part of a path is
    /// checked.
    pub(super) fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let cut = "it is cut short or was changed";
        let body = bytes.strip_suffix(b"\n").ok_or(cut)?;
        let at = body.iter().rposition(|b| *b == b'\n').ok_or(cut)?;
        let (json, sum) = body.split_at(at);
        if sum.get(1..) != Some(format!("{:08x}", crc32c::crc32c(json)).as_bytes()) {
            return Err(cut.to_owned());
        }
        let made: Self =
            forebay_shard::json::from_slice(json).map_err(|error| error.to_string())?;
        if made.version != VERSION {
            return Err(
                "it was written by another version of forebay: drain it with that one".to_owned(),
            );
        }
        made.part.check()?;
        name::check(&made.name)?;
        name::check_attempt(&made.attempt)?;
        if made.rank >= made.world_size || made.name.contains('/') {
            return Err("it is no marker of a checkpoint".to_owned());
        }
        Ok(made)
    }
}

/// Fuzz target: the names in a marker with a correct checksum stay within its run and its unit.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(json: &[u8]) {
    let _ = Marker::parse(json);
    let mut bytes = json.to_vec();
    bytes.extend_from_slice(format!("\n{:08x}\n", crc32c::crc32c(json)).as_bytes());
    let Ok(marker) = Marker::parse(&bytes) else {
        return;
    };
    assert!(!marker.name.contains('/') && marker.name != "..");
    assert!(marker.rank < marker.world_size);
    for file in &marker.part.files {
        assert!(!file.name.starts_with('/') && !file.name.split('/').any(|part| part == ".."));
    }
    let again = Marker::parse(&marker.to_bytes());
    assert!(again.is_ok_and(|again| again.part.files == marker.part.files));
    let _ = marker.place();
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::checkpoint::manifest::FileEntry;

    #[test]
    fn the_fuzz_corpus_passes() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/checkpoint_marker");
        forebay_rigs::replay_corpus(corpus.as_ref(), 1000, super::fuzz);
    }

    pub(crate) fn marker(endpoint: Option<&str>) -> Marker {
        let store = StoreOptions {
            endpoint: endpoint.map(str::to_owned),
            ..StoreOptions::default()
        };
        let orders = SaveTarget {
            place: CheckpointPath::of(&Location::parse("s3://bucket/run/step-7").unwrap()).unwrap(),
            store,
            overwrite: true,
            keep: Some(3),
            attempt: "run-1".to_owned(),
            rank: 0,
            world_size: 1,
            superseded: Vec::new(),
        };
        let files = vec![FileEntry {
            name: "a".to_owned(),
            bytes: 3,
            crc32c: 7,
        }];
        Marker::new(
            &orders,
            CheckpointPart {
                content: "bytes".to_owned(),
                metadata: serde_json::Map::new(),
                superseded: Vec::new(),
                files,
            },
        )
    }

    #[test]
    fn a_marker_round_trips_or_is_refused() {
        let made = marker(None);
        let bytes = made.to_bytes();
        assert_eq!(Marker::parse(&bytes).unwrap(), made);
        assert_eq!(made.place().unwrap().location(), "s3://bucket/run/step-7");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Marker::parse(&changed).is_err(), "byte {at}");
            assert!(Marker::parse(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn no_secret_is_in_a_marker() {
        let made = marker(Some("https://KEY:SECRET@host:9000/x?token=HIDDEN#y"));
        let text = String::from_utf8(made.to_bytes()).unwrap();
        assert!(text.contains("https://host:9000/x"), "{text}");
        assert!(
            !text.contains("SECRET") && !text.contains("HIDDEN"),
            "{text}"
        );
    }
}
