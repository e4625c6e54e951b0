//! The classes behind `forebay/checkpoint.py`: the staging area, drafts, handles of what was saved, and checkpoints that are
//! read back.
//!
//! Owns waiting without the interpreter, and the refusal of what a fork left behind. What Python objects become which
//! files is decided in Python.

mod buffer;
mod read;

pub(crate) use buffer::{PyBuffer, PyDraft, PyDraftFile, PyRequest, Saved};
pub(crate) use read::{
    _checkpoint_area, _checkpoint_latest, _checkpoint_list, _checkpoint_pin, _checkpoint_share,
    PyCheckpoint,
};

use forebay_store::{Cancel, Location, StoreOptions};

use crate::failure::{Failure, Kind};
use crate::storage::{StorageOptions, reading};

/// How a store is reached, by those who wait for it until `cancel` is raised.
fn store_options(named: StorageOptions, cancel: &Cancel) -> Result<StoreOptions, Failure> {
    Ok(reading(false, &named, cancel)?.store)
}

fn location(text: &str) -> Result<Location, Failure> {
    Location::parse(text).map_err(|error| Failure::new(Kind::Option, error))
}

/// Refuses what was made before a fork: its threads are not here.
fn same_process(process: u32) -> Result<(), Failure> {
    if process == std::process::id() {
        return Ok(());
    }
    let message = "this was made before a fork, and its threads stayed behind: call forebay.checkpoint in the process that \
                   uses it, or start processes with the method spawn";
    Err(Failure::new(Kind::Fork, message))
}
