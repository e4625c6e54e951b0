//! The classes behind `forebay/checkpoint.py`: the staging area, drafts, handles of saved checkpoints, and checkpoints that
//! are read.
//!
//! They wait without the interpreter, and refuse objects from before a fork. Python code decides which objects become which
//! files.

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

/// Returns the options of a store. Raising `cancel` ends all waits for the store.
fn store_options(named: StorageOptions, cancel: &Cancel) -> Result<StoreOptions, Failure> {
    Ok(reading(false, &named, cancel)?.store)
}

fn location(text: &str) -> Result<Location, Failure> {
    Location::parse(text).map_err(|error| Failure::new(Kind::Option, error))
}

/// Fails for an object from before a fork: its threads do not exist in this process.
fn same_process(process: u32) -> Result<(), Failure> {
    if process == std::process::id() {
        return Ok(());
    }
    let message = "this was made before a fork, and its threads stayed behind: call forebay.checkpoint in the process that \
                   uses it, or start processes with the method spawn";
    Err(Failure::new(Kind::Fork, message))
}
