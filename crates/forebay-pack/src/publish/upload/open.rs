//! Opens a destination: a directory, a store, or one of them for a step of a dataset in parts.

use super::StagedDestination;
use super::parts::{read_census, read_plan};
use crate::error::{Error, Result};
use crate::options::{Part, UploadOptions};
use crate::publish::destination::{Destination, LocalDestination, PlanFile, WorkDir};
use forebay_store::{Durability, Location, Store};
use std::path::PathBuf;

/// The error for parts in a directory that is written through a staging area.
const NO_PARTS: &str = "parts are written to a directory that all machines see, or to a store: a directory takes them \
                        without a staging area";

/// Opens a destination according to its options. `shard_bytes` is the size of the largest shard, and `beside_bytes` that of
/// other files in the staging area.
pub(crate) fn open(
    dst: &Location,
    options: &UploadOptions,
    durability: Durability,
    shard_bytes: u64,
    beside_bytes: u64,
) -> Result<Box<dyn Destination>> {
    if options.are_for(dst) {
        let staged =
            StagedDestination::open(dst, options, durability, None, shard_bytes, beside_bytes)?;
        return Ok(Box::new(staged));
    }
    Ok(Box::new(LocalDestination::open(&shown(dst), durability)?))
}

/// A step of writing a dataset in parts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Records the plan.
    Plan,
    Part(Part),
    /// Joins the parts.
    Finish,
}

impl Step {
    /// The end of the name of the step's staging session: parts of one machine do not wait for each other.
    pub(super) fn suffix(step: Option<Self>) -> String {
        match step {
            None => String::new(),
            Some(Self::Part(part)) => format!("-{}", part.dir_name()),
            Some(Self::Plan | Self::Finish) => "-parts".to_owned(),
        }
    }
}

/// As [`open`], for a step of a dataset in parts, which several processes write at the same time.
pub(crate) fn open_parts(
    dst: &Location,
    options: &UploadOptions,
    durability: Durability,
    step: Step,
    shard_bytes: u64,
    beside_bytes: u64,
) -> Result<Box<dyn Destination>> {
    if dst.is_remote() {
        let step = Some(step);
        let staged =
            StagedDestination::open(dst, options, durability, step, shard_bytes, beside_bytes)?;
        return Ok(Box::new(staged));
    }
    if options.are_for(dst) {
        return Err(Error::Options(NO_PARTS.into()));
    }
    Ok(Box::new(match step {
        Step::Part(part) => LocalDestination::open_part(&shown(dst), durability, part)?,
        Step::Plan | Step::Finish => LocalDestination::open(&shown(dst), durability)?,
    }))
}

/// Reads the plan that parts share, and its census, without locking the destination. The census is `None` if the plan has
/// none, or if it was removed since.
pub(crate) fn recorded_plan(
    dst: &Location,
    options: &UploadOptions,
) -> Result<Option<(PlanFile, Option<Vec<u8>>)>> {
    if matches!(dst.scheme(), Some("http" | "https")) {
        return Ok(None);
    }
    let store = match dst.is_remote() {
        true => Some(Store::open(dst, &options.store)?),
        false => None,
    };
    let root = shown(dst);
    let plan = match &store {
        Some(store) => read_plan(store)?,
        None => WorkDir::read_plan(&root)?,
    };
    let Some(plan) = plan else {
        return Ok(None);
    };
    let outline = plan.outline.as_ref();
    let census = match (outline.and_then(|outline| outline.census.as_ref()), &store) {
        (None, _) => None,
        (Some((name, _)), Some(store)) => read_census(store, name)?,
        (Some((name, _)), None) => WorkDir::read_census(&root, name)?,
    };
    Ok(Some((plan, census)))
}

/// Returns a destination as shown in messages and summaries.
pub(crate) fn shown(dst: &Location) -> PathBuf {
    match dst.local_path() {
        Ok(path) => path.to_path_buf(),
        Err(_) => PathBuf::from(dst.to_string()),
    }
}

/// Returns the local directories to which a pack writes.
pub(crate) fn written(dst: &Location, options: &UploadOptions) -> Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    if options.are_for(dst) {
        dirs.push(options.area_dir());
    }
    if !dst.is_remote() {
        dirs.push(dst.local_path()?.to_path_buf());
    }
    Ok(dirs)
}

/// Returns the name of the staging session, one per destination, so that the same command finds it again.
pub(super) fn session_name(dst: &Location, options: &UploadOptions) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(dst.to_string().trim_end_matches('/').as_bytes());
    hasher.update(&[0]);
    hasher.update(
        options
            .store
            .endpoint
            .as_deref()
            .unwrap_or_default()
            .as_bytes(),
    );
    format!("pack-{}", &hasher.finalize().to_hex()[..32])
}
